//! Test of `marline-lab run` and `sweep` as processes: the first experiment of the documentation.

use super::support;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use marline_testkit::need;

fn docs() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/research/lab.md");
    std::fs::read_to_string(file).expect("docs/research/lab.md")
}

/// The text after the line that begins a block, up to the block's end.
fn block<'a>(text: &'a str, begin: &str) -> &'a str {
    let (_, rest) = text.split_once(begin).unwrap_or_else(|| panic!("no {begin:?}"));
    rest.split_once("```").expect("the block's end").0
}

/// The page's commands that begin with this text, without `sudo`.
fn commands(text: &str, begin: &str) -> Vec<Vec<String>> {
    let lines = text.lines().map(|line| line.strip_prefix("sudo ").unwrap_or(line));
    let mine = lines.filter(|line| line.starts_with(begin));
    mine.map(|line| line.split_whitespace().skip(1).map(str::to_owned).collect()).collect()
}

fn marline(place: &Path, args: &[impl AsRef<std::ffi::OsStr>]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_marline-lab"));
    command.current_dir(place).args(args).stdin(Stdio::null()).output().expect("marline")
}

fn good(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A directory with the page's `first.toml`.
fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("first.toml");
    std::fs::write(&file, block(&docs(), "```toml\ntitle").replacen(" =", "title =", 1))
        .expect("file");
    (dir, file)
}

#[test]
fn the_first_experiment_runs_as_the_page_says() {
    let _others = support::among_others();
    let (dir, file) = place();
    let page = docs();
    let [sim, live] = &commands(&page, "marline-lab run first.toml")[..] else {
        panic!("two commands");
    };
    let table = good(&marline(dir.path(), sim));
    let line = |text: &str, start: [&str; 2]| {
        let words = |line: &&str| line.split_whitespace().take(2).eq(start);
        text.lines().find(words).unwrap_or_else(|| panic!("{start:?} in {text}")).to_owned()
    };
    assert!(line(&table, ["sim", "twice"]).contains(" 10 "), "{table}");
    assert!(table.contains("bound"), "{table}");
    for name in ["messages.csv", "runs.csv", "result.json"] {
        assert!(dir.path().join("target/lab/first").join(name).exists(), "{name}");
    }
    assert!(table.contains("95 % intervals (bootstrap over the runs)"), "{table}");
    // The better variant, and the difference.
    let [compare] = &commands(&page, "marline-lab compare target/lab/first:")[..] else {
        panic!("a command");
    };
    let compared = good(&marline(dir.path(), compare));
    assert!(compared.contains("10 seeds in both, 95 % intervals, paired by seed"), "{compared}");
    let row = compared.lines().find(|line| line.trim_start().starts_with("p99 ms")).expect("a row");
    assert!(
        ["better by", "worse by", "inconclusive", "the same for every seed"]
            .iter()
            .any(|word| row.contains(word)),
        "{row}"
    );
    let same = ["compare", "target/lab/first", "target/lab/first"];
    let same = good(&marline(dir.path(), &same));
    assert_eq!(same.matches("the same for every seed").count(), 2 * 5, "{same}");
    let wrong = ["compare", "target/lab/first:default", "target/lab/first:thrice"];
    let refused = marline(dir.path(), &wrong);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("unknown variant `thrice`; known: default, twice"), "{said}");
    // The mistake in step 3, with the message shown on the page.
    let text = std::fs::read_to_string(&file).expect("text");
    std::fs::write(&file, text.replace("\"redundant\"", "\"redundnat\"")).expect("write");
    let refused = marline(dir.path(), sim);
    let said = String::from_utf8_lossy(&refused.stderr);
    let shown = block(&page, "```\nfirst.toml:");
    let (place, rest) = shown.split_once(": unknown").expect("a place");
    let pointed = rest.split_once('\n').expect("lines").1;
    assert!(!refused.status.success());
    for wanted in [&format!("first.toml:{place}: unknown scheduler"), pointed.trim_end()] {
        assert!(said.contains(wanted), "wanted\n{wanted}\nsaid\n{said}");
    }
    assert!(said.contains("did you mean `redundant`?"), "{said}");
    std::fs::write(&file, text).expect("write");
    // Step 4, as far as possible without root.
    if !need::root() || need::program("ip").is_none() {
        let refused = marline(dir.path(), live);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains("needs root") || !need::root(), "{said}");
        return;
    }
    let mut fewer = live.clone();
    *fewer.last_mut().expect("seeds") = "1".to_owned();
    let table = good(&marline(dir.path(), &fewer));
    for start in [["live", "default"], ["live", "twice"], ["mptcp", "kernel"]] {
        line(&table, start);
    }
    assert!(table.contains("sim and live"), "{table}");
}

