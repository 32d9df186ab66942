//! The step `packages`, which installs and uses the packages on a Debian system without Rust.
//!
//! It also makes the contents of a release, but from programs that other steps have compiled, because a release build
//! takes ten minutes and is part of `cargo xtask nightly`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::TaskResult;
use crate::dist::{Release, files, link_static_program, strip_program};
use crate::run::{build_test_program, command, run, run_and_report_failure, skip};

const SCRIPT: &str = "packaging/check/fresh_machine.sh";
/// Debian root file system, made by `.ci/install-tools`.
const DEBIAN: &str = ".cache/marline/debian-bookworm.tar";

/// Builds packages, archive and container files, and runs the script that uses them.
pub(crate) fn check(root: &Path) -> TaskResult {
    let Some(debian) = debian()? else { return Ok(()) };
    let built = PathBuf::from(build_test_program(root, "marline")?);
    let world = root.join("target/ci-packages");
    remove(&world)?;
    let made = fs::create_dir_all(world.join("debian"));
    made.map_err(|error| format!("{}: {error}", world.display()))?;
    let mut unpack = command(&world, "tar", &["--extract", "--directory", "debian", "--file"]);
    run(unpack.arg(debian).arg("--numeric-owner"))?;

    let release = Release::new(root, "-1")?;
    let program = strip_program(&built, &world.join("dynamic"))?;
    release.packages(&program)?;
    link_static_program(root, &world.join("static"))?;
    release.archives(&world.join("static"))?;
    for (ending, name) in [("deb", "marline.deb"), ("rpm", "marline.rpm")] {
        let package = find_only_package(&release.folder, ending)?;
        fs::copy(&package, world.join(name))
            .map_err(|error| format!("{}: {error}", package.display()))?;
    }
    let copied =
        command(&release.folder, "cp", &["-a", "container", "Containerfile"]).arg(&world).status();
    copied.map_err(|error| format!("cannot run cp: {error}"))?;

    let namespaces = ["--fork", "--kill-child", "--pid", "--mount", "--net", "bash", SCRIPT];
    let result = run_and_report_failure(command(root, "unshare", &namespaces).arg(&world));
    let walk = root.join("target/walk");
    if world.join("walk").is_dir() {
        remove(&walk)?;
        fs::rename(world.join("walk"), &walk)
            .map_err(|error| format!("{}: {error}", walk.display()))?;
        println!("screenshots of the newcomer test: target/walk");
    }
    // The root file system is large.
    remove(&world)?;
    result
}

/// The root file system. If the step is skipped, prints why and returns `None`.
fn debian() -> Result<Option<PathBuf>, String> {
    let home = std::env::var("HOME").unwrap_or_default();
    let tar = Path::new(&home).join(DEBIAN);
    let why = match (is_root(), tar.is_file()) {
        (true, true) => return Ok(Some(tar)),
        (false, _) => "root privileges are required".to_owned(),
        (true, false) => format!("{} is missing: .ci/install-tools creates it", tar.display()),
    };
    skip("packages", why).map(|()| None)
}

/// Returns true for root, determined from the owner of a file, which needs no additional crate.
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

fn find_only_package(folder: &Path, ending: &str) -> Result<PathBuf, String> {
    let mut found = files(folder)?;
    found.retain(|file| file.extension().is_some_and(|end| end == ending));
    let [file] = found.as_slice() else {
        let folder = folder.display();
        return Err(format!("expected one *.{ending} package in {folder}, found {}", found.len()));
    };
    Ok(file.clone())
}

fn remove(folder: &Path) -> TaskResult {
    match fs::remove_dir_all(folder) {
        Err(error) if folder.exists() => Err(format!("{}: {error}", folder.display())),
        _ => Ok(()),
    }
}
