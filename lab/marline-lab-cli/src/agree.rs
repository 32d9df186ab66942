//! `marline-lab agree`: comparison of the verdicts under several master roots.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use marline_lab::figure::number;
use marline_papers::agreement;

use marline_cli::cmd::monitor::print;

/// Arguments of `marline-lab agree`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directories of results (`marline-lab paper --out DIR`), each with a different master root.
    #[arg(value_name = "DIR", required = true, num_args = 2..)]
    pub directories: Vec<PathBuf>,
}

/// Prints the rows with different verdicts and those that are undecided under some roots. The exit status is success
/// if no row is accepted under one root and rejected under another, and at most a tenth of the judged rows are
/// undecided.
///
/// # Errors
/// Results cannot be read, or two directories have the same master root.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut masters = BTreeMap::new();
    let mut all = Vec::new();
    for directory in &args.directories {
        let mut results = BTreeMap::new();
        for paper in marline_papers::all().into_iter().filter(|paper| paper.is_virtual_time()) {
            let Some((result, run)) = marline_papers::load(&directory.join(paper.key()))? else {
                continue;
            };
            let other = masters.insert((paper.key(), run.master), directory.display().to_string());
            if let Some(other) = other {
                let (key, master) = (paper.key(), run.master);
                anyhow::bail!(
                    "{} and {other}: {key} has the same master root {master}",
                    directory.display()
                );
            }
            results.insert(paper.key().to_owned(), result);
        }
        ensure!(!results.is_empty(), "{}: no results", directory.display());
        all.push(results);
    }
    let agreement = agreement(&all);
    let mut text = String::new();
    for (what, rows) in [
        ("accepted under one root, not accepted under another", &agreement.contradictions),
        ("undecided under some root", &agreement.open),
    ] {
        text.push_str(&format!("{what}: {}\n", rows.len()));
        rows.iter().for_each(|row| text.push_str(&format!("  {row}\n")));
    }
    let (undecided, judged) = agreement.undecided;
    text.push_str(&format!(
        "{} rows judged under all {} roots; {undecided} of {judged} verdicts undecided ({} %, at \
            most 10 allowed)\n",
        agreement.rows,
        all.len(),
        number(agreement.undecided_percent())
    ));
    print(&text)?;
    Ok(if agreement.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
