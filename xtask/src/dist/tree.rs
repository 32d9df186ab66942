//! File system tree for both packages.

use std::fs;
use std::path::{Path, PathBuf};

use super::Release;
use crate::TaskResult;
use crate::run::{command, output, run};

/// Directory and file name of each shell's completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/marline"),
    ("zsh", "usr/share/zsh/vendor-completions/_marline"),
    ("fish", "usr/share/fish/vendor_completions.d/marline.fish"),
];

/// Files of the checkout, or of the release's folder, with their destinations.
const FILES: [(&str, &str); 6] = [
    ("packaging/etc/client.toml", "etc/marline/client.toml"),
    ("packaging/examples/serve.toml", "usr/share/doc/marline/examples/serve.toml"),
    ("README.md", "usr/share/doc/marline/README.md"),
    ("CHANGELOG.md", "usr/share/doc/marline/CHANGELOG.md"),
    ("LICENSE-MIT", "usr/share/doc/marline/LICENSE-MIT"),
    ("LICENSE-APACHE", "usr/share/doc/marline/LICENSE-APACHE"),
];

/// Sections of the documentation for installation and operation. Research is only in the repository.
const DOC_SECTIONS: [&str; 3] = ["start", "operate", "concepts"];

/// Creates `target/dist/tree`.
pub(super) fn fill(release: &Release, program: &Path) -> TaskResult {
    let tree = release.folder.join("tree");
    put(program, &tree.join("usr/bin/marline"))?;
    for (from, to) in FILES {
        put(&release.root.join(from), &tree.join(to))?;
    }
    let others = release.folder.join("THIRD-PARTY.txt");
    put(&others, &tree.join("usr/share/doc/marline/THIRD-PARTY.txt"))?;
    for shelf in DOC_SECTIONS {
        let to = tree.join("usr/share/doc/marline").join(shelf);
        copy_all(&release.root.join("docs").join(shelf), &to, "md")?;
    }
    for (from, to) in [("packaging", "system"), ("packaging/user", "user")] {
        let to = tree.join("usr/lib/systemd").join(to);
        copy_all(&release.root.join(from), &to, "service")?;
    }
    pages(release, program, &tree)
}

/// Writes the program's generated files: compressed manual pages, and completions.
fn pages(release: &Release, program: &Path, tree: &Path) -> TaskResult {
    let program = program.to_string_lossy();
    let man = tree.join("usr/share/man/man1");
    let man_name = man.to_string_lossy();
    run(&mut command(&release.root, &program, &["man", &man_name]))?;
    for page in files(&man)? {
        run(&mut command(&release.root, "gzip", &["-9n", &page.to_string_lossy()]))?;
    }
    for (shell, to) in COMPLETIONS {
        let script = output(&mut command(&release.root, &program, &["completions", shell]))?;
        let to = tree.join(to);
        make_parent(&to)?;
        fs::write(&to, script).map_err(|error| format!("{}: {error}", to.display()))?;
    }
    Ok(())
}

/// The files of a folder, sorted.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.is_file());
    files.sort();
    Ok(files)
}

fn copy_all(from: &Path, to: &Path, ending: &str) -> TaskResult {
    for file in files(from)? {
        if file.extension().is_some_and(|end| end == ending) {
            put(&file, &to.join(file.file_name().unwrap_or_default()))?;
        }
    }
    Ok(())
}

/// Copies a file, and creates its destination's folder.
pub(super) fn put(from: &Path, to: &Path) -> TaskResult {
    make_parent(to)?;
    fs::copy(from, to).map_err(|error| format!("{}: {error}", from.display()))?;
    Ok(())
}

fn make_parent(of: &Path) -> TaskResult {
    let parent = of.parent().unwrap_or(of);
    fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))
}
