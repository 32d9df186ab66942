//! Flame graphs of benchmarks with real sockets, and of two shards in memory: CPU time in the kernel and in all
//! programs of a benchmark.
//!
//! `perf` samples the row's command with all processes that it starts, and inferno's programs draw the samples. The
//! build has frame pointers and no link-time optimization, so that functions are distinguished; its results differ from
//! those of a release and are not shown.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::TaskResult;
use crate::run::{command, display_command, output, run};

/// Row names with the arguments for cargo and for the program.
const ROWS: &[(&str, [&str; 6], &[&str])] = &[
    ("bulk", ["run", "--release", "-p", "marline", "--example", "bulk"], &[]),
    ("echo", ["run", "--release", "-p", "marline", "--example", "echo"], &[]),
    ("relay", PROXIED, &["relay"]),
    ("requests", PROXIED, &["requests"]),
    ("churn", PROXIED, &["churn"]),
    ("served", PROXIED, &["served"]),
    ("crowd", PROXIED, &["crowd"]),
    ("silent", PROXIED, &["silent"]),
    ("up", ["bench", "-q", "-p", "marline-cli", "--bench", "whole_machine"], &[]),
    ("shards", ["bench", "-q", "-p", "marline-core", "--bench", "memory"], &["shards"]),
];
const PROXIED: [&str; 6] = ["bench", "-q", "-p", "marline-cli", "--bench", "proxied"];

/// Directory for pictures, samples and the build with frame pointers.
const FOLDER: &str = "target/flames";
/// Samples per second and processor: not a divisor of common timer rates.
const SAMPLES_PER_S: &str = "499";
/// Minimum width of a frame in percent of the picture. Narrower frames would make up most of the file.
const MIN_FRAME_PERCENT: &str = "0.4";
/// Programs left out of the profile, because they only build or launch the benchmark.
const IGNORED_PROGRAMS: [&str; 6] = ["cargo", "perf", "perf-exec", "rustc", "ld", "cc"];
/// Number of rows in the table of programs.
const SHOWN_PROGRAMS: usize = 6;
/// Number of rows in the table of functions.
const SHOWN_FUNCTIONS: usize = 12;

/// Draws the named rows, or all of them, into `target/flames`.
pub(crate) fn draw(root: &Path, wanted: &[String]) -> TaskResult {
    if let Some(unknown) = wanted.iter().find(|name| ROWS.iter().all(|(row, ..)| row != name)) {
        let known: Vec<&str> = ROWS.iter().map(|(name, ..)| *name).collect();
        return Err(format!("unknown row `{unknown}`; known: {}", known.join(", ")));
    }
    for (program, whence) in [
        ("perf", "Debian's linux-perf"),
        ("inferno-collapse-perf", "cargo install inferno"),
        ("inferno-flamegraph", "cargo install inferno"),
    ] {
        let mut asked = Command::new(program);
        asked.arg("--help").stdout(Stdio::null()).stderr(Stdio::null());
        asked
            .status()
            .map_err(|error| format!("cannot run {program}: {error} (install: {whence})"))?;
    }
    let folder = root.join(FOLDER);
    fs::create_dir_all(&folder).map_err(|error| format!("{FOLDER}: {error}"))?;
    for (name, what, arguments) in ROWS {
        if wanted.is_empty() || wanted.iter().any(|word| word == name) {
            let stacks = sample_row(root, &folder, name, what, arguments)?;
            let picture = folder.join(format!("{name}.svg"));
            fs::write(&picture, draw_graph(root, name, &stacks)?)
                .map_err(|error| format!("{}: {error}", picture.display()))?;
            print!("== {name}: {FOLDER}/{name}.svg\n{}", largest(&stacks));
        }
    }
    Ok(())
}

/// Cargo with a separate build that has frame pointers.
fn cargo(root: &Path, program: &str, arguments: &[&str]) -> Command {
    let mut cargo = command(root, program, arguments);
    cargo.env("CARGO_TARGET_DIR", root.join(FOLDER)).env("CARGO_PROFILE_RELEASE_LTO", "off");
    cargo.env("CARGO_PROFILE_BENCH_LTO", "off").env("RUSTFLAGS", "-Cforce-frame-pointers=yes");
    for profile in ["RELEASE", "BENCH"] {
        cargo.env(format!("CARGO_PROFILE_{profile}_CODEGEN_UNITS"), "16");
        cargo.env(format!("CARGO_PROFILE_{profile}_STRIP"), "none");
    }
    cargo
}

