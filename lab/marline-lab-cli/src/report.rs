//! `marline-lab report`: one HTML page with all results.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use marline_lab::keep;
use marline_papers::report::{Drawing, Section, html};

use super::paper;
use super::plot::draw;
use marline_cli::cmd::monitor::print;

/// Arguments of `marline-lab report`.
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
    /// Show the drawing of this trace, too: where each byte of the stream went, copies and reinjections included; of
    /// `marline-lab run --qlog` or any `--qlog`. May be repeated.
    #[arg(long, value_name = "FILE.sqlog")]
    pub trace: Vec<PathBuf>,
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
    let mut traces = Vec::new();
    for file in &args.trace {
        let drawn = draw(file, None, None).with_context(|| file.display().to_string())?;
        traces.push(Drawing { title: drawn.title, says: drawn.says, svg: drawn.svg });
    }
    let page = html(&sections, &traces, &keep::program()?);
    std::fs::write(&args.page, page).with_context(|| args.page.display().to_string())?;
    let there = sections.iter().filter(|section| section.results.is_some()).count();
    let (all, page) = (sections.len(), args.page.display());
    print(&format!("{page}: {there} of {all} keys have results\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Puts the results of each key that has some into its page, and a line for each that runs in virtual
/// time into the `README.md` beside them; what the pages say of other keys stays. A page without marks is left alone.
fn write_docs(docs: &Path, sections: &[Section]) -> anyhow::Result<()> {
    let write = |name: &str, change: &dyn Fn(&str) -> anyhow::Result<String>| {
        let path = docs.join(name);
        let named = || path.display().to_string();
        if path.is_file() {
            let page = std::fs::read_to_string(&path).with_context(named)?;
            match change(&page) {
                Ok(page) => std::fs::write(&path, page).with_context(named)?,
                Err(error) => eprintln!("{}: left as it is: {error:#}", path.display()),
            }
        }
        anyhow::Ok(())
    };
    let mut all = Vec::new();
    for section in sections {
        let Some((result, run)) = &section.results else { continue };
        write(&format!("{}.md", section.key), &|page| {
            marline_papers::page_with_results(page, result, run)
        })?;
        if marline_papers::find(&section.key)?.in_virtual_time() {
            all.push((section.key.as_str(), result, run));
        }
    }
    let order: Vec<&str> = sections.iter().map(|section| section.key.as_str()).collect();
    write("README.md", &|page| marline_papers::page_with_summary(page, &order, &all))
}
