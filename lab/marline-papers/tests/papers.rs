//! Test of every paper that runs in virtual time, at its smallest size. It runs, the result of a seed does not
//! depend on the number of threads, and its tables state the metric and the criterion.

use std::collections::BTreeSet;
use std::path::Path;

use marline_papers::{
    Context, Effort, Paper, PaperFile, ProcessorTimes, Reproduction, Statement, StoredVerdicts,
    Verdict, all, page_with_summary, page_with_verdicts, statement_faults,
};
use marline_testkit::need;

fn run(paper: &dyn Paper, jobs: usize, traces: &Path) -> Reproduction {
    let directory = tempfile::tempdir().expect("a directory");
    let context = Context {
        key: paper.key(),
        master: 1,
        effort: Effort::Quick,
        scale: 1.0,
        jobs,
        program: "test",
        results: directory.path(),
        traces: Some(traces),
        spent: &ProcessorTimes::default(),
        progress: &|_, _, _| {},
    };
    paper.run(&context).unwrap_or_else(|error| panic!("{}: {error:#}", paper.key()))
}

fn check(key: &str, result: &Reproduction) {
    assert!(!result.tables.is_empty(), "{key}: nothing is judged");
    let mut judged = 0;
    let mut files = BTreeSet::new();
    for table in &result.tables {
        assert!(files.insert(table.name.clone()), "{key}: duplicate file `{}`", table.name);
        for row in &table.rows {
            assert!(!row.what.is_empty(), "{key}: a row without a name in {}", table.name);
            let asked = !row.requirement.is_empty();
            assert_eq!(asked, row.verdict != Verdict::Shown, "{key}: {row:?}");
            assert!(!asked || row.roots.is_some(), "{key}: judged without roots: {row:?}");
            judged += usize::from(asked);
        }
    }
    assert!(judged > 0, "{key}: no row has a requirement");
    for grid in &result.grids {
        assert!(files.insert(grid.name.clone()), "{key}: duplicate file `{}`", grid.name);
    }
    for name in result.grids.iter().map(|g| &g.name).chain(result.figures.iter().map(|f| &f.name)) {
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        assert!(plain && !name.is_empty(), "{key}: `{name}` is not a valid file name");
    }
    for figure in &result.figures {
        assert!(figure.svg.starts_with("<svg"), "{key}: {}", figure.name);
    }
}

fn statements(paper: &dyn Paper) -> Vec<Statement> {
    PaperFile::<toml::Table>::parse(paper.text()).expect("a paper's file").statements
}

/// Keys that every change runs twice: one each of messages, recorded links and lanes. [`every_paper_twice`] runs
/// all.
const TWICE: [&str; 3] = ["tlp2019", "auto", "datagrams"];

/// Runs a paper, optionally a second time with another number of threads, and checks the results.
fn look_at(paper: &dyn Paper, twice: bool, traces: &Path) {
    let start = std::time::Instant::now();
    let text = |jobs| {
        let result = run(paper, jobs, traces);
        check(paper.key(), &result);
        let faults = statement_faults(&statements(paper), &result);
        assert!(faults.is_empty(), "{}: {faults:#?}", paper.key());
        serde_json::to_string(&result).expect("JSON")
    };
    let alone = text(2);
    if twice {
        assert_eq!(alone, text(3), "{}: the number of threads matters", paper.key());
    }
    println!("{}: {:.1} s", paper.key(), start.elapsed().as_secs_f64());
}

#[test]
fn every_paper_runs_and_one_seed_is_one_result() {
    let Some(traces) = need::trace_dir() else { return };
    for paper in all().into_iter().filter(|paper| paper.is_virtual_time()) {
        look_at(paper, TWICE.contains(&paper.key()), &traces);
    }
}

#[test]
#[ignore = "minutes; `cargo xtask nightly papers` runs it"]
fn every_paper_twice() {
    let Some(traces) = need::trace_dir() else { return };
    for paper in all().into_iter().filter(|paper| paper.is_virtual_time()) {
        look_at(paper, true, &traces);
    }
}

#[test]
fn pages_are_made_of_the_kept_verdicts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/research/papers");
    let read = |name: String| {
        let path = root.join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let same = |page: &str, made: anyhow::Result<String>, name: &str| {
        let made = made.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        assert!(page == made, "{name}: run `marline-lab report --docs docs/research/papers`");
    };
    let mut all_kept = Vec::new();
    for paper in all().into_iter().filter(|paper| paper.is_virtual_time()) {
        let key = paper.key();
        let text = read(format!("verdicts/{key}.toml"));
        let kept = StoredVerdicts::parse(&text).unwrap_or_else(|error| panic!("{key}: {error:#}"));
        assert_eq!(kept.text(), text, "{key}.toml");
        let page = read(format!("{key}.md"));
        let stated = statements(paper);
        same(&page, page_with_verdicts(&page, &stated, &kept), key);
        all_kept.push((key, stated.len(), kept));
    }
    let page = read("README.md".to_owned());
    same(&page, page_with_summary(&page, &all_kept), "README");
}