#[test]
fn time_lines_are_written_as_the_page_says() {
    let _others = support::among_others();
    let (dir, _) = place();
    let of_scenario = commands(&docs(), "marline-lab run scenarios/time-lines.toml");
    let with_lines = |command: &&Vec<String>| command.iter().any(|word| word == "--timelines=5ms");
    let command = of_scenario.iter().find(with_lines).expect("a command");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = root.join("scenarios/time-lines.toml").display().to_string();
    let mut command = command.clone();
    command[1].clone_from(&file);
    command.extend(["--pcap", "--plot", "--format", "csv,parquet"].map(str::to_owned));
    let table = good(&marline(dir.path(), &command));
    assert!(
        table.contains("subflows.csv, subflows.parquet, copies.csv, copies.parquet"),
        "{table}"
    );
    let out = dir.path().join("target/lab/time-lines");
    for name in ["subflows.parquet", "pcap/auto-1-client.pcapng", "cdf.svg", "windows-auto.svg"] {
        assert!(out.join(name).exists(), "{name}");
    }
    let read = |name: &str| std::fs::read_to_string(out.join(name)).expect(name);
    // The columns that the page's commands print, counted from 1 as `awk` does.
    for (name, printed) in [
        ("subflows.csv", &[(3, "seed"), (4, "time_us"), (5, "end"), (6, "path")][..]),
        ("subflows.csv", &[(9, "health"), (13, "cwnd_bytes")]),
        ("copies.csv", &[(2, "variant"), (5, "from"), (11, "path"), (17, "won")]),
    ] {
        let text = read(name);
        let columns: Vec<&str> = text.lines().next().expect("a heading").split(',').collect();
        for (number, column) in printed {
            assert_eq!(columns[number - 1], *column, "{name}");
        }
    }
    let (samples, copies) = (read("subflows.csv"), read("copies.csv"));
    assert!(samples.lines().any(|line| line.contains(",5000,server,wifi,")), "every 5 ms");
    assert!(copies.lines().filter(|line| line.ends_with(",1")).count() >= 2 * 2 * 120);
    // Options without effect on a stack are rejected.
    let wrong = ["run", file.as_str(), "--stack", "live", "--timelines"];
    let refused = marline(dir.path(), &wrong);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("stack sim"), "{said}");
}

/// Fields of the packets of a capture that match a filter, as tshark prints them.
fn shark(file: &Path, filter: &str, field: &str) -> Vec<String> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(file).args(["-Y", filter, "-T", "fields", "-e", field]);
    good(&tshark.stdin(Stdio::null()).output().expect("tshark"))
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Traces whose file names begin with `name`. On a loaded machine a client also tries to connect over its second
/// path; there is then a trace for each connection, with a number after the name.
fn traces(directory: &Path, name: &str) -> Vec<(PathBuf, marline_qlog::Course)> {
    let files =
        std::fs::read_dir(directory).expect("traces").map(|file| file.expect("file").path());
    let is_trace = |file: &PathBuf| {
        let begins = file.file_name().is_some_and(|own| own.to_string_lossy().starts_with(name));
        begins && file.extension().is_some_and(|end| end == "sqlog")
    };
    let course = |file: PathBuf| {
        let text = std::fs::read_to_string(&file).expect("a trace");
        let recording = marline_qlog::read(&text).expect("readable");
        assert!(recording.title.contains("live"), "{}", recording.title);
        (file, marline_qlog::Course::from_recording(&recording))
    };
    files.filter(is_trace).map(course).collect()
}

