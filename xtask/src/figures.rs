//! Rows of the README's table of figures, with the command for each.
//!
//! Results are printed to standard output and copied manually into docs/research/figures.md, with the machine they
//! were measured on.

use std::path::Path;

use crate::run::{command, run, run_and_show};
use crate::{TaskResult, goals};

/// Row names with cargo arguments. A row may need several commands.
const ROWS: &[(&str, &str)] = &[
    ("cost", "run --release -q -p marline-sim --example numbers cost"),
    ("clean", "run --release -q -p marline-sim --example numbers clean"),
    ("loss", "run --release -q -p marline-sim --example numbers loss"),
    ("pairs", "run --release -q -p marline-sim --example numbers pairs"),
    ("death", "run --release -q -p marline-sim --example numbers death"),
    ("sleep", "run --release -q -p marline-sim --example numbers sleep"),
    ("worlds", "run --release -q -p marline-sim --example numbers worlds"),
    ("live", "test --release -q -p marline-cli --test it end_to_end:: -- --nocapture"),
    ("bulk", "run --release -q -p marline --example bulk"),
    ("memory", "bench -q -p marline-core --bench memory"),
    ("echo", "run --release -q -p marline --example echo"),
    ("connections", "bench -q -p marline-cli --bench connections"),
    ("proxied", "bench -q -p marline-cli --bench proxied"),
    ("streams", "bench -q -p marline-cli --bench proxied -- silent=100000"),
    ("up", "bench -q -p marline-cli --bench whole_machine"),
    ("packetdrill", "run -q -p xtask -- packetdrill"),
    ("links", "bench -q -p marline-emulator --bench tunnel"),
    ("handover", HANDOVER),
    ("captures", "test --release -q -p marline-sim --test it capture:: -- --nocapture"),
    ("captures", "test --release -q -p marline-testkit --test it tshark:: -- --nocapture"),
];

/// Name for all rows that compare Marline with similar software on a real system.
const SYSTEM: (&str, &[&str]) =
    ("system", &["bulk", "memory", "echo", "proxied", "streams", "up", "packetdrill"]);

/// Command that draws the README's figure into the tree.
const HANDOVER: &str = "run --release -q -p marline-lab --example handover -- \
    scenarios/handover.toml \
                        docs/start/handover.svg";

/// Measures the named rows, or all of them. Continues after a failed row, and fails at the end. Results with a goal are
/// compared with it at the end. A missed goal is not a failure.
pub(crate) fn measure(root: &Path, wanted: &[String]) -> TaskResult {
    let is_known = |name: &str| name == SYSTEM.0 || ROWS.iter().any(|(row, _)| *row == name);
    if let Some(unknown) = wanted.iter().find(|name| !is_known(name)) {
        let mut known: Vec<&str> = ROWS.iter().map(|(name, _)| *name).collect();
        known.dedup();
        let (system, rows) = (SYSTEM.0, SYSTEM.1.join(" "));
        let known = known.join(", ");
        return Err(format!("unknown row `{unknown}`; known: {known}, and {system} for {rows}"));
    }
    let is_system = wanted.iter().any(|word| word == SYSTEM.0);
    let mut failed = Vec::new();
    let mut figures = Vec::new();
    for (name, line) in ROWS {
        let is_wanted = wanted.is_empty()
            || wanted.iter().any(|word| word == name)
            || (is_system && SYSTEM.1.contains(name));
        if !is_wanted {
            continue;
        }
        println!("=== {name}: cargo {line}");
        let arguments: Vec<&str> = line.split(' ').collect();
        match run_and_show(&mut command(root, "cargo", &arguments)) {
            Ok(printed) => figures.extend(goals::figures(&printed)),
            Err(error) => {
                println!("{error}");
                failed.push(*name);
            }
        }
        if *name == "cost"
            && let Err(error) = compare_with_ns3(root)
        {
            println!("{error}");
            failed.push(*name);
        }
    }
    print!("{}", goals::verdict_lines(&figures));
    if failed.is_empty() { Ok(()) } else { Err(format!("failed rows: {}", failed.join(", "))) }
}

/// Runs the same transfer in ns-3, if it is installed.
fn compare_with_ns3(root: &Path) -> TaskResult {
    if !Path::new("/usr/include/ns3/core-module.h").exists() {
        println!("ns-3: not installed (Debian: libns3-dev, g++)");
        return Ok(());
    }
    let source = root.join("lab/marline-sim/examples/peers/ns3_bulk.cc");
    let program = std::env::temp_dir().join(format!("marline-ns3-bulk-{}", std::process::id()));
    let libraries = ["core", "network", "internet", "point-to-point", "applications"];
    let mut compiler = command(root, "g++", &["-O2", "-std=c++17", "-o"]);
    compiler.arg(&program).arg(source).args(libraries.map(|name| format!("-lns3-{name}")));
    let compiled = run(&mut compiler);
    let ran = compiled.and_then(|()| run(&mut command(root, &program.to_string_lossy(), &[])));
    let _ = std::fs::remove_file(&program);
    ran
}

#[cfg(test)]
mod tests {
    use super::ROWS;
    use crate::manifest::TREES;

    /// Checked here, because cargo accepts a filter that matches no test.
    #[test]
    fn rows_name_existing_test_modules() {
        let root = crate::workspace_root();
        let mut seen = 0;
        for line in ROWS.iter().map(|(_, line)| *line) {
            let words: Vec<&str> = line.split(' ').collect();
            let after =
                |word: &str| Some(words[words.iter().position(|w| *w == word)? + 1..].to_vec());
            let (Some(package), Some(program)) = (after("-p"), after("--test")) else { continue };
            let module = program[1].strip_suffix("::").expect("a module");
            let places = TREES.iter().flat_map(|tree| {
                let place = root.join(tree).join(package[0]).join("tests").join(program[0]);
                [format!("{module}.rs"), format!("{module}/mod.rs")].map(|file| place.join(file))
            });
            assert!(places.into_iter().any(|file| file.is_file()), "{line}");
            seen += 1;
        }
        assert!(seen >= 3);
    }
}
