//! Runner of packetdrill scripts against Marline, each in its own network namespace.
//!
//! ```text
//! PACKETDRILL=/path/to/packetdrill PKT_DIR=/path/to/scripts cargo xtask packetdrill [NAME..] [OPTIONS]
//! ```
//! `PKT_DIR` may list several directories separated by colons, and `PACKETDRILL` one program for each directory or one
//! for all.
//!
//! The program and the scripts are not part of this repository. The repository only contains a list of the *names* of
//! scripts that pass (`passing.txt`). If a script on the list fails, the run fails. A script that passes but is not on
//! the list is reported. Without the two variables, the runner prints a message and runs nothing.
#![forbid(unsafe_code)]

mod namespace;
mod ratchet;
mod shims;

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::namespace::{Outcome, Setting};
use crate::ratchet::Ratchet;

const USAGE: &str = "\
usage: PACKETDRILL=PROGRAM PKT_DIR=DIRECTORY packetdrill-runner [NAME..] [OPTIONS]

  NAME               only scripts whose path contains one of these
  --ip-version V     ipv4 (default), ipv4-mapped-ipv6 or ipv6
  --captures DIR     write the packets to DIR/NAME.pcapng
  --jobs N           scripts to run in parallel (default 1)
  --ratchet FILE     the list of passing scripts (default: the repository's)
  --write            add passing scripts to the list
  --why              show the full output of packetdrill for failing scripts
";

/// Options of the command line.
#[derive(Debug)]
struct Options {
    names: Vec<String>,
    ip_version: String,
    captures: Option<PathBuf>,
    jobs: usize,
    ratchet: Option<PathBuf>,
    write: bool,
    shows_output: bool,
}

impl Options {
    /// List of passing scripts.
    fn ratchet(&self) -> PathBuf {
        let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("passing.txt");
        self.ratchet.clone().unwrap_or_else(own)
    }
}

fn main() -> ExitCode {
    let options = match options(env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprint!("packetdrill-runner: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let (Some(program), Some(scripts)) = (env::var_os("PACKETDRILL"), env::var_os("PKT_DIR"))
    else {
        println!("1..0 # SKIP packetdrill: PACKETDRILL and PKT_DIR are not set, NOTHING WAS RUN");
        eprintln!("packetdrill: SKIPPED, nothing was run: set PACKETDRILL and PKT_DIR");
        return ExitCode::SUCCESS;
    };
    match run_directory(&options, &program, &scripts) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("packetdrill-runner: {error}");
            ExitCode::from(2)
        }
    }
}

fn options(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        names: Vec::new(),
        ip_version: "ipv4".to_owned(),
        captures: None,
        jobs: 1,
        ratchet: None,
        write: false,
        shows_output: false,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--ip-version" => options.ip_version = value()?,
            "--captures" => options.captures = Some(value()?.into()),
            "--ratchet" => options.ratchet = Some(value()?.into()),
            "--jobs" => {
                let text = value()?;
                options.jobs = text
                    .parse()
                    .map_err(|error| format!("invalid number of jobs `{text}`: {error}"))?;
            }
            "--write" => options.write = true,
            "--why" => options.shows_output = true,
            other if other.starts_with("--") => return Err(format!("unknown option `{other}`")),
            _ => options.names.push(word),
        }
    }
    Ok(options)
}

/// Runs the selected scripts of each directory with its program. Returns true if all listed scripts pass.
fn run_directory(options: &Options, programs: &OsStr, directories: &OsStr) -> Result<bool, String> {
    let programs: Vec<PathBuf> = env::split_paths(programs).collect();
    let directories: Vec<PathBuf> = env::split_paths(directories).collect();
    if programs.len() != 1 && programs.len() != directories.len() {
        let (programs, directories) = (programs.len(), directories.len());
        return Err(format!(
            "PACKETDRILL lists {programs} programs for {directories} directories in PKT_DIR"
        ));
    }
    let mut holds = true;
    for (directory, program) in directories.iter().zip(programs.iter().cycle()) {
        holds &= run(options, program.into(), directory)?;
    }
    Ok(holds)
}

/// Runs all selected scripts. Returns true if all listed scripts pass.
fn run(options: &Options, program: OsString, directory: &Path) -> Result<bool, String> {
    let mut scripts = Vec::new();
    find(directory, &mut scripts).map_err(|error| format!("{}: {error}", directory.display()))?;
    scripts.sort();
    scripts.retain(|path| {
        let text = path.to_string_lossy();
        options.names.is_empty() || options.names.iter().any(|name| text.contains(name.as_str()))
    });
    let scratch = shims::ScratchDir::create()
        .map_err(|error| format!("cannot create temporary files: {error}"))?;
    let setting = Setting {
        program,
        library: library()?,
        ip_version: options.ip_version.clone(),
        shims: scratch.programs(),
        captures: options.captures.clone(),
        patience: Duration::from_secs(60),
    };
    if let Some(captures) = &options.captures {
        std::fs::create_dir_all(captures)
            .map_err(|error| format!("{}: {error}", captures.display()))?;
    }
    println!("1..{}", scripts.len());
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(String, bool)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while let Some(path) = scripts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let name = ratchet::script_name(directory, path);
                    let outcome = namespace::run(&setting, &scratch, path, &name);
                    let Ok(mut results) = results.lock() else { return };
                    results.push((name.clone(), outcome.passed));
                    tell(results.len(), &name, &outcome, options.shows_output);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_default();
    if options.names.is_empty() {
        print_suite_results(&results);
    }
    Ratchet::read(&options.ratchet())?.judge(&results, options.write)
}

/// Prints the number of passing scripts per suite, for `cargo xtask figures`.
fn print_suite_results(results: &[(String, bool)]) {
    let mut suites: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, passed) in results {
        let suite = name.split('/').next().unwrap_or_default();
        *suites.entry(suite).or_default() += usize::from(*passed);
    }
    for (suite, passed) in suites {
        println!("figure packetdrill-{suite} {passed}");
    }
}

/// Prints a line in TAP format, and the reason for a failure on request.
fn tell(number: usize, name: &str, outcome: &Outcome, why: bool) {
    if outcome.passed {
        println!("ok {number} - {name}");
        return;
    }
    let first = outcome.output.lines().find(|line| !line.trim().is_empty()).unwrap_or("no output");
    println!("not ok {number} - {name} # {}", first.trim());
    if why {
        outcome.output.lines().for_each(|line| println!("#   {line}"));
    }
}

fn find(directory: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "pkt") {
            found.push(path);
        }
    }
    Ok(())
}

/// Path of the library, next to this program or in its build directory.
fn library() -> Result<PathBuf, String> {
    const NAME: &str = "libpacketdrill_adapter.so";
    let own =
        env::current_exe().map_err(|error| format!("cannot find this program's path: {error}"))?;
    let beside = own.parent().unwrap_or(Path::new("/"));
    let places = [beside.join(NAME), beside.join("deps").join(NAME)];
    let found = places.into_iter().find(|path| path.is_file());
    found.ok_or(format!("{NAME} is not next to {}: build the package first", own.display()))
}
