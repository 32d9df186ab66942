//! Instruction counts of hot paths, taken with valgrind and compared with a baseline.
//!
//! The benches named `counted` contain the paths. gungraun runs each under callgrind and prints its counts. A
//! count does not depend on the machine's load and does not vary from run to run, so an increase of a few percent
//! is significant. See docs/research/bench.md.

mod baseline;
mod flame;
mod tools;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use self::baseline::{Baseline, Entry};
use crate::TaskResult;
use crate::run::{command, output};

/// Allowed increase over the baseline in percent.
const TOLERANCE_PERCENT: f64 = 3.0;
/// Directory of the harness's profiles, below the checkout.
const PROFILES: &str = "target/gungraun";
const BENCHES: &str = "bench -q -p marline-core -p marline-proxy --bench counted --";

const USAGE: &str = "\
usage: cargo xtask bench [NAME..]                counts, compared with the baseline \
(docs/research/bench.toml)
       cargo xtask bench --check                 fails if a count is more than 3 % above it
       cargo xtask bench --bless --why 'TEXT'    rewrites the baseline; TEXT is stored with each change
       cargo xtask bench --flame NAME..          draws flame graphs and names the largest costs
NAME is a path from the table, or a prefix of one: segment_out, segment_out.one";

/// Instruction count of a path.
#[derive(Clone, Debug, PartialEq)]
struct PathCount {
    /// Instructions per unit.
    instructions: f64,
    /// The unit: a segment, an ACK.
    unit: String,
    /// Profile.
    profile: PathBuf,
}

/// Counts by path name.
type Counts = BTreeMap<String, PathCount>;

enum Task {
    Show,
    Check,
    Bless { why: String },
    Flame,
}

/// Counts the paths, and prints, checks or stores the counts as requested.
pub(crate) fn run(root: &Path, arguments: &[String]) -> TaskResult {
    let (task, names) = read(arguments)?;
    let flame = matches!(task, Task::Flame);
    let counts = count(root, &names, flame)?;
    if flame {
        return flame::print(root, &counts);
    }
    let known = Baseline::read(root)?;
    let machine = tools::machine(root)?;
    print!("{}", table(&counts, &known));
    if !known.paths.is_empty() {
        for difference in known.machine.differences(&machine) {
            println!("differs from the baseline: {difference}");
        }
    }
    match task {
        Task::Bless { why } => {
            let new = known.update_baseline(machine, entries(&counts), &why);
            new.write(root)
        }
        Task::Check => {
            baseline::check_page(root, &known)?;
            known.machine.check_comparable(&machine)?;
            judge(&counts, &known)
        }
        Task::Show | Task::Flame => Ok(()),
    }
}

fn read(arguments: &[String]) -> Result<(Task, Vec<String>), String> {
    let mut names = Vec::new();
    let (mut task, mut why) = (Task::Show, None);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--check" => task = Task::Check,
            "--bless" => task = Task::Bless { why: String::new() },
            "--why" => why = words.next().cloned(),
            "--flame" => task = Task::Flame,
            name if !name.starts_with('-') => names.push(name.to_owned()),
            _ => return Err(format!("`{word}`\n{USAGE}")),
        }
    }
    let why = why.filter(|why| !why.trim().is_empty());
    let task = match (task, why) {
        (Task::Bless { .. }, Some(why)) => Task::Bless { why },
        (Task::Bless { .. }, None) => return Err(format!("--bless needs --why\n{USAGE}")),
        (_, Some(_)) => return Err(format!("--why requires --bless\n{USAGE}")),
        (task, None) => task,
    };
    let all = matches!(task, Task::Check | Task::Bless { .. });
    if all && !names.is_empty() {
        return Err(format!("this option does not take names: it applies to all paths\n{USAGE}"));
    }
    if names.is_empty() && matches!(task, Task::Flame) {
        return Err(format!("--flame needs a name\n{USAGE}"));
    }
    Ok((task, names))
}

/// Runs the benches.
fn count(root: &Path, names: &[String], flame: bool) -> Result<Counts, String> {
    let path = tools::path(root)?;
    let home = format!("--home={}", root.join(PROFILES).display());
    let words: Vec<&str> = BENCHES.split(' ').collect();
    let mut cargo = command(root, "cargo", &words);
    cargo.args(["--output-format=json", &home]).env("PATH", path);
    // An incremental build has different codegen units and therefore inlines different functions. Its counts would
    // differ by up to 14 % from those of the profile's setting.
    cargo.env("CARGO_INCREMENTAL", "0");
    if flame {
        cargo.env("MARLINE_FLAME", "1");
    }
    // The harness accepts only one pattern.
    if let [name] = names {
        cargo.arg(format!("*::{}*", name.replace('.', "::")));
    }
    let printed = output(&mut cargo)?;
    let mut counts = Counts::new();
    for line in printed.lines().filter(|line| line.starts_with('{')) {
        let (name, counted) = parse(line)?;
        if names.is_empty() || names.iter().any(|wanted| name.starts_with(wanted.as_str())) {
            counts.insert(name, counted);
        }
    }
    if counts.is_empty() { Err(format!("unknown path {}", names.join(", "))) } else { Ok(counts) }
}

