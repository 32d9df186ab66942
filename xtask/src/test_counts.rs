//! Numbers of tests that passed, failed and were skipped, over all test programs.

use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of printed reasons.
const MAX_REASONS: usize = 12;

/// Sums of cargo's lines `test result: ...`.
#[derive(Debug, Default)]
pub(crate) struct TestCounts {
    passed: u64,
    failed: u64,
    /// Number of these lines.
    programs: u64,
}

/// Skipped tests, each counted once, with their missing requirements.
#[derive(Debug, Default)]
pub(crate) struct Skipped {
    tests: usize,
    programs: BTreeSet<String>,
    other: BTreeSet<String>,
}

impl TestCounts {
    /// Adds the counts of a line of the log, if it has any.
    pub(crate) fn read(&mut self, line: &str) {
        let Some((_, rest)) = line.split_once("test result: ") else { return };
        let before = |word: &str| {
            let (number, _) = rest.split_once(word)?;
            number.rsplit(' ').next()?.parse::<u64>().ok()
        };
        let (Some(passed), Some(failed)) = (before(" passed;"), before(" failed;")) else { return };
        self.passed += passed;
        self.failed += failed;
        self.programs += 1;
    }

    /// Formats a summary line. `tools` is the text of .ci/install-tools, which is recommended if it installs a missing
    /// program.
    pub(crate) fn summary(&self, skipped: &Skipped, tools: &str, is_success: bool) -> String {
        if self.programs == 0 {
            return "no test ran".to_owned();
        }
        let mut text = match (self.failed, is_success) {
            (0, true) => String::new(),
            (0, false) => "a test program ended without a result, ".to_owned(),
            (failed, _) => format!("{failed} failed, "),
        };
        // The test harness counts skipped tests as passed.
        let passed = self.passed.saturating_sub(skipped.tests as u64);
        text += &format!("{passed} passed, {} skipped", skipped.tests);
        text + &skipped.reasons(tools)
    }
}

impl Skipped {
    /// Reads the file of lines that `marline_testkit::need` writes: program, test, kind, text.
    pub(crate) fn read(text: &str) -> Skipped {
        let mut tests = BTreeMap::new();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [program, test, kind, text] = fields[..] else { continue };
            // Only the first reason of each test is kept.
            tests.entry((program, test)).or_insert((kind, text));
        }
        let of = |wanted: &str| {
            let reasons =
                tests.values().filter(|(kind, _)| (*kind == "program") == (wanted == "program"));
            reasons.map(|(_, text)| (*text).to_owned()).collect()
        };
        Skipped { tests: tests.len(), programs: of("program"), other: of("other") }
    }

    fn reasons(&self, tools: &str) -> String {
        let mut parts = Vec::new();
        let is_brought = |name: &&String| {
            tools
                .split_whitespace()
                .any(|word| word.split_once(':').is_some_and(|(own, _)| own == *name))
        };
        let (brought, others): (Vec<&String>, Vec<&String>) =
            self.programs.iter().partition(is_brought);
        if !brought.is_empty() {
            let it = if brought.len() == 1 { "it" } else { "them" };
            parts.push(format!(
                " because of missing {} (.ci/install-tools installs {it})",
                listed(&brought)
            ));
        }
        if !others.is_empty() {
            parts.push(format!(" because of missing {}", listed(&others)));
        }
        if !self.other.is_empty() {
            parts.push(format!(" because: {}", listed(&self.other.iter().collect::<Vec<_>>())));
        }
        parts.join(",")
    }
}

fn listed(names: &[&String]) -> String {
    let mut text: Vec<String> =
        names.iter().take(MAX_REASONS).map(|name| (*name).clone()).collect();
    if names.len() > MAX_REASONS {
        text.push(format!("and {} others", names.len() - MAX_REASONS));
    }
    text.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOLS: &str = "wanted=(\n    cc:gcc tshark:tshark\n    nft:nftables\n)";

    fn counts(lines: &[&str]) -> TestCounts {
        let mut counts = TestCounts::default();
        lines.iter().for_each(|line| counts.read(line));
        counts
    }

    #[test]
    fn results_of_all_programs_are_added_up() {
        let counts = counts(&[
            "running 3 tests",
            "test a ... ok",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out",
            // With colors.
            "test result: \u{1b}[32mok\u{1b}[0m. 10 passed; 0 failed; 0 ignored; 0 measured",
            "test result: nonsense",
        ]);
        let none = counts.summary(&Skipped::default(), TOOLS, true);
        assert_eq!(none, "13 passed, 0 skipped");
        let crashed = counts.summary(&Skipped::default(), TOOLS, false);
        assert_eq!(crashed, "a test program ended without a result, 13 passed, 0 skipped");
    }

    #[test]
    fn failures_come_first_and_skipped_tests_have_not_passed() {
        let counts = counts(&["test result: FAILED. 8 passed; 2 failed; 0 ignored; 0 measured"]);
        let skipped = Skipped::read(
            "it-1\ta::b\tprogram\ttshark\nit-1\ta::b\tother\tneeds \
                root\nit-2\ta::b\tprogram\ttshark\n\
             it-2\ta::c\tprogram\tnft\nit-2\ta::d\tprogram\todd\nit-2\ta::e\tother\tneeds \
             root\ncut off",
        );
        assert_eq!(
            counts.summary(&skipped, TOOLS, false),
            "2 failed, 3 passed, 5 skipped because of missing nft, tshark (.ci/install-tools \
                installs them), because \
             of missing odd, because: needs root"
        );
        let one = Skipped::read("it-1\ta::b\tprogram\ttshark\n");
        assert!(counts.summary(&one, TOOLS, false).ends_with("(.ci/install-tools installs it)"));
    }

    #[test]
    fn a_build_that_fails_runs_no_test_and_reasons_are_bounded() {
        assert_eq!(
            counts(&["error: nope"]).summary(&Skipped::default(), TOOLS, false),
            "no test ran"
        );
        let many: String = (0..40).map(|n| format!("it\tt{n}\tother\treason {n}\n")).collect();
        let text = counts(&["test result: ok. 40 passed; 0 failed;"]).summary(
            &Skipped::read(&many),
            TOOLS,
            true,
        );
        assert!(
            text.starts_with("0 passed, 40 skipped because: ") && text.ends_with("and 28 others"),
            "{text}"
        );
    }
}
