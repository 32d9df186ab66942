//! `marline lab report`: one HTML page with all results.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use marline_lab::keep;
use marline_papers::report::{Section, html};

use super::paper;
use crate::cmd::monitor::print;

/// Arguments of `marline lab report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File of the page.
    #[arg(long, value_name = "FILE", default_value = "target/report.html")]
    pub page: PathBuf,
    /// Write the results into the pages KEY.md of this directory, too, between their marks.
    #[arg(long, value_name = "DIR")]
    pub docs: Option<PathBuf>,
    /// Run the keys that have no results yet and need no privileges; the rest is shown as not run.
    #[arg(long)]
    pub run_missing: bool,
    /// Options of the runs, and the directory of results.
    #[command(flatten)]
    pub runs: paper::Runs,
}

/// Writes the page; success if it was written, whatever the verdicts.
///
/// # Errors
/// Results cannot be read, or the page cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut sections = Vec::new();
    for of in marline_papers::all() {
        let mut results = marline_papers::load(&args.runs.out.join(of.key()))?;
        if results.is_none() && args.run_missing && of.in_virtual_time() {
            // One that cannot run is shown as not run.
            match paper::reproduce(of, &args.runs) {
                Ok(made) => results = Some(made),
                Err(error) => eprintln!("{}: {error:#}", of.key()),
            }
        }
        let file = paper::file(of)?;
        sections.push(Section { key: of.key().to_owned(), file, results });
    }
    if let Some(docs) = &args.docs {
        write_docs(docs, &sections)?;
    }
    if let Some(directory) = args.page.parent() {
        std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    let page = html(&sections, &keep::program()?);
    std::fs::write(&args.page, page).with_context(|| args.page.display().to_string())?;
    let there = sections.iter().filter(|section| section.results.is_some()).count();
    let (all, page) = (sections.len(), args.page.display());
    print(&format!("{page}: {there} of {all} keys have results\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Puts the results of each key that has some into its page; a page without marks is left alone.
fn write_docs(docs: &Path, sections: &[Section]) -> anyhow::Result<()> {
    for section in sections {
        let path = docs.join(format!("{}.md", section.key));
        let named = || path.display().to_string();
        let (Some((result, run)), true) = (&section.results, path.is_file()) else { continue };
        let page = std::fs::read_to_string(&path).with_context(named)?;
        match marline_papers::page_with_results(&page, result, run) {
            Ok(page) => std::fs::write(&path, page).with_context(named)?,
            Err(error) => eprintln!("{}: left as it is: {error:#}", path.display()),
        }
    }
    Ok(())
}
