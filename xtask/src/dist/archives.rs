//! The files of a release, each made by the tool for its kind.

use std::fs;
use std::path::Path;

use super::Release;
use super::tree::{files, put};
use crate::TaskResult;
use crate::run::{command, output, run};

/// `marline_0.2.0-1_amd64.deb`, by cargo-deb with what crates/marline-cli/Cargo.toml tells it.
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

/// `marline-0.2.0-1.x86_64.rpm`, by cargo-generate-rpm likewise.
pub(super) fn rpm(release: &Release) -> TaskResult {
    let to = release.folder.to_string_lossy();
    let arguments = ["generate-rpm", "-p", "crates/marline-cli", "-o", &to];
    let mut cargo = command(&release.root, "cargo", &arguments);
    if release.effort == "-1" {
        cargo.args(["--payload-compress", "gzip"]);
    }
    run(cargo.env("SOURCE_DATE_EPOCH", &release.epoch_s))
}

/// The static program, and beside it what the packages have.
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
    packed(release, &release.folder, &name, &format!("{name}.tar.gz"))
}

/// The root file system of the container, and the file that says how it is run.
pub(super) fn container(release: &Release, program: &Path) -> TaskResult {
    let folder = release.folder.join("container");
    put(program, &folder.join("usr/bin/marline"))?;
    for file in ["LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY.txt"] {
        let from = release.folder.join("tree/usr/share/doc/marline").join(file);
        put(&from, &folder.join("usr/share/doc/marline").join(file))?;
    }
    // The server's files belong to the one who runs it, and control sockets need a place.
    for made in ["var/lib/marline", "tmp"] {
        let made = folder.join(made);
        fs::create_dir_all(&made).map_err(|error| format!("{}: {error}", made.display()))?;
    }
    let chmod = ["1777", "container/tmp", "container/var/lib/marline"];
    run(&mut command(&release.folder, "chmod", &chmod))?;
    put(&release.root.join("packaging/Containerfile"), &release.folder.join("Containerfile"))?;
    packed(release, &folder, ".", &format!("{}-container.tar.gz", release.name()))
}

/// One order, one owner, one time: equal files are an equal archive.
fn packed(release: &Release, within: &Path, what: &str, name: &str) -> TaskResult {
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

/// `marline-0.2.0-x86_64-linux.cdx.json`: every crate in the program, which is not the same for all machines, in
/// CycloneDX's form.
pub(super) fn sbom(release: &Release) -> TaskResult {
    let arguments = ["cyclonedx", "--format", "json", "--override-filename", "sbom.cdx", "-q"];
    let mut cargo = command(&release.root, "cargo", &arguments);
    cargo.args(["--manifest-path", "crates/marline-cli/Cargo.toml", "--no-build-deps"]);
    run(cargo.env("SOURCE_DATE_EPOCH", &release.epoch_s))?;
    let made = release.root.join("crates/marline-cli/sbom.cdx.json");
    let text = fs::read_to_string(&made).map_err(|error| format!("{}: {error}", made.display()))?;
    // It names crates of ours by where they lie.
    let text = text.replace(&release.root.display().to_string(), "/marline");
    let to = release.folder.join(format!("{}.cdx.json", release.name()));
    fs::write(&to, text).map_err(|error| format!("{}: {error}", to.display()))?;
    // It writes one beside each manifest of the workspace.
    for member in crate::manifest::workspace_crates(&release.root)? {
        let _ = fs::remove_file(member.dir.join("sbom.cdx.json"));
    }
    Ok(())
}

/// `SHA256SUMS` of all files beside it.
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
