use std::collections::BTreeSet;

use marline_lab::figure::{Figure, number};

use super::*;

fn context(run: impl FnOnce(&Context<'_>)) {
    let directory = tempfile::tempdir().unwrap();
    let progress = |_: &str, _: usize, _: usize| {};
    run(&Context {
        key: "test",
        master: 1,
        effort: Effort::Full,
        scale: 1.0,
        jobs: 2,
        program: "p",
        results: directory.path(),
        traces: None,
        spent: &ProcessorTimes::default(),
        progress: &progress,
    });
}

#[test]
fn every_paper_has_a_file_that_can_be_read_and_a_name_of_its_own() {
    let mut seen = BTreeSet::new();
    for paper in all() {
        let file = PaperFile::<toml::Table>::parse(paper.text());
        let file = file.unwrap_or_else(|error| panic!("papers/{}.toml: {error:#}", paper.key()));
        let command = format!("marline-lab paper {}", paper.key());
        assert!(file.command.starts_with(&command), "{}: {}", paper.key(), file.command);
        assert!(seen.insert(paper.key()), "two papers are called {}", paper.key());
    }
    assert_eq!(find("cs244").unwrap().key(), "raiciu2012");
    assert!(
        find("no-such-paper").is_err_and(|e| e.to_string().starts_with("unknown paper `no-such"))
    );
}

#[test]
fn a_requirement_that_is_not_met_cannot_be_made_good_by_another() {
    let row = || Row::new("x").paper(100.0, "ms").measured(120.0, "ms");
    assert_eq!(row().verdict, Verdict::Shown);
    assert_eq!(row().within_of_paper(0.20).verdict, Verdict::Accepted);
    assert_eq!(row().within_of_paper(0.19).verdict, Verdict::NotAccepted);
    assert_eq!(row().within_of_paper(0.19).at_most(1e9).verdict, Verdict::NotAccepted);
    assert_eq!(row().at_most(120.0).at_least(120.0).verdict, Verdict::Accepted);
    assert_eq!(row().at_most(119.9).verdict, Verdict::NotAccepted);
    assert_eq!(row().at_least(120.1).verdict, Verdict::NotAccepted);
    assert_eq!(row().within_of(0.1, 110.0, "y").requirement, "within 10 % of y (110)");
    assert_eq!(row().within_of(0.05, 110.0, "y").verdict, Verdict::NotAccepted);
    let asked =
        [1.001, 862.1, 0.5, 0.0, 3_000.0, 1e9].map(|limit| row().at_most(limit).requirement);
    let words = ["1.001", "862.1", "0.5", "0", "3000", "1000000000"];
    assert_eq!(asked, words.map(|limit| format!("at most {limit} ms")));
}

#[test]
fn an_unmeasured_row_meets_no_requirement() {
    let none = Row::new("x").paper(1.0, "ms").measured(f64::NAN, "ms");
    assert_eq!(none.clone().within_of_paper(9.0).verdict, Verdict::NotAccepted);
    assert_eq!(none.clone().at_most(9.0).verdict, Verdict::NotAccepted);
    assert_eq!(none.at_least(0.0).verdict, Verdict::NotAccepted);
    assert_eq!(Row::new("x").at_most(1.0).verdict, Verdict::NotAccepted);
}

#[test]
fn a_verdict_is_that_of_the_whole_interval() {
    let samples = Samples::new((0..20).map(|n| 90.0 + f64::from(n)).collect::<Vec<f64>>(), 1);
    let mean = samples.mean(|value| *value);
    let row = || Row::new("x").paper(100.0, "ms").estimate(&mean, "ms");
    assert_eq!(row().at_most(110.0).verdict, Verdict::Accepted);
    assert_eq!(row().at_most(90.0).verdict, Verdict::NotAccepted);
    let open = row().at_most(100.0);
    assert_eq!(open.verdict, Verdict::Inconclusive);
    assert!(open.verdict_words().starts_with("inconclusive (about "), "{}", open.verdict_words());
    // A missed requirement is missed, even if another one is undecided or met.
    assert_eq!(open.clone().at_least(110.0).verdict, Verdict::NotAccepted);
    assert_eq!(open.clone().at_least(0.0).verdict, Verdict::Inconclusive);
    assert_eq!(row().at_most(90.0).at_most(100.0).verdict, Verdict::NotAccepted);
    // Fitted rows and rows with too few roots have no verdict.
    assert_eq!(row().at_most(90.0).mark_fitted("y").verdict, Verdict::Fitted);
    let few = Samples::new(vec![1.0; 19], 1).mean(|value| *value);
    let few = Row::new("x").estimate(&few, "ms").at_most(90.0);
    assert_eq!(few.verdict, Verdict::NotJudged);
    assert_eq!(few.require(false, "z").verdict, Verdict::NotJudged);
}

#[test]
fn roots_are_measured_once_and_added_while_a_row_is_undecided() {
    context(|context| {
        let ran = std::sync::atomic::AtomicUsize::new(0);
        let measure = |root: &Root| {
            ran.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok((root.number % 10) as f64)
        };
        let rows = |limit: f64| {
            move |samples: &Samples<f64>| {
                let mean = samples.mean(|value| *value);
                Ok(vec![Row::new("mean").estimate(&mean, "").at_most(limit)])
            }
        };
        let part = Part::new("part", 20, 60);
        let ran = || ran.swap(0, std::sync::atomic::Ordering::Relaxed);
        let (samples, judged) = context.judge_part(part, measure, rows(9.0)).unwrap();
        assert_eq!((samples.roots(), judged[0].verdict, ran()), (20, Verdict::Accepted, 20));
        // The second call costs nothing and has the same results.
        let again = context.judge_part(part, measure, rows(9.0)).unwrap();
        assert_eq!((again.0.all(), ran()), (samples.all(), 0));
        // Another build measures the roots again.
        let other = Context { program: "q", ..*context };
        other.judge_part(part, measure, rows(9.0)).unwrap();
        assert_eq!(ran(), 20);
        let (more, judged) = other.judge_part(part, measure, rows(5.5)).unwrap();
        assert_eq!((judged[0].verdict, ran()), (Verdict::Accepted, more.roots() - 20));
        assert!(more.roots() > 20, "{judged:?}");
        // A result that cannot be stored is reported at once.
        let error = context.sample(Part::fixed("nan", 1), |_| Ok(f64::NAN)).unwrap_err();
        assert!(error.to_string().contains("finite numbers"), "{error:#}");
    });
}

#[test]
fn numbers_have_the_digits_that_matter() {
    let told = [1234.5, 12.34, 1.234, 0.0999, 0.0, -3.0, 1e-5].map(number);
    assert_eq!(told, ["1234", "12.3", "1.23", "0.0999", "0", "-3", "1.00e-5"]);
    assert_eq!(number(f64::NAN), "-");
    assert_eq!(Value::with_interval(10.0, 9.0, 11.0, "ms").to_string(), "10 [9, 11] ms");
}

fn result() -> Reproduction {
    let row = Row::new("with, comma").paper(2.0, "s").measured(f64::NAN, "s").at_most(3.0);
    let mut grid = Grid::new("grid", "A grid", &[("who", ""), ("p99", "ms")]);
    grid.push(&["min-\"rtt\""], &[12.5]);
    Reproduction {
        tables: vec![Table::new("main", "A table", vec![row.with_remark("why")])],
        grids: vec![grid],
        figures: vec![Figure {
            name: "curve".into(),
            title: "A curve".into(),
            caption: String::new(),
            svg: "<svg/>".into(),
        }],
        notes: vec!["A note.".into()],
    }
}

pub(crate) fn info() -> RunInfo {
    let machine = Machine::current();
    let (version, program) = ("0".to_owned(), "p".to_owned());
    RunInfo {
        version,
        program,
        machine,
        master: 1,
        effort: "full".to_owned(),
        scale: 1.0,
        jobs: 2,
        seconds: 0.5,
        cpu_s: 1.0,
        digest: String::new(),
    }
}

#[test]
fn results_come_back_from_disk_and_old_ones_go() {
    context(|context| {
        let directory = context.results;
        assert!(load(directory).unwrap().is_none());
        std::fs::write(directory.join("old.csv"), "old").unwrap();
        store(directory, &result(), &info()).unwrap();
        assert!(!directory.join("old.csv").exists());
        let (back, run) = load(directory).unwrap().expect("written");
        assert_eq!(run, info());
        // NaN is not equal to itself; everything else is.
        assert_eq!(format!("{back:?}"), format!("{:?}", result()));
        assert_eq!(back.verdict(), Verdict::NotAccepted);
        let main = std::fs::read_to_string(directory.join("main.csv")).unwrap();
        let row = main.lines().nth(1).unwrap();
        assert_eq!(row, "\"with, comma\",,2,,,s,,,,s,,at most 3 s,not accepted,,,,why");
        let grid = std::fs::read_to_string(directory.join("grid.csv")).unwrap();
        assert_eq!(grid, "who,p99 (ms)\n\"min-\"\"rtt\"\"\",12.5\n");
        let mut twice = result();
        twice.grids[0].name = "main".into();
        let error = store(directory, &twice, &info()).unwrap_err();
        assert_eq!(error.to_string(), "two results are named main.csv");
    });
}

#[test]
fn a_context_runs_in_parallel_and_reports_progress() {
    context(|context| {
        let told = std::sync::Mutex::new(Vec::new());
        let progress = |what: &str, done: usize, of: usize| {
            told.lock().unwrap().push(format!("{what} {done}/{of}"));
        };
        let context = Context { progress: &progress, scale: 0.1, ..*context };
        assert_eq!((context.runs(30), context.runs(2)), (3, 1));
        let doubled = context.parallel("runs", &[1, 2, 3], |n| Ok(n * 2)).unwrap();
        assert_eq!(doubled, [2, 4, 6]);
        let mut told = told.lock().unwrap().clone();
        told.sort();
        assert_eq!(told, ["runs 1/3", "runs 2/3", "runs 3/3"]);
        let fails = context.parallel("runs", &[1, 2], |n| match n {
            1 => Ok(()),
            _ => anyhow::bail!("run {n}"),
        });
        assert_eq!(fails.unwrap_err().to_string(), "run 2");
        let panics = context.parallel("runs", &[1, 2], |n| {
            assert!(*n != 2, "number {n} breaks");
            Ok(())
        });
        assert_eq!(panics.unwrap_err().to_string(), "runs: number 2 breaks");
        assert!(context.traces().is_err());
    });
}

/// A paper of three parts with three roots each. The runs of a part have a digest made from its number.
struct Parts([u64; 3]);

impl Paper for Parts {
    fn key(&self) -> &'static str {
        "parts"
    }

    fn text(&self) -> &'static str {
        ""
    }

    fn run(&self, context: &Context<'_>) -> anyhow::Result<Reproduction> {
        for (name, digest) in ["first", "second", "third"].into_iter().zip(self.0) {
            context.sample(Part::fixed(name, 3), |root| {
                digest::run_ended(digest ^ root.seed);
                Ok(root.number)
            })?;
        }
        Ok(Reproduction::default())
    }
}

#[test]
fn each_part_of_a_paper_counts_in_its_digest_measured_or_kept() {
    let digest = |parts: [u64; 3], times: usize| {
        let mut digests = Vec::new();
        context(|context| {
            let run = || super::run(&Parts(parts), context).expect("digests").1;
            digests.extend((0..times).map(|_| run()));
        });
        digests
    };
    let measured_then_kept = digest([1, 2, 3], 2);
    let all = &measured_then_kept[0];
    assert!(!all.is_empty());
    assert_eq!(*all, measured_then_kept[1], "roots that were kept count like those measured");
    for changed in 0..3 {
        let mut parts = [1, 2, 3];
        parts[changed] = 9;
        assert_ne!(*all, digest(parts, 1)[0], "part {changed}");
    }
}
