//! Baseline of the counts: a TOML table, and a page that shows it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::TaskResult;

const FILE: &str = "docs/research/bench.toml";
const PAGE: &str = "docs/research/bench.md";
const BEGIN: &str = "<!-- bench: generated -->\n";
const END: &str = "<!-- bench: end -->";
/// Difference in percent within which a count keeps the baseline's entry.
const UNCHANGED_PERCENT: f64 = 0.1;

/// Counts, their machine, and the reasons for their changes.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Baseline {
    #[serde(flatten)]
    pub(super) machine: Machine,
    #[serde(default, rename = "path")]
    pub(super) paths: BTreeMap<String, Entry>,
}

/// Factors other than the code that affect the counts.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub(super) struct Machine {
    /// The compiler.
    pub(super) rustc: String,
    /// Architecture, and the vector extensions reported by valgrind, from which programs select code.
    pub(super) processor: String,
    pub(super) valgrind: String,
    /// The C library, whose `memcpy` is part of the counts.
    pub(super) libc: String,
}

/// A path.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(super) struct Entry {
    pub(super) instructions: f64,
    /// Unit of the count.
    pub(super) per: String,
    /// Reason for the last change.
    pub(super) why: String,
}

impl Machine {
    fn fields(&self) -> [(&'static str, &str); 4] {
        [
            ("rustc", &self.rustc),
            ("processor", &self.processor),
            ("valgrind", &self.valgrind),
            ("libc", &self.libc),
        ]
    }

    pub(super) fn differences(&self, now: &Machine) -> Vec<String> {
        let pairs = self.fields().into_iter().zip(now.fields());
        let differ = pairs.filter(|((_, known), (_, now))| known != now);
        differ
            .map(|((name, known), (_, now))| format!("{name} is {now}; the baseline has {known}"))
            .collect()
    }

    /// Fails for a different compiler or processor, whose counts are not comparable. The versions of valgrind and the
    /// C library have an effect far below the tolerance.
    pub(super) fn check_comparable(&self, now: &Machine) -> TaskResult {
        if (&self.rustc, &self.processor) == (&now.rustc, &now.processor) {
            return Ok(());
        }
        Err("the baseline was recorded with a different compiler or processor, so counts cannot be \
            compared. After a compiler update, first run cargo xtask bench --bless --why 'rustc ...', \
            then make other changes"
            .to_owned())
    }
}

impl Baseline {
    /// Reads the baseline of the tree. Empty without a file.
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let file = root.join(FILE);
        if !file.exists() {
            return Ok(Baseline::default());
        }
        let text = fs::read_to_string(&file).map_err(|error| format!("{FILE}: {error}"))?;
        toml::from_str(&text).map_err(|error| format!("{FILE}: {error}"))
    }

    /// Returns the baseline with these counts. Unchanged counts keep their reason, and changed counts get the new one.
    pub(super) fn update_baseline(
        &self,
        machine: Machine,
        mut paths: BTreeMap<String, Entry>,
        why: &str,
    ) -> Baseline {
        for (name, entry) in &mut paths {
            let known = self.paths.get(name).filter(|known| known.per == entry.per);
            let change = known.map(|known| (entry.instructions / known.instructions - 1.0) * 100.0);
            match (known, change) {
                (Some(known), Some(change)) if change.abs() < UNCHANGED_PERCENT => {
                    entry.clone_from(known)
                }
                (_, change) => {
                    let change = change.map_or(String::new(), |change| format!("{change:+.1} %: "));
                    entry.why = change + &why.replace(['"', '\\'], "'").replace('|', "/");
                }
            }
        }
        Baseline { machine, paths }
    }

    pub(super) fn write(&self, root: &Path) -> TaskResult {
        let save = |name: &str, text: String| {
            fs::write(root.join(name), text).map_err(|error| format!("{name}: {error}"))
        };
        save(PAGE, self.page(root)?)?;
        save(FILE, self.toml())
    }

    fn toml(&self) -> String {
        let mut text =
            "# Written by `cargo xtask bench --bless --why '...'`; bench.md shows the counts.\n"
                .to_owned();
        for (name, value) in self.machine.fields() {
            text += &format!("{name} = \"{value}\"\n");
        }
        for (name, Entry { instructions, per, why }) in &self.paths {
            text += &format!(
                "\n[path.\"{name}\"]\ninstructions = {instructions:.1}\nper = \"{per}\"\nwhy = \
                    \"{why}\"\n"
            );
        }
        text
    }

    /// Returns the page with this baseline's table between its markers.
    fn page(&self, root: &Path) -> Result<String, String> {
        let text =
            fs::read_to_string(root.join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
        let marks = text.split_once(BEGIN).and_then(|(before, rest)| {
            let (_, after) = rest.split_once(END)?;
            Some(format!("{before}{BEGIN}{}{END}{after}", self.markdown()))
        });
        marks.ok_or_else(|| format!("{PAGE}: the markers are missing"))
    }

    fn markdown(&self) -> String {
        let Machine { rustc, processor, valgrind, libc } = &self.machine;
        let mut lines = format!(
            "rustc {rustc}, {processor}, valgrind {valgrind}, {libc}.\n\n\
             | path | instructions | per |\n|---|---:|---|\n"
        );
        for (name, Entry { instructions, per, .. }) in &self.paths {
            lines += &format!("| `{name}` | {} | {per} |\n", group_digits(*instructions));
        }
        lines
    }
}

/// Checks that the page shows the baseline.
pub(super) fn check_page(root: &Path, known: &Baseline) -> TaskResult {
    let shown = fs::read_to_string(root.join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    if known.page(root)? == shown {
        return Ok(());
    }
    Err(format!(
        "{PAGE} differs from {FILE}: run cargo xtask bench --bless --why '...' to write both"
    ))
}

/// Formats a number: one decimal below a thousand, otherwise whole with commas.
fn group_digits(number: f64) -> String {
    if number < 1_000.0 {
        return format!("{number:.1}");
    }
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(instructions: f64) -> BTreeMap<String, Entry> {
        let entry = Entry { instructions, per: "segment".to_owned(), why: String::new() };
        BTreeMap::from([("segment_out.one".to_owned(), entry)])
    }

    #[test]
    fn a_reason_is_kept_with_the_changed_path() {
        let first =
            Baseline::default().update_baseline(Machine::default(), paths(1_000.0), "first");
        let same = first.update_baseline(Machine::default(), paths(1_000.4), "second");
        assert_eq!(same.paths, first.paths);
        let more = same.update_baseline(Machine::default(), paths(1_050.0), "a \"new\" field");
        let read: Baseline = toml::from_str(&more.toml()).unwrap();
        assert_eq!(read.paths["segment_out.one"].why, "+5.0 %: a 'new' field");
        assert!(read.markdown().contains("| `segment_out.one` | 1,050 | segment |"));
    }

    #[test]
    fn other_compilers_are_refused_and_other_libraries_accepted() {
        let known = Machine { rustc: "1.95".to_owned(), ..Machine::default() };
        let library = Machine { libc: "x".to_owned(), ..known.clone() };
        assert!(known.check_comparable(&library).is_ok());
        assert_eq!(known.differences(&library).len(), 1);
        assert!(known.check_comparable(&Machine::default()).is_err());
    }

    #[test]
    fn the_page_shows_the_baseline() {
        let root = crate::workspace_root();
        check_page(&root, &Baseline::read(&root).unwrap()).unwrap();
    }
}