/// Parses a line of the harness: the case and its instructions. A case's id consists of its variant, the divisor of
/// its count, and the unit: `by_turns_88_segments`.
fn parse(line: &str) -> Result<(String, PathCount), String> {
    let wrong = || format!("cannot parse the output of the harness: {line}");
    let value: serde_json::Value = serde_json::from_str(line).map_err(|_| wrong())?;
    let text = |key: &str| value.get(key)?.as_str();
    let total = value.pointer("/profiles/0/data/total/metrics/Ir/values/new");
    let total = total.and_then(serde_json::Value::as_f64).ok_or_else(wrong)?;
    let (function, id) = text("function_name").zip(text("id")).ok_or_else(wrong)?;
    let profile = text("output_dir").ok_or_else(wrong)?.into();
    let parts: Vec<&str> = id.rsplitn(3, '_').collect();
    let &[unit, number, variant] = parts.as_slice() else { return Err(wrong()) };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let unit = unit.strip_suffix('s').unwrap_or(unit).to_owned();
    let counted = PathCount { instructions: total / number, unit, profile };
    Ok((format!("{function}.{variant}"), counted))
}

fn entries(counts: &Counts) -> BTreeMap<String, Entry> {
    let entry = |counted: &PathCount| Entry {
        instructions: (counted.instructions * 10.0).round() / 10.0,
        per: counted.unit.clone(),
        why: String::new(),
    };
    counts.iter().map(|(name, counted)| (name.clone(), entry(counted))).collect()
}

fn change_percent(counted: &PathCount, entry: &Entry) -> f64 {
    (counted.instructions / entry.instructions - 1.0) * 100.0
}

fn table(counts: &Counts, known: &Baseline) -> String {
    let mut lines =
        format!("{:28} {:>14}  {:10} {:>10}\n", "path", "instructions", "per", "change");
    for (name, counted) in counts {
        let change = known
            .paths
            .get(name)
            .map_or("new".to_owned(), |entry| format!("{:+.2} %", change_percent(counted, entry)));
        let PathCount { instructions, unit, .. } = counted;
        lines += &format!("{name:28} {instructions:14.1}  {unit:10} {change:>10}\n");
    }
    lines
}

fn judge(counts: &Counts, known: &Baseline) -> TaskResult {
    let mut wrong = Vec::new();
    for (name, counted) in counts {
        let Some(entry) = known.paths.get(name) else {
            wrong.push(format!("{name}: not in the baseline"));
            continue;
        };
        let change = change_percent(counted, entry);
        if change > TOLERANCE_PERCENT {
            let (before, now) = (entry.instructions, counted.instructions);
            wrong.push(format!("{name}: {before:.1} -> {now:.1} per {}", counted.unit));
        } else if change < -TOLERANCE_PERCENT {
            println!("{name}: {:.1} % lower; run --bless to keep the improvement", -change);
        }
    }
    let gone = known.paths.keys().filter(|name| !counts.contains_key(*name));
    wrong.extend(gone.map(|name| format!("{name}: in the baseline but not counted")));
    if wrong.is_empty() {
        println!("bench: {} paths within {TOLERANCE_PERCENT} % of the baseline", counts.len());
        return Ok(());
    }
    Err(format!(
        "{}\nif the increase is justified, run: cargo xtask bench --bless --why 'REASON'",
        wrong.join("\n")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"function_name":"segment_out","id":"by_turns_88_segments","output_dir":"a/b",
        "profiles":[{"data":{"total":{"metrics":{"Ir":{"values":{"new":8800,"old":1}}}}}}]}"#;

    fn counts(instructions: f64) -> Counts {
        let counted = PathCount { instructions, unit: "segment".to_owned(), profile: "a/b".into() };
        Counts::from([("segment_out.by_turns".to_owned(), counted)])
    }

    #[test]
    fn a_case_names_its_divisor_and_its_unit() {
        let (name, counted) = parse(LINE).unwrap();
        assert_eq!(Counts::from([(name, counted)]), counts(100.0));
        assert!(parse(&LINE.replace("88_", "")).is_err());
        assert!(parse(&LINE.replace("Ir", "Dr")).is_err());
    }

    #[test]
    fn an_increase_above_three_percent_fails_and_a_decrease_passes() {
        let paths = entries(&counts(100.0));
        let known = Baseline { paths, ..Baseline::default() };
        assert!(judge(&counts(102.9), &known).is_ok());
        assert!(judge(&counts(50.0), &known).is_ok());
        assert!(judge(&counts(103.1), &known).is_err());
        assert!(judge(&counts(100.0), &Baseline::default()).is_err(), "not in the baseline");
        assert!(judge(&Counts::new(), &known).is_err(), "in the baseline only");
    }

    #[test]
    fn a_new_baseline_needs_a_reason() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(read(&words("--bless")).is_err() && read(&words("--bless --why")).is_err());
        assert!(read(&words("--why because")).is_err() && read(&words("--flame")).is_err());
        assert!(read(&words("--check segment_out")).is_err());
        let (task, names) = read(&words("--bless --why because")).unwrap();
        assert!(matches!(task, Task::Bless { why } if why == "because") && names.is_empty());
    }
}