#[test]
fn real_packets_are_captured_and_our_ends_traced() {
    let _others = support::among_others();
    if !need::root() || ["ip", "tshark"].iter().any(|name| need::program(name).is_none()) {
        return;
    }
    let (dir, file) = place();
    let text = std::fs::read_to_string(&file).expect("text");
    let text =
        text.replace("count = 100", "count = 15").replace("\"6s\", \"7s\"", "\"700ms\", \"800ms\"");
    let (text, _) = text.rsplit_once("[[variant]]").expect("two variants");
    std::fs::write(&file, text.replace("warm_up = \"1s\"", "warm_up = \"0s\"")).expect("write");
    let refused = marline(dir.path(), &["run", "first.toml", "--stack", "mptcp", "--qlog"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("the kernel writes no traces"), "{said}");
    let run = ["run", "first.toml", "--stack", "live,mptcp", "--seeds", "1", "--pcap", "--qlog"];
    good(&marline(dir.path(), &run));
    let out = dir.path().join("target/lab/first");
    for name in ["live-default", "mptcp-kernel"] {
        for end in ["client", "server"] {
            let file = out.join(format!("pcap/{name}-1-{end}.pcapng"));
            let broken =
                shark(&file, "_ws.malformed || tcp.checksum.status == \"Bad\"", "frame.number");
            assert_eq!(broken, Vec::<String>::new(), "{name} {end}");
            for path in ["wifi", "lte"] {
                let joined = format!("frame.interface_name == \"{path}\" && tcp.len > 0");
                assert!(shark(&file, &joined, "frame.number").len() > 5, "{name} {end} {path}");
            }
            // Captures show the key exchange and the join, but no keys.
            let keys = shark(&file, "tcp.options.mptcp.subtype == 0", "tcp.options.mptcp.sendkey");
            let keys: String = keys.concat().replace([',', '0'], "");
            assert_eq!(keys, "", "{name} {end}");
            assert!(!shark(&file, "tcp.options.mptcp.subtype == 1", "frame.number").is_empty());
        }
    }
    // Packets that one end sent and the other never received were lost on WiFi.
    let sent = |file: &str, end: &str| {
        let file = out.join(format!("pcap/{file}-1-{end}.pcapng"));
        shark(&file, "tcp.dstport == 7100 && frame.interface_name == \"wifi\"", "frame.number")
            .len()
    };
    assert!(sent("live-default", "client") > sent("live-default", "server"));
    for end in ["client", "server"] {
        let traces = traces(&out.join("qlog"), &format!("live-default-1-{end}"));
        let is_drawn = |(file, course): &&(PathBuf, marline_qlog::Course)| {
            course.subflows.len() == 2 && file.with_extension("svg").exists()
        };
        assert_eq!(traces.iter().filter(is_drawn).count(), 1, "{end}: {traces:?}");
    }
    assert!(!out.join("qlog/mptcp-kernel-1-client.sqlog").exists());
    // Runs and files exist; if a file is missing, its run is repeated.
    let again = marline(dir.path(), &run);
    good(&again);
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(said.contains("2 of 2 runs already exist"), "{said}");
}

#[test]
fn a_killed_sweep_resumes_with_identical_results() {
    let _others = support::among_others();
    let (dir, file) = place();
    let page = docs();
    let mut text = std::fs::read_to_string(&file).expect("text");
    text.push_str(block(&page, "```toml sweep\n"));
    std::fs::write(&file, &text).expect("write");
    let [sweep] = &commands(&page, "marline-lab sweep first.toml")[..] else { panic!("a command") };
    let csv = |out: &str| std::fs::read(dir.path().join(out).join("sweep.csv"));
    let whole: Vec<String> = [sweep.as_slice(), &["--out".into(), "whole".into()]].concat();
    let table = good(&marline(dir.path(), &whole));
    assert!(table.contains("80ms") && table.contains("5%"), "{table}");
    assert!(String::from_utf8_lossy(&csv("whole").expect("csv")).contains("\n20,0,sim,default,"));

    let part = [sweep.as_slice(), &["--out".into(), "part".into(), "--jobs".into(), "1".into()]];
    let part = part.concat();
    let mut killed = Command::new(env!("CARGO_BIN_EXE_marline-lab"));
    killed.current_dir(dir.path()).args(&part).stdout(Stdio::null()).stderr(Stdio::null());
    let mut killed = killed.spawn().expect("start");
    let runs = dir.path().join("part/runs");
    let count = || std::fs::read_dir(&runs).map_or(0, Iterator::count);
    let start = Instant::now();
    while count() < 4 && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(2));
    }
    killed.kill().expect("kill");
    killed.wait().expect("wait");
    let kept = count();
    assert!((4..120).contains(&kept), "{kept} of 120 runs: killed too late for this test");
    assert!(csv("part").is_err(), "it had not ended");
    let mut again = part.clone();
    *again.last_mut().expect("jobs") = "4".to_owned();
    let output = marline(dir.path(), &again);
    good(&output);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("of 120 runs already exist"), "{said}");
    // The files are identical, interrupted or not, with one thread or four.
    assert_eq!(csv("part").expect("csv"), csv("whole").expect("csv"));
}

