//! Files of a release, each made by the tool for its format.

use std::fs;
use std::path::Path;

use super::Release;
use super::tree::{files, put};
use crate::TaskResult;
use crate::run::{command, output, run};

/// Builds `marline_0.2.0-1_amd64.deb` with cargo-deb and its settings in crates/marline-cli/Cargo.toml.
pub(super) fn deb(release: &Release) -> TaskResult {
    let to = release.folder.to_string_lossy();
    let arguments = ["deb", "--no-build", "--no-strip", "--no-dbgsym", "-q", "-p", "marline-cli"];
    let mut cargo = command(&release.root, "cargo", &arguments);
    if release.effort == "-1" {
        cargo.arg("--fast");
    }
    cargo.args(["-o", &to]);
    run(cargo.env("SOURCE_DATE_EPOCH", &release.epoch_s))
}

/// Builds `marline-0.2.0-1.x86_64.rpm` with cargo-generate-rpm and its settings in the same file.
pub(super) fn rpm(release: &Release) -> TaskResult {
    let to = release.folder.to_string_lossy();
    let arguments = ["generate-rpm", "-p", "crates/marline-cli", "-o", &to];
    let mut cargo = command(&release.root, "cargo", &arguments);
    if release.effort == "-1" {
        cargo.args(["--payload-compress", "gzip"]);
    }
    run(cargo.env("SOURCE_DATE_EPOCH", &release.epoch_s))
}

/// Packs the static program with the packages' other files.
pub(super) fn archive(release: &Release, program: &Path) -> TaskResult {
    let name = release.name();
    let folder = release.folder.join(&name);
    let tree = release.folder.join("tree");
    put(program, &folder.join("marline"))?;
    for file in files(&tree.join("usr/share/doc/marline"))? {
        put(&file, &folder.join(file.file_name().unwrap_or_default()))?;
    }
    for (from, to) in [
        ("usr/lib/systemd/system", "systemd/system"),
        ("usr/lib/systemd/user", "systemd/user"),
        ("usr/share/man/man1", "man/man1"),
        ("usr/share/bash-completion/completions", "completions/bash"),
        ("usr/share/zsh/vendor-completions", "completions/zsh"),
        ("usr/share/fish/vendor_completions.d", "completions/fish"),
        ("usr/share/doc/marline/examples", "examples"),
        ("etc/marline", "examples"),
    ] {
        for file in files(&tree.join(from))? {
            put(&file, &folder.join(to).join(file.file_name().unwrap_or_default()))?;
        }
    }
    pack(release, &release.folder, &name, &format!("{name}.tar.gz"))
}

/// Packs the container's root file system, with its Containerfile.
pub(super) fn build_container(release: &Release, program: &Path) -> TaskResult {
    let folder = release.folder.join("container");
    put(program, &folder.join("usr/bin/marline"))?;
    for file in ["LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY.txt"] {
        let from = release.folder.join("tree/usr/share/doc/marline").join(file);
        put(&from, &folder.join("usr/share/doc/marline").join(file))?;
    }
    // The server's files belong to the user that runs it, and control sockets need a directory.
    for made in ["var/lib/marline", "tmp"] {
        let made = folder.join(made);
        fs::create_dir_all(&made).map_err(|error| format!("{}: {error}", made.display()))?;
    }
    let chmod = ["1777", "container/tmp", "container/var/lib/marline"];
    run(&mut command(&release.folder, "chmod", &chmod))?;
    put(&release.root.join("packaging/Containerfile"), &release.folder.join("Containerfile"))?;
    pack(release, &folder, ".", &format!("{}-container.tar.gz", release.name()))
}

/// Packs files with fixed order, owner and time, so that identical files give an identical archive.
fn pack(release: &Release, within: &Path, what: &str, name: &str) -> TaskResult {
    let time = format!("--mtime=@{}", release.epoch_s);
    let to = release.folder.join(name);
    let tar = to.with_extension("");
    let tar_name = tar.to_string_lossy();
    let mut pack = command(within, "tar", &["--create", "--file", &tar_name, &time]);
    pack.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    pack.args(["--mode=u+rw,go=u-w", what]);
    run(&mut pack)?;
    run(&mut command(within, "gzip", &[release.effort, "-nf", &tar_name]))
}

/// Writes `marline-0.2.0-x86_64-linux.cdx.json` in CycloneDX format: every crate of the program, which differs
/// between architectures.
pub(super) fn sbom(release: &Release) -> TaskResult {
    let arguments = ["cyclonedx", "--format", "json", "--override-filename", "sbom.cdx", "-q"];
    let mut cargo = command(&release.root, "cargo", &arguments);
    cargo.args(["--manifest-path", "crates/marline-cli/Cargo.toml", "--no-build-deps"]);
    run(cargo.env("SOURCE_DATE_EPOCH", &release.epoch_s))?;
    let made = release.root.join("crates/marline-cli/sbom.cdx.json");
    let text = fs::read_to_string(&made).map_err(|error| format!("{}: {error}", made.display()))?;
    // The SBOM names local crates by their directory.
    let text = text.replace(&release.root.display().to_string(), "/marline");
    let to = release.folder.join(format!("{}.cdx.json", release.name()));
    fs::write(&to, text).map_err(|error| format!("{}: {error}", to.display()))?;
    // The tool also writes a file next to each manifest of the workspace.
    for member in crate::manifest::workspace_crates(&release.root)? {
        let _ = fs::remove_file(member.dir.join("sbom.cdx.json"));
    }
    Ok(())
}

/// Writes `SHA256SUMS` for all files of the folder.
pub(super) fn sums(release: &Release) -> Result<String, String> {
    let mut sum = command(&release.folder, "sha256sum", &[]);
    for file in files(&release.folder)? {
        sum.arg(file.file_name().unwrap_or_default());
    }
    let text = output(&mut sum)?;
    let to = release.folder.join("SHA256SUMS");
    fs::write(&to, &text).map_err(|error| format!("{}: {error}", to.display()))?;
    Ok(text)
}
