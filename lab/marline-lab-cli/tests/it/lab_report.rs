//! Test of `marline-lab report`: in a real browser the page is complete, shows the expected content, and loads no
//! other resources; pages are made from stored verdicts, which are compared with results.

use super::support;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use marline_lab::figure::{Bars, HeatMap, Plot, TimingDiagram, cdf};
use marline_papers::{Grid, Machine, Reproduction, Row, RunInfo, Table, Verdict, store};
use marline_testkit::need;

/// Time limit of the browser.
const PATIENCE: Duration = Duration::from_secs(90);
/// Script that measures the visible page and writes the result into it.
const QUESTION: &str = r##"<script>
const seen = [...document.querySelectorAll('figure svg')].map(svg => svg.getBoundingClientRect());
const colors = what => getComputedStyle(document.querySelector(what));
const found = {
  drawings: seen.filter(box => box.width > 200 && box.height > 100).length,
  curves: document.querySelectorAll('svg.mf polyline[stroke="#0072B2"]').length,
  curve: colors('svg.mf polyline[stroke="#0072B2"]').stroke,
  rows: document.querySelectorAll('section td.good, section td.bad').length,
  bad: colors('td.bad').color, good: colors('td.good').color,
  paper: colors('body').backgroundColor,
  loaded: performance.getEntriesByType('resource').length,
  overflow: document.documentElement.scrollWidth > innerWidth,
  target: document.querySelector('#summary a').hash === '#' + document.querySelector('h2').id,
  hacked: typeof hacked, mode: document.compatMode,
};
const answer = document.createElement('pre');
answer.id = 'answer';
answer.textContent = JSON.stringify(found);
document.body.append(answer);
</script>"##;

fn result() -> Reproduction {
    let rows = vec![
        Row::new("echo, average")
            .paper(40.0, "ms")
            .measured(41.0, "ms")
            .within_of_paper(0.15)
            .bound_ratio(1.2),
        Row::new("<img src=x onerror=\"hacked=1\">").measured(9.0, "ms").at_most(3.0),
    ];
    let mut grid = Grid::new("grid", "A grid wider than any page", &[("x", ""); 40]);
    grid.push(&["a word that is not short"; 40], &[]);
    let curve = [(1.0, 2.0), (100.0, 3.0)];
    let figures = vec![
        Plot::new("<script>hacked=1</script>", "x (ms)", "y").line("a", &curve).figure("a", ""),
        Plot::new("b", "x", "y").steps("a", &cdf(&[1.0, 9.0])).log_x().figure("b", "caption"),
        Bars::new("c", "y (ms)", &["a", "b"])
            .group("g", &[(1.0, None), (2.0, None)])
            .figure("c", ""),
        HeatMap::new("d", "times", &["a", "b"]).row("r", &[1.0, f64::NAN]).figure("d", ""),
        TimingDiagram::new("e", &["WLAN", "4G"], 0.0, 9.0).figure("e", ""),
    ];
    let tables = vec![Table::new("t", "A table", rows)];
    Reproduction { tables, grids: vec![grid], figures, notes: vec!["A note & more".into()] }
}

fn info() -> RunInfo {
    let (version, program) = ("0".to_owned(), "another".to_owned());
    let machine = Machine::current();
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

/// The page of all results as `marline-lab report` writes it, with results of the first key.
fn page(dir: &Path) -> String {
    let out = dir.join("papers");
    store(&out.join(marline_papers::all()[0].key()), &result(), &info()).expect("results");
    let file = dir.join("sub").join("report.html");
    let mut command = Command::new(env!("CARGO_BIN_EXE_marline-lab"));
    command.args(["report", "--out"]).arg(&out).arg("--page").arg(&file);
    let done = command.output().expect("marline");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(
        said.contains(&format!("1 of {} keys have results", marline_papers::all().len())),
        "{said}"
    );
    fs::read_to_string(file).expect("the page")
}

/// Runs `marline-lab report` with the results of `out`; returns whether it succeeded, and its output.
fn report(dir: &Path, out: &Path, option: &str, docs: &Path) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_marline-lab"));
    command.args(["report", "--out"]).arg(out).arg("--page").arg(dir.join("report.html"));
    let done = command.arg(option).arg(docs).output().expect("marline-lab");
    let printed = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8_lossy(&printed).into_owned())
}