#[test]
fn shards_of_several_processes_add_up_to_the_result_of_one() {
    let _others = support::among_others();
    let (dir, file) = place();
    let mut text =
        std::fs::read_to_string(&file).expect("text").replace("count = 100", "count = 30");
    text.push_str(
        "[sweep]\n'path.lte.delay' = ['20ms', '80ms']\n'path.wifi.loss' = ['1%', '5%']\n",
    );
    std::fs::write(&file, &text).expect("write");
    let sweep = |out: &'static str, more: &[&'static str]| {
        let args = ["sweep", "first.toml", "--seeds", "3", "--format", "csv,parquet", "--out", out];
        [&args[..], more].concat()
    };
    for (shard, wanted) in [
        ("0/4", "no shard 0 of 4: expected 1/4 to 4/4"),
        ("5/4", "no shard 5 of 4: expected 1/4 to 4/4"),
        ("x", "expected NUMBER/SHARDS with two whole numbers, for example 1/4"),
    ] {
        let refused = marline(dir.path(), &sweep("none", &["--shard", shard]));
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(wanted), "{said}");
    }
    let plotted = ["run", "first.toml", "--shard", "1/2", "--plot"];
    let refused = marline(dir.path(), &plotted);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("cannot be used with"), "{said}");

    let whole = good(&marline(dir.path(), &sweep("whole", &["--jobs", "1"])));
    // Two processes make one shard at the same time, and one of them is killed; then the other shards are made.
    let start = |shard| {
        let mut process = Command::new(env!("CARGO_BIN_EXE_marline-lab"));
        process.current_dir(dir.path()).args(sweep("part", &["--jobs", "1", "--shard", shard]));
        process.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start")
    };
    let (mut killed, survivor) = (start("1/3"), start("1/3"));
    let runs = dir.path().join("part/runs");
    let begun = Instant::now();
    while std::fs::read_dir(&runs).map_or(0, Iterator::count) < 2
        && begun.elapsed() < Duration::from_secs(60)
    {
        std::thread::sleep(Duration::from_millis(2));
    }
    killed.kill().expect("kill");
    killed.wait().expect("wait");
    let said = good(&survivor.wait_with_output().expect("the other"));
    assert!(said.contains("shard 1/3: 8 of 24 runs, in part/runs"), "{said}");
    for shard in ["3/3", "2/3"] {
        assert!(!dir.path().join("part/sweep.csv").exists(), "shards write no tables");
        good(&start(shard).wait_with_output().expect("a shard"));
    }
    let collected = marline(dir.path(), &sweep("part", &[]));
    assert_eq!(good(&collected).replace(" to part", " to whole"), whole);
    let said = String::from_utf8_lossy(&collected.stderr);
    assert!(said.contains("24 of 24 runs already exist"), "{said}");
    for name in ["messages.csv", "runs.csv", "sweep.csv", "runs.parquet", "series.json"] {
        let read = |out: &str| std::fs::read(dir.path().join(out).join(name)).expect(name);
        assert!(read("part") == read("whole"), "{name}");
    }
}

#[test]
fn an_imported_measurement_becomes_a_path_that_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    let csv = "timestamp,down_rate_kbit_per_s,rtt_ms\n5,20000,40\n6,0,40\n7,8000,60\n";
    std::fs::write(dir.path().join("drive.csv"), csv).expect("a file");
    let import = ["import", "drive.csv", "--path", "lte", "--queue", "100ms"];
    let refused = marline(dir.path(), &import);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("--column THEIRS=OURS"), "{said}");
    let renamed = [&import[..], &["--column", "timestamp=time_s", "--out", "lte.toml"]].concat();
    good(&marline(dir.path(), &renamed));
    let path = std::fs::read_to_string(dir.path().join("lte.toml")).expect("a path");
    let rest = "\n[workload]\nkind = 'echo'\nbytes = 200\ngap = '50ms'\ncount = 50\n";
    std::fs::write(dir.path().join("drive.toml"), format!("{path}{rest}")).expect("a file");
    let table = good(&marline(dir.path(), &["run", "drive.toml", "--seeds", "1"]));
    // An answer waits while the link is down.
    let worst = table.lines().find(|line| line.trim_start().starts_with("sim")).expect("a line");
    let max: f64 = worst.split_whitespace().nth(7).expect("max").parse().expect("a number");
    assert!((800.0..1_300.0).contains(&max), "{table}");
}
