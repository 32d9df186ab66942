//! List of passing scripts by name, which only grows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const HEAD: &str = "\
# Names of packetdrill scripts that pass; `cargo xtask packetdrill` fails when one of them does not.
# The scripts themselves are not part of this repository: see docs/research/packetdrill.md.
";

/// The list.
#[derive(Debug)]
pub(crate) struct Ratchet {
    path: PathBuf,
    names: BTreeSet<String>,
}

/// The name of a script: its path below `gtests/net`, or else below the given directory, preceded by that
/// directory's own name.
pub(crate) fn script_name(directory: &Path, script: &Path) -> String {
    const TREE: &str = "/gtests/net/";
    let full = script.canonicalize().unwrap_or_else(|_| script.to_path_buf());
    let text = full.to_string_lossy();
    if let Some(at) = text.find(TREE) {
        return text[at + TREE.len()..].to_owned();
    }
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_path_buf());
    let inside = full.strip_prefix(&directory).unwrap_or(&full);
    let own = directory.file_name().map(|name| name.to_string_lossy().into_owned());
    Path::new(&own.unwrap_or_default()).join(inside).to_string_lossy().into_owned()
}

impl Ratchet {
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        Ok(Ratchet { path: path.to_path_buf(), names: names(&text) })
    }

    /// Compares results with the list and prints new passing scripts, which `write` adds to the list. Returns true if
    /// all listed scripts pass.
    pub(crate) fn judge(mut self, results: &[(String, bool)], write: bool) -> Result<bool, String> {
        let failed: Vec<&str> = self.broken_scripts(results);
        let new: Vec<String> = self.newcomers(results);
        let passed = results.iter().filter(|(_, passed)| *passed).count();
        println!("# {passed} of {} pass", results.len());
        for name in &failed {
            println!("# FAILED although it is on the list of passing scripts: {name}");
        }
        for name in &new {
            println!("# passes but is not on the list: {name}");
        }
        let holds = failed.is_empty();
        if write && !new.is_empty() {
            self.names.extend(new);
            let lines: String = self.names.iter().map(|name| format!("{name}\n")).collect();
            fs::write(&self.path, format!("{HEAD}{lines}"))
                .map_err(|error| format!("{}: {error}", self.path.display()))?;
        }
        Ok(holds)
    }

    fn broken_scripts<'a>(&self, results: &'a [(String, bool)]) -> Vec<&'a str> {
        let broken = results.iter().filter(|(name, passed)| !passed && self.names.contains(name));
        broken.map(|(name, _)| name.as_str()).collect()
    }

    fn newcomers(&self, results: &[(String, bool)]) -> Vec<String> {
        let new = results.iter().filter(|(name, passed)| *passed && !self.names.contains(name));
        new.map(|(name, _)| name.clone()).collect()
    }
}

fn names(text: &str) -> BTreeSet<String> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratchet(text: &str) -> Ratchet {
        Ratchet { path: PathBuf::new(), names: names(text) }
    }

    #[test]
    fn a_listed_script_that_fails_breaks_the_ratchet() {
        let ratchet = ratchet("# head\ntcp/a.pkt\n\ntcp/b.pkt\n");
        let results = [
            ("tcp/a.pkt".to_owned(), false),
            ("tcp/c.pkt".to_owned(), false),
            ("tcp/d.pkt".to_owned(), true),
        ];
        assert_eq!(ratchet.broken_scripts(&results), ["tcp/a.pkt"]);
        assert_eq!(ratchet.newcomers(&results), ["tcp/d.pkt"]);
        assert_eq!(ratchet.judge(&results, false), Ok(false));
    }

    #[test]
    fn the_list_grows_on_request_and_keeps_scripts_not_run() {
        let file = format!("packetdrill-ratchet-{}", std::process::id());
        let path = std::env::temp_dir().join(file);
        fs::write(&path, "tcp/b.pkt\n").expect("written");
        let results = [("tcp/a.pkt".to_owned(), true)];
        let judged = Ratchet::read(&path).and_then(|ratchet| ratchet.judge(&results, true));
        assert_eq!(judged, Ok(true));
        let list = Ratchet::read(&path).expect("a list").names;
        assert_eq!(list, names("tcp/a.pkt\ntcp/b.pkt"));
        fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn names_begin_below_the_tree_or_with_the_directory() {
        let tree = Path::new("/x/gtests/net/tcp");
        assert_eq!(script_name(tree, &tree.join("close/a.pkt")), "tcp/close/a.pkt");
        let other = Path::new("/y/packetdrill");
        assert_eq!(script_name(other, &other.join("tcp_a.pkt")), "packetdrill/tcp_a.pkt");
    }
}
