//! Allowed dependencies between crates.
//!
//! ```text
//! wire, time <- policy <- algos <- research        policy <- core, datagram <- io        io, algos <- marline <- proxy
//! time <- link <- research        core, datagram, link <- sim        io, link <- emulator
//! core <- qlog
//! sim, emulator, research, marline, qlog <- lab <- papers      proxy <- tun
//! tun, dashboard, research, emulator, qlog <- cli      papers, cli <- lab-cli
//! ```
//! Allowed dependencies are transitive: a crate may depend on all crates below its allowed crates. The core never
//! depends on algos, sim or io, so it does not depend on any policy or driver. Dev-dependencies are not restricted:
//! tests of the core use real policies.

use std::collections::BTreeSet;
use std::path::Path;

use crate::TaskResult;
use crate::manifest::{self, Crate};
use crate::run::{command, output};

/// Crates, each with the crates directly below it.
const LAYERS: &[(&str, &[&str])] = &[
    ("marline-time", &[]),
    ("marline-wire", &[]),
    ("marline-policy", &["marline-time", "marline-wire"]),
    ("marline-algos", &["marline-policy"]),
    ("marline-research", &["marline-algos", "marline-link"]),
    ("marline-core", &["marline-policy"]),
    ("marline-datagram", &["marline-policy"]),
    ("marline-qlog", &["marline-core"]),
    ("marline-link", &["marline-time"]),
    ("marline-sim", &["marline-core", "marline-datagram", "marline-link"]),
    ("marline-io", &["marline-core", "marline-datagram"]),
    ("marline-emulator", &["marline-io", "marline-link"]),
    ("marline", &["marline-io", "marline-algos"]),
    (
        "marline-lab",
        &["marline-sim", "marline-emulator", "marline-research", "marline", "marline-qlog"],
    ),
    ("marline-proxy", &["marline"]),
    ("marline-tun", &["marline-proxy"]),
    ("marline-papers", &["marline-lab"]),
    ("marline-python", &["marline-lab"]),
    ("marline-dashboard", &["marline"]),
    (
        "marline-cli",
        &[
            "marline-tun",
            "marline-dashboard",
            "marline-research",
            "marline-emulator",
            "marline-qlog",
        ],
    ),
    ("marline-lab-cli", &["marline-papers", "marline-cli"]),
    ("marline-testkit", &["marline-sim", "marline-algos"]),
    ("marline-interop", &["marline-lab", "marline-testkit"]),
    ("packetdrill-adapter", &["marline-core", "marline-algos"]),
    ("marline-rivals", &["marline"]),
    ("xtask", &[]),
];

/// Test crates, on which only tests and other test crates may depend.
const TEST_CRATES: &[&str] =
    &["marline-testkit", "marline-interop", "packetdrill-adapter", "xtask"];

/// Pure crates: no clock, no system call, no global state.
pub(crate) const PURE_CRATES: &[&str] = &[
    "marline-time",
    "marline-wire",
    "marline-policy",
    "marline-algos",
    "marline-research",
    "marline-core",
    "marline-datagram",
    "marline-link",
    "marline-sim",
    "marline-testkit",
];

/// External crates that a pure crate may use. Each must neither read the clock nor draw random numbers nor do I/O;
/// a new one needs a review.
const PURE_ALLOWED_CRATES: &[&str] = &["flate2", "hmac", "rand_pcg", "serde", "sha2"];

/// Maximum number of crates compiled for the library without features, excluding itself.
const MAX_LIBRARY_CRATES: usize = 36;

/// Crates that the library without features must not depend on: link models, crates for files and figures only,
/// and procedural macros, which take longer to compile than all of Marline's crates.
const FORBIDDEN_IN_LIBRARY: &[&str] =
    &["marline-link", "marline-emulator", "flate2", "hdrhistogram", "syn", "proc-macro2"];

/// Fails with a list of the dependencies that violate the layering, or if the library has too many crates.
pub(crate) fn check(root: &Path) -> TaskResult {
    let crates = manifest::workspace_crates(root)?;
    let mut wrong: Vec<String> = crates.iter().flat_map(violations).collect();
    // Without this, the colors that CI enables for cargo would hide the marks of repeated crates.
    let tree = ["tree", "--color", "never", "-p", "marline", "-e", "normal", "--prefix", "none"];
    let printed = output(&mut command(root, "cargo", &tree))?;
    let library = parse_crate_tree(&printed);
    wrong.extend(excess(&library));
    if wrong.is_empty() {
        println!(
            "deps: {} crates, every dependency points down; {} crates in a program with the \
                library",
            crates.len(),
            library.len()
        );
        return Ok(());
    }
    Err(format!("{} forbidden dependencies\n{}", wrong.len(), wrong.join("\n")))
}

