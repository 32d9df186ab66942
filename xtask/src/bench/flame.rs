//! Largest costs of a path, and its flame graph.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::Counts;
use crate::TaskResult;
use crate::run::{command, output};

/// Number of rows printed per table.
const ROWS: usize = 10;
/// Maximum number of module names shown, as in `marline_core::connection::sender`.
const MAX_MODULE_DEPTH: usize = 3;

/// Prints each path's flame graph file and its largest costs.
pub(super) fn print(root: &Path, counts: &Counts) -> TaskResult {
    for (name, counted) in counts {
        let folder = root.join(&counted.profile);
        // The folder also has files from the previous run, and difference graphs.
        let file = |ending: &str| {
            let mut paths = fs::read_dir(&folder).ok()?.flatten().map(|entry| entry.path());
            paths.find(|path| {
                let name = path.to_string_lossy();
                name.ends_with(ending) && !name.contains(".diff")
            })
        };
        let missing = || format!("{}: no profile", folder.display());
        let profile = file(".out").ok_or_else(missing)?.to_string_lossy().into_owned();
        let annotate = ["--threshold=100", "--auto=no", &profile];
        let printed = output(&mut command(root, "callgrind_annotate", &annotate))?;
        let costs: Vec<Cost<'_>> = printed.lines().filter_map(cost).collect();
        let total: f64 = costs.iter().map(|cost| cost.instructions).sum();
        println!("== {name}: {:.1} instructions per {}", counted.instructions, counted.unit);
        if let Some(graph) = file(".total.Ir.flamegraph.svg") {
            println!("flame graph: {}", graph.strip_prefix(root).unwrap_or(&graph).display());
        }
        let modules = sum_costs(&costs, module);
        let shown = |(name, instructions): &(String, f64)| {
            format!("{name} {:.0} %", instructions * 100.0 / total)
        };
        let largest: Vec<String> = modules.iter().take(3).map(shown).collect();
        println!("largest: {}", largest.join(", "));
        println!("by module, including code inlined into its functions:");
        print_rows(&modules, total);
        println!("by function:");
        print_rows(&sum_costs(&costs, |cost| cost.function.to_owned()), total);
    }
    Ok(())
}

/// A row of `callgrind_annotate`: cost of a file's instructions within a function.
struct Cost<'a> {
    instructions: f64,
    function: &'a str,
    object: &'a str,
}

/// Parses `1,234 (12.3%)  file.rs:function [object]`.
fn cost(line: &str) -> Option<Cost<'_>> {
    let (number, rest) = line.trim_start().split_once(' ')?;
    let instructions = number.replace(',', "").parse().ok()?;
    let (_, place) = rest.split_once("%)")?;
    let (place, object) = match place.trim().rsplit_once(" [") {
        Some((place, object)) => (place, object.trim_end_matches(']')),
        None => (place.trim(), ""),
    };
    let (_, function) = place.split_once(':')?;
    Some(Cost { instructions, function, object })
}

/// Module of a function, or of a method's type.
fn module(cost: &Cost<'_>) -> String {
    if !cost.function.contains("::") {
        let library = cost.object.rsplit('/').next().unwrap_or_default();
        return if library.contains(".so") { library.to_owned() } else { cost.function.to_owned() };
    }
    let name = cost.function.trim_start_matches('<');
    let is_module = |part: &&str| part.starts_with(|first: char| first.is_lowercase());
    let parts: Vec<&str> = name.split("::").collect();
    let modules = parts.iter().copied().take_while(is_module).count();
    // If all names look like modules, the last one is the function.
    let modules = if modules == parts.len() { modules - 1 } else { modules };
    parts[..modules.min(MAX_MODULE_DEPTH)].join("::")
}

fn sum_costs(costs: &[Cost<'_>], key: impl Fn(&Cost<'_>) -> String) -> Vec<(String, f64)> {
    let mut sums = BTreeMap::<String, f64>::new();
    for cost in costs {
        *sums.entry(key(cost)).or_default() += cost.instructions;
    }
    let mut rows: Vec<(String, f64)> = sums.into_iter().collect();
    rows.sort_by(|a, b| b.1.total_cmp(&a.1));
    rows
}

fn print_rows(rows: &[(String, f64)], total: f64) {
    for (name, instructions) in rows.iter().take(ROWS) {
        println!("  {:5.1} %  {name}", instructions * 100.0 / total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module_of(line: &str) -> String {
        module(&cost(line).expect("a row"))
    }

    #[test]
    fn instructions_belong_to_their_functions_module() {
        let row =
            |place: &str| format!("1,234 ( 2.35%)  {place} [/x/target/release/deps/counted-1]");
        for (place, expected) in [
            ("a/checksum.rs:marline_wire::checksum::sum_bytes", "marline_wire::checksum"),
            ("zip.rs:marline_core::connection::Connection::emit_data", "marline_core::connection"),
            ("v.rs:marline_core::subflow::view::<impl a::B>::view", "marline_core::subflow::view"),
            ("w.rs:<marline_algos::a::b::C as d::E>::window", "marline_algos::a::b"),
        ] {
            assert_eq!(module_of(&row(place)), expected);
        }
        assert_eq!(module_of("20 ( 6.0%)  ./x.S:__memcpy_avx [/usr/lib/libc.so.6]"), "libc.so.6");
        assert!(cost("344,993 (100.0%)  PROGRAM TOTALS").is_none() && cost("Ir").is_none());
        assert_eq!(cost(&row("a:b::c")).map(|cost| cost.instructions), Some(1_234.0));
    }
}
