//! `marline-lab report`: one HTML page with all results.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use marline_lab::provenance;
use marline_papers::report::{Drawing, Section, html};
use marline_papers::{StoredVerdicts, page_with_summary, page_with_verdicts};

use super::paper;
use super::plot::draw;
use marline_cli::cmd::monitor::print;

/// Arguments of `marline-lab report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File of the page.
    #[arg(long, value_name = "FILE", default_value = "target/report.html")]
    pub page: PathBuf,
    /// Store the verdicts in `verdicts/KEY.toml` of this directory, and rewrite the generated parts of KEY.md
    /// and README.md. Keys without results stay unchanged.
    #[arg(long, value_name = "DIR")]
    pub docs: Option<PathBuf>,
    /// Compare the results with the verdicts stored in this directory, and fail if rows or verdicts differ.
    #[arg(long, value_name = "DIR")]
    pub check: Option<PathBuf>,
    /// Run the keys without results that need no privileges; other keys are shown as not run.
    #[arg(long)]
    pub run_missing: bool,
    /// Also draw this trace (from `--qlog`), which shows the path of each byte of the stream, with copies and
    /// reinjections. May be repeated.
    #[arg(long, value_name = "FILE.sqlog")]
    pub trace: Vec<PathBuf>,
    /// Options of the runs, and the directory of results.
    #[command(flatten)]
    pub runs: paper::Runs,
}

/// Writes the page. The exit status is success if it was written, regardless of the verdicts.
///
/// # Errors
/// Results cannot be read, or the page cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut sections = Vec::new();
    for of in marline_papers::all() {
        let mut results = marline_papers::load(&args.runs.out.join(of.key()))?;
        if results.is_none() && args.run_missing && of.is_virtual_time() {
            // A key that cannot run is shown as not run.
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
    let page = html(&sections, &traces, &provenance::program_hash()?);
    std::fs::write(&args.page, page).with_context(|| args.page.display().to_string())?;
    let there = sections.iter().filter(|section| section.results.is_some()).count();
    let (all, page) = (sections.len(), args.page.display());
    print(&format!("{page}: {there} of {all} keys have results\n"))?;
    let Some(kept) = &args.check else { return Ok(ExitCode::SUCCESS) };
    let changes = changes(kept, &sections)?;
    for change in &changes {
        print(&format!("{change}\n"))?;
    }
    anyhow::ensure!(
        changes.is_empty(),
        "{} rows differ from the stored verdicts; `report --docs` stores those from a full run",
        changes.len()
    );
    Ok(ExitCode::SUCCESS)
}

/// Stores the verdicts of each key in virtual time that has results, and writes the pages of all stored verdicts.
fn write_docs(docs: &Path, sections: &[Section]) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for section in sections.iter().filter(|section| has_stored_verdicts(section)) {
        let key = section.key.as_str();
        let file = verdicts_file(docs, key);
        if let Some((result, run)) = &section.results {
            let judges = result.counts().not_judged == 0;
            anyhow::ensure!(
                judges,
                "{key}: these results have no verdicts, so they are not stored"
            );
            let text = StoredVerdicts::from_result(result, run).text();
            std::fs::write(&file, text).with_context(|| file.display().to_string())?;
        }
        let kept = stored_verdicts(docs, key)?;
        let statements = &section.file.statements;
        rewrite_file(&docs.join(format!("{key}.md")), |page| {
            page_with_verdicts(page, statements, &kept)
        })?;
        all.push((key, statements.len(), kept));
    }
    rewrite_file(&docs.join("README.md"), |page| page_with_summary(page, &all))
}

/// Lists the differences from the stored verdicts, one per line.
fn changes(docs: &Path, sections: &[Section]) -> anyhow::Result<Vec<String>> {
    let mut changes = Vec::new();
    for section in sections.iter().filter(|section| has_stored_verdicts(section)) {
        let Some((result, _)) = &section.results else { continue };
        let found = stored_verdicts(docs, &section.key)?.changes(result);
        changes.extend(found.into_iter().map(|change| format!("{}, {change}", section.key)));
    }
    Ok(changes)
}

/// Returns true if the repository stores the verdicts. Verdicts in virtual time are the same on every machine.
fn has_stored_verdicts(section: &Section) -> bool {
    marline_papers::find(&section.key).is_ok_and(|paper| paper.is_virtual_time())
}

fn verdicts_file(docs: &Path, key: &str) -> PathBuf {
    docs.join("verdicts").join(format!("{key}.toml"))
}

fn stored_verdicts(docs: &Path, key: &str) -> anyhow::Result<StoredVerdicts> {
    let file = verdicts_file(docs, key);
    let named = || file.display().to_string();
    StoredVerdicts::parse(&std::fs::read_to_string(&file).with_context(named)?).with_context(named)
}

fn rewrite_file(
    path: &Path,
    change: impl Fn(&str) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let named = || path.display().to_string();
    let page = std::fs::read_to_string(path).with_context(named)?;
    std::fs::write(path, change(&page).with_context(named)?).with_context(named)
}
