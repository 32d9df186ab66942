//! Comparison of Marline with its alternatives on typical user workloads: README.md.
#![forbid(unsafe_code)]

mod clock;
mod dial;
mod duplicator;
mod measure;
mod noq_tunnel;
mod observe;
mod protocol;
mod report;
mod results;
mod run;
mod server;
mod stats;
mod systems;
mod workload;
mod world;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail, ensure};

use measure::{MEMORY, TASKS, Task};
use results::Results;
use run::Job;
use systems::{ALL, Programs, System};

const USAGE: &str = "\
usage: cargo xtask rivals [ROW..] [--system NAME].. [--runs N] [--parallel N] [--write] \
[--condition TEXT]

Measures rows (default: all) and prints them. Rows: death10 death30 loaded loss bulk page call signaled idle
cpu memory. --write stores the results in lab/rivals/results.json, next to those of other rows and systems, and writes
docs/compare.md and the README's table. --parallel: number of worlds in parallel (8; cpu always runs alone).
--condition: other load on the machine, for the page. `cargo xtask rivals page-only --write` writes only the page and
the README's table.

`cargo xtask rivals world NAME` starts one system and prints its namespaces, for other programs, until standard
input ends; the input lines `down` and `up` silence and restore WiFi.
";

/// Arguments of a measurement.
struct Arguments {
    rows: Vec<String>,
    systems: Vec<String>,
    runs: u64,
    parallel: usize,
    write: bool,
    condition: String,
    root: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = arguments.split_first() else { bail!("{USAGE}") };
    let threads = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let certificate = rest.first().map_or("", String::as_str);
    match command.as_str() {
        "client" => threads.block_on(workload::run(rest)),
        "server" => threads.block_on(server::serve()),
        "noq-server" => threads.block_on(noq_tunnel::serve(certificate)),
        "noq-client" => threads.block_on(noq_tunnel::connect(certificate)),
        "duplicator-client" => threads.block_on(duplicator::client()),
        "duplicator-server" => threads.block_on(duplicator::server()),
        "measure" => measure(&parse(rest)?),
        _ => bail!("{USAGE}"),
    }
}

fn parse(arguments: &[String]) -> anyhow::Result<Arguments> {
    let mut parsed = Arguments {
        rows: Vec::new(),
        systems: Vec::new(),
        runs: 5,
        parallel: 8,
        write: false,
        condition: "nothing else running".into(),
        root: PathBuf::from("."),
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--system" => parsed.systems.push(value()?.clone()),
            "--runs" => parsed.runs = value()?.parse()?,
            "--parallel" => parsed.parallel = value()?.parse()?,
            "--condition" => parsed.condition.clone_from(value()?),
            "--root" => parsed.root = PathBuf::from(value()?),
            "--write" => parsed.write = true,
            row if !row.starts_with('-') => parsed.rows.push(row.to_owned()),
            _ => bail!("{USAGE}"),
        }
    }
    Ok(parsed)
}

fn tasks(rows: &[String]) -> anyhow::Result<Vec<Task>> {
    let all = || TASKS.into_iter().chain([MEMORY]);
    for row in rows {
        ensure!(
            row == "page-only" || all().any(|task| task.row == row),
            "unknown row `{row}`\n\n{USAGE}"
        );
    }
    Ok(all().filter(|task| rows.is_empty() || rows.iter().any(|row| row == task.row)).collect())
}

/// Returns the systems that can be measured here, and prints a warning for each of the others.
fn present(
    names: &[String],
    programs: &Programs,
    results: &mut Results,
) -> anyhow::Result<Vec<System>> {
    for name in names {
        ensure!(ALL.iter().any(|system| system.name == name), "unknown system `{name}`");
    }
    let mut present = Vec::new();
    for system in ALL
        .into_iter()
        .filter(|system| names.is_empty() || names.iter().any(|name| name == system.name))
    {
        match system.version(programs) {
            Ok(version) => {
                println!("{}: {version}", system.name);
                results.versions.insert(system.name.into(), version);
                results.skipped.remove(system.name);
                present.push(system);
            }
            Err(why) => {
                println!("SKIPPED {}: {why:#}", system.name);
                results.skipped.insert(system.name.into(), format!("{why:#}"));
            }
        }
    }
    Ok(present)
}

/// Runs one system for other programs.
fn run_until_stdin_ends(name: &str, programs: &Programs) -> anyhow::Result<()> {
    let system = ALL.into_iter().find(|system| system.name == name).context("unknown system")?;
    let logs = std::env::temp_dir().join("marline-rivals");
    let (mut world, _) = run::start(system, Default::default(), 1, programs, &logs)?;
    for side in [world::Side::Client, world::Side::Server] {
        println!("{side:?}: ip netns exec {} sh", world.namespace(side));
    }
    println!("logs: {}", world.dir.display());
    // Print its ports for the other programs.
    world.neutral.clear();
    for line in std::io::stdin().lines() {
        match line?.trim() {
            "down" => world.set_wifi_silent(true)?,
            "up" => world.set_wifi_silent(false)?,
            other => println!("`{other}`: expected down or up"),
        }
    }
    world.system.clear();
    Ok(())
}

fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    let root = arguments.root.canonicalize()?;
    let programs = Programs {
        marline: root.join("target/release/marline").to_string_lossy().into_owned(),
        lab: root.join("target/release/marline-lab").to_string_lossy().into_owned(),
        rivals: std::env::current_exe()?.to_string_lossy().into_owned(),
        mqvpn: std::env::var("MQVPN").unwrap_or_else(|_| "mqvpn".into()),
    };
    if let [world, name] = &arguments.rows[..]
        && world == "world"
    {
        return run_until_stdin_ends(name, &programs);
    }
    let file = root.join("lab/rivals/results.json");
    let mut kept = Results::read(&file)?;
    if arguments.rows != ["page-only"] {
        let mut new = Results::default();
        let systems = present(&arguments.systems, &programs, &mut new)?;
        let tasks = tasks(&arguments.rows)?;
        let mut jobs = Vec::new();
        for run in 1..=arguments.runs {
            for task in &tasks {
                let fit = systems.iter().filter(|system| task.applies(**system));
                jobs.extend(fit.map(|system| Job { task: *task, system: *system, run }));
            }
        }
        let logs = std::env::temp_dir().join("marline-rivals");
        run::all(&jobs, &programs, arguments.parallel, &logs, &mut new);
        let date = Command::new("date").arg("+%-d %B %Y").output()?.stdout;
        let condition = format!(
            "{}, {} runs, {}",
            String::from_utf8_lossy(&date).trim(),
            arguments.runs,
            arguments.condition
        );
        kept.replace(new, &tasks, &condition);
        println!("\n{}", report::table(&kept));
    }
    if arguments.write {
        kept.write(&file)?;
        std::fs::write(root.join("docs/compare.md"), report::page(&kept))?;
        let readme = root.join("README.md");
        let text = report::readme(&kept, &std::fs::read_to_string(&readme)?)?;
        std::fs::write(readme, text)?;
    }
    Ok(())
}
