//! Contents of a release, in `target/dist`: packages, an archive, a container's files, an SBOM, checksums.
//!
//! ```text
//! cargo -> program (dynamic) -> tree/      -> deb, rpm
//!       -> program (static)  -> archive    -> tar.gz
//! -> container/ -> container.tar.gz, with the Containerfile Cargo.lock -> cdx.json (SBOM), THIRD-PARTY.txt
//! all of them -> SHA256SUMS
//! ```
//! Two builds of a commit are equal bit for bit in any directory, because times are those of the commit, paths are
//! replaced, and files are sorted. `cargo xtask nightly` builds twice and compares.

mod archives;
mod program;
mod third_party;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) use program::{is_static, link_static_program, strip_program};
pub(crate) use tree::files;

use crate::TaskResult;
use crate::run::{command, output, run};

/// The folder of a release, and common properties of its files.
pub(crate) struct Release {
    /// The checkout.
    pub(crate) root: PathBuf,
    /// `target/dist`.
    pub(crate) folder: PathBuf,
    /// Version of the workspace.
    pub(crate) version: String,
    /// Modification time of all files in seconds since 1970.
    pub(crate) epoch_s: String,
    /// Compression level of gzip, from `-1` to `-9`.
    pub(crate) effort: &'static str,
}

impl Release {
    /// Creates an empty folder for the checkout's version.
    pub(crate) fn new(root: &Path, effort: &'static str) -> Result<Release, String> {
        let folder = root.join("target/dist");
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let (version, epoch_s) = (version(root)?, epoch_s(root)?);
        Ok(Release { root: root.to_path_buf(), folder, version, epoch_s, effort })
    }

    /// `marline-0.2.0-x86_64-linux`.
    pub(crate) fn name(&self) -> String {
        format!("marline-{}-{}-linux", self.version, std::env::consts::ARCH)
    }

    /// Builds both packages from this program.
    pub(crate) fn packages(&self, program: &Path) -> TaskResult {
        third_party::write(self)?;
        tree::fill(self, program)?;
        archives::deb(self)?;
        archives::rpm(self)
    }

    /// Builds the archive and the container's files from this program, which must be static.
    pub(crate) fn archives(&self, program: &Path) -> TaskResult {
        if !is_static(program)? {
            return Err(format!(
                "{} is linked dynamically; expected a static program",
                program.display()
            ));
        }
        archives::archive(self, program)?;
        archives::build_container(self, program)
    }
}

/// Builds the whole release, or with the argument `program` only the static program, which the quickstart copies to a
/// server.
pub(crate) fn build(root: &Path, arguments: &[String]) -> TaskResult {
    match arguments {
        [] => build_all(root),
        [word] if word == "program" => {
            let release = Release::new(root, "-9")?;
            package_program(&release, &program::build_static_program(root, &release.epoch_s)?)?;
            release_sums(&release)
        }
        _ => Err("usage: cargo xtask dist [program]".to_owned()),
    }
}

fn build_all(root: &Path) -> TaskResult {
    for tool in ["cargo-deb", "cargo-generate-rpm", "cargo-cyclonedx"] {
        output(&mut command(root, "which", &[tool]))
            .map_err(|_| format!("{tool} is missing: .ci/install-tools installs it"))?;
    }
    let release = Release::new(root, "-9")?;
    archives::sbom(&release)?;
    let programs = program::build(root, &release.epoch_s)?;
    release.packages(&programs.dynamic)?;
    package_program(&release, &programs.fixed)?;
    release.archives(&programs.fixed)?;
    release_sums(&release)
}

/// Writes `target/dist/marline`, the single program.
fn package_program(release: &Release, program: &Path) -> TaskResult {
    let copy = release.folder.join("marline");
    fs::copy(program, &copy).map_err(|error| format!("{}: {error}", program.display()))?;
    if !is_static(&copy)? {
        return Err(format!("{} is linked dynamically; expected a static program", copy.display()));
    }
    run(&mut command(&release.folder, "./marline", &["--version"]))
}

fn release_sums(release: &Release) -> TaskResult {
    let sums = archives::sums(release)?;
    println!("{}:\n{}", release.folder.display(), sums.trim());
    Ok(())
}

/// The version of the workspace.
pub(crate) fn version(root: &Path) -> Result<String, String> {
    let manifest = crate::manifest::read_toml(&root.join("Cargo.toml"))?;
    crate::manifest::version(&manifest).map(str::to_owned)
}

/// The commit's time, unless the environment sets a different one.
fn epoch_s(root: &Path) -> Result<String, String> {
    if let Ok(set) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(set);
    }
    let of_head = output(&mut command(root, "git", &["log", "-1", "--format=%ct"]));
    of_head.map(|text| text.trim().to_owned()).map_err(|error| {
        format!("{error}\nhint: without git, set SOURCE_DATE_EPOCH to the time of the files")
    })
}