fn violations(of: &Crate) -> Vec<String> {
    let Some(allowed) = crates_below(&of.name) else {
        return vec![format!("{}: not in LAYERS; add it in xtask/src/deps.rs", of.name)];
    };
    let pure = PURE_CRATES.contains(&of.name.as_str());
    let judge = |dependency: &String| {
        let ours = LAYERS.iter().any(|(name, _)| name == dependency);
        if TEST_CRATES.contains(&dependency.as_str()) && !TEST_CRATES.contains(&of.name.as_str()) {
            Some(format!("{} -> {dependency}: allowed only as a dev-dependency", of.name))
        } else if ours && !allowed.contains(&dependency.as_str()) {
            Some(format!(
                "{} -> {dependency}: not allowed; allowed: {}",
                of.name,
                allowed.join(", ")
            ))
        } else if !ours && pure && !PURE_ALLOWED_CRATES.contains(&dependency.as_str()) {
            Some(format!(
                "{} -> {dependency}: a pure crate may only use {PURE_ALLOWED_CRATES:?}",
                of.name
            ))
        } else {
            None
        }
    };
    of.dependencies.iter().filter_map(judge).collect()
}

/// Names and versions in the output of `cargo tree` without a prefix.
fn parse_crate_tree(tree: &str) -> BTreeSet<&str> {
    let named = |line: &'_ str| line.trim_end_matches(" (*)").split(" (").next().map(str::len);
    tree.lines()
        .filter_map(|line| Some(line.get(..named(line)?)?.trim()))
        .filter(|n| !n.is_empty())
        .collect()
}

fn excess(library: &BTreeSet<&str>) -> Vec<String> {
    let name = |known: &str| known.split(' ').next().unwrap_or_default().to_owned();
    let mut wrong: Vec<String> = library
        .iter()
        .map(|known| name(known))
        .filter(|name| FORBIDDEN_IN_LIBRARY.contains(&name.as_str()))
        .map(|name| format!("marline must not depend on {name}"))
        .collect();
    if library.len() > MAX_LIBRARY_CRATES {
        wrong.push(format!(
            "marline depends on {} crates, at most {MAX_LIBRARY_CRATES} allowed",
            library.len()
        ));
    }
    wrong
}

/// All crates below `name`, or `None` for an unknown crate.
fn crates_below(name: &str) -> Option<Vec<&'static str>> {
    let (_, direct) = LAYERS.iter().find(|(known, _)| *known == name)?;
    let mut all: Vec<&'static str> = direct.to_vec();
    for next in direct.iter().filter_map(|next| crates_below(next)) {
        all.extend(next);
    }
    all.sort_unstable();
    all.dedup();
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(manifest: &str) -> Vec<String> {
        let table: toml::Table = manifest.parse().expect("valid TOML");
        violations(&manifest::parse(Path::new("."), &table).expect("a package"))
    }

    #[test]
    fn the_core_depends_on_no_algorithm_and_no_driver() {
        for above in ["algos", "sim", "io", "link", "testkit"] {
            let manifest = format!(
                "[package]\nname = 'marline-core'\n[dependencies]\n\
                 marline-time.workspace = true\nmarline-{above}.workspace = true"
            );
            assert_eq!(wrong(&manifest).len(), 1, "{above}");
        }
    }

    #[test]
    fn the_library_is_counted_once_per_crate_and_version() {
        let tree = "marline v0.2.0 (/a)\nlibc v0.2.1\nlibc v0.2.1 (*)\nsyn v2.0.0 (proc-macro)\n\n";
        let library = parse_crate_tree(tree);
        assert_eq!(library, BTreeSet::from(["marline v0.2.0", "libc v0.2.1", "syn v2.0.0"]));
        assert_eq!(excess(&library), ["marline must not depend on syn"]);
        let many: Vec<String> = (0..37).map(|n| format!("c{n} v1")).collect();
        assert_eq!(excess(&many.iter().map(String::as_str).collect()).len(), 1);
    }

    #[test]
    fn dev_dependencies_may_break_the_layering_rules() {
        let manifest = "[package]\nname = 'marline-core'\n[dependencies]\nsha2 = '1'\n\
                        [dev-dependencies]\nmarline-algos.workspace = true";
        assert_eq!(wrong(manifest), Vec::<String>::new());
    }

    #[test]
    fn a_pure_crate_must_not_depend_on_a_clock_indirectly() {
        let renamed = "[package]\nname = 'marline-sim'\n[dependencies]\nrt = { package = 'tokio' }";
        let target =
            "[package]\nname = 'marline-sim'\n[target.'cfg(unix)'.dependencies]\nlibc = '1'";
        assert_eq!((wrong(renamed).len(), wrong(target).len()), (1, 1));
    }

    #[test]
    fn an_unknown_crate_is_reported() {
        assert_eq!(wrong("[package]\nname = 'marline-new'").len(), 1);
    }

    #[test]
    fn the_crate_graph_has_no_cycle_and_no_unknown_name() {
        for (name, direct) in LAYERS {
            let below = crates_below(name).expect("known");
            assert!(!below.contains(name), "{name} depends on itself");
            for next in *direct {
                assert!(LAYERS.iter().any(|(known, _)| known == next), "{name} -> {next}");
            }
        }
    }
}