#[test]
fn kept_verdicts_make_the_pages_and_find_a_flip() {
    let dir = tempfile::tempdir().expect("a directory");
    let (docs, out) = (dir.path().join("docs"), dir.path().join("papers"));
    fs::create_dir_all(docs.join("verdicts")).expect("a directory");
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/research/papers");
    for place in ["", "verdicts"] {
        for entry in fs::read_dir(from.join(place)).expect("pages").flatten() {
            let to = docs.join(place).join(entry.file_name());
            if entry.path().is_file() {
                fs::copy(entry.path(), to).expect("copied");
            }
        }
    }
    // The pages of seeds list statements, those of the defaults count rows.
    let key = "auto";
    store(&out.join(key), &result(), &info()).expect("results");
    let (same, said) = report(dir.path(), &out, "--check", &docs);
    assert!(!same && said.contains(&format!("{key}, t: echo, average: new row")), "{said}");

    assert!(report(dir.path(), &out, "--docs", &docs).0);
    let (same, said) = report(dir.path(), &out, "--check", &docs);
    assert!(same, "{said}");
    let page = fs::read_to_string(docs.join(format!("{key}.md"))).expect("a page");
    assert!(page.contains("(accepted: 1)"), "{page}");
    let summary = fs::read_to_string(docs.join("README.md")).expect("a page");
    assert!(
        summary.contains(&format!("| [{key}]({key}.md) | - | 1 | 1 | 0 | 0 | 0 |")),
        "{summary}"
    );

    let mut slower = result();
    slower.tables[0].rows[0] =
        Row::new("echo, average").paper(40.0, "ms").measured(61.0, "ms").within_of_paper(0.15);
    store(&out.join(key), &slower, &info()).expect("results");
    let (same, said) = report(dir.path(), &out, "--check", &docs);
    let flip = "t: echo, average: 61 ms, not accepted; was 41 ms, accepted";
    assert!(!same && said.contains(flip), "{said}");
    // A quick run is compared by its rows, and never stored.
    for row in &mut slower.tables[0].rows {
        row.verdict = Verdict::NotJudged;
    }
    store(&out.join(key), &slower, &info()).expect("results");
    assert!(report(dir.path(), &out, "--check", &docs).0);
    let (kept, said) = report(dir.path(), &out, "--docs", &docs);
    assert!(!kept && said.contains("these results have no verdicts"), "{said}");
}

/// The page's DOM in a browser, as text.
fn browse(browser: &Path, dir: &Path, page: &str, name: &str, more: &[&str]) -> String {
    let file = dir.join(format!("{name}.html"));
    fs::write(&file, page).expect("write");
    let (dom, errors) = (dir.join(format!("{name}.dom")), dir.join(format!("{name}.err")));
    let mut command = Command::new(browser);
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--disable-dev-shm-usage", "--window-size=1000,800", "--dump-dom"])
        .args(more)
        .arg(format!("--user-data-dir={}", dir.join(format!("{name}.profile")).display()))
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null())
        .stdout(fs::File::create(&dom).expect("file"))
        .stderr(fs::File::create(&errors).expect("file"));
    let mut running = command.spawn().expect("the browser starts");
    let deadline = Instant::now() + PATIENCE;
    while running.try_wait().expect("wait").is_none() {
        if Instant::now() > deadline {
            running.kill().expect("kill");
            running.wait().expect("wait");
            panic!("no answer: {}", fs::read_to_string(&errors).unwrap_or_default());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::read_to_string(dom).expect("the page as the browser has it")
}

fn answer(dom: &str) -> serde_json::Value {
    let text =
        dom.split("<pre id=\"answer\">").nth(1).unwrap_or_else(|| panic!("no answer: {dom}"));
    let text = text.split("</pre>").next().expect("its end");
    serde_json::from_str(&text.replace("&amp;", "&")).expect("an answer")
}

/// Returns true if a color `rgb(r, g, b)` is closer to black than to white.
fn is_dark(color: &serde_json::Value) -> bool {
    let text = color.as_str().expect("a color").trim_start_matches("rgb(").trim_end_matches(')');
    let sum: u32 = text.split(',').map(|part| part.trim().parse::<u32>().expect("a number")).sum();
    sum < 3 * 128
}

#[test]
fn a_browser_shows_the_whole_page_and_fetches_nothing() {
    let _alone = support::lock_exclusively();
    let Some(browser) = need::program("chromium") else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let page = page(dir.path());
    assert!(!page.contains("<script") && !page.contains("<img"), "text is escaped");
    // Unmodified: the page's policy forbids external resources, and the browser shows the whole page.
    let dom = browse(&browser, dir.path(), &page, "plain", &[]);
    assert!(
        dom.contains("Marline compared with the papers") && dom.contains("A note &amp; more"),
        "{dom}"
    );

    // With a script at the end, which the page's policy would forbid.
    let rules = "content=\"default-src 'none'; style-src 'unsafe-inline'\"";
    assert!(page.contains(rules));
    let asking =
        page.replace(rules, "content=\"\"").replace("</body>", &format!("{QUESTION}</body>"));
    let found = answer(&browse(&browser, dir.path(), &asking, "light", &[]));
    assert_eq!(found["drawings"], 5, "{found}");
    // Two curves, each with its sample in the legend.
    assert_eq!((&found["curves"], &found["rows"]), (&4.into(), &2.into()), "{found}");
    assert_eq!((&found["loaded"], &found["overflow"]), (&0.into(), &false.into()), "{found}");
    assert_eq!(found["target"], true, "{found}");
    assert_eq!((&found["hacked"], &found["mode"]), (&"undefined".into(), &"CSS1Compat".into()));
    assert_eq!(found["curve"], "rgb(0, 114, 178)", "{found}");
    assert_ne!(found["bad"], found["good"]);
    assert!(!is_dark(&found["paper"]) && is_dark(&found["bad"]), "{found}");

    let dark = ["--blink-settings=preferredColorScheme=0"];
    let found = answer(&browse(&browser, dir.path(), &asking, "dark", &dark));
    assert!(is_dark(&found["paper"]) && !is_dark(&found["bad"]), "{found}");
    assert_eq!(found["curve"], "rgb(74, 168, 224)", "{found}");
}