/// Runs a row under `perf`. Returns a line for each stack, with its nanoseconds.
fn sample_row(
    root: &Path,
    folder: &Path,
    name: &str,
    what: &[&str; 6],
    arguments: &[&str],
) -> Result<String, String> {
    let [task, rest @ ..] = what;
    let mut build = match *task {
        "run" => cargo(root, "cargo", &[&["build"], &rest[..]].concat()),
        _ => cargo(root, "cargo", &[&what[..], &["--no-run"]].concat()),
    };
    run(&mut build)?;
    let data = folder.join(format!("{name}.data")).to_string_lossy().into_owned();
    let perf = ["record", "-q", "-o", &data, "-e", "cpu-clock", "-F", SAMPLES_PER_S];
    let perf =
        [&perf[..], &["--call-graph", "fp", "--", "cargo"], what, &["--"], arguments].concat();
    println!("== {name}: cargo {} {}", what.join(" "), arguments.join(" "));
    run(cargo(root, "perf", &perf).stdout(Stdio::null()))?;
    let mut script = command(root, "perf", &["script", "-i", &data]);
    let script = script.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut running =
        script.spawn().map_err(|error| format!("{}: {error}", display_command(script)))?;
    let frames = running.stdout.take().ok_or("cannot read the output of perf script")?;
    let stacks = output(command(root, "inferno-collapse-perf", &["-q"]).stdin(frames));
    running.wait().map_err(|error| format!("perf script: {error}"))?;
    fs::remove_file(&data).map_err(|error| format!("{data}: {error}"))?;
    let takes_part = |line: &&str| {
        let program = line.split(';').next().unwrap_or_default();
        !IGNORED_PROGRAMS.contains(&program)
    };
    Ok(stacks?.lines().filter(takes_part).map(|line| format!("{line}\n")).collect())
}

fn draw_graph(root: &Path, name: &str, stacks: &str) -> Result<String, String> {
    let file = root.join(FOLDER).join(format!("{name}.stacks"));
    fs::write(&file, stacks).map_err(|error| format!("{}: {error}", file.display()))?;
    let title = format!("{name}: CPU time of all programs");
    let file = file.to_string_lossy();
    let arguments = ["--title", &title, "--minwidth", MIN_FRAME_PERCENT, "--hash", &file];
    output(&mut command(root, "inferno-flamegraph", &arguments))
}

/// Tables of the programs and innermost functions with the most CPU time.
fn largest(stacks: &str) -> String {
    let (mut programs, mut functions) = (BTreeMap::new(), BTreeMap::new());
    let mut all = 0_u64;
    for (stack, count) in stacks.lines().filter_map(|line| line.rsplit_once(' ')) {
        let count: u64 = count.parse().unwrap_or(0);
        let mut frames = stack.split(';');
        *programs.entry(frames.next().unwrap_or_default()).or_insert(0) += count;
        *functions.entry(frames.next_back().unwrap_or("?")).or_insert(0) += count;
        all += count;
    }
    let table = |counts: BTreeMap<&str, u64>, shown: usize| -> String {
        let mut rows: Vec<(&str, u64)> = counts.into_iter().collect();
        rows.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
        let row = |(name, count): &(&str, u64)| {
            format!("{:5.1} %  {name}\n", *count as f64 / all.max(1) as f64 * 100.0)
        };
        rows.iter().take(shown).map(row).collect()
    };
    let seconds = all as f64 / 1e9;
    format!(
        "{seconds:.1} s of CPU time, by program:\n{}by function, excluding called functions:\n{}",
        table(programs, SHOWN_PROGRAMS),
        table(functions, SHOWN_FUNCTIONS)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_summed_by_program_and_by_innermost_function() {
        let stacks =
            "marline;main;send;copy 300000000\nnginx;send 100000000\nmarline;copy 600000000\n";
        let text = largest(stacks);
        assert!(text.starts_with("1.0 s of CPU time"), "{text}");
        assert!(text.contains(" 90.0 %  marline\n 10.0 %  nginx\n"), "{text}");
        assert!(text.contains(" 90.0 %  copy\n 10.0 %  send\n"), "{text}");
    }
}
