//! Test of `marline-lab agree`: results under several master roots, compared by the program.

use std::path::Path;
use std::process::Command;

use marline_papers::{Machine, Reproduction, Row, RunInfo, Samples, Table, store};

/// Results of the first key: a mean of this value, with the limit 10.
fn results(directory: &Path, master: u64, value: f64) {
    let values = (0..20).map(|n| value + f64::from(n % 3) - 1.0).collect();
    let mean = Samples::new(values, master).mean(|value: &f64| *value);
    let row = Row::new("mean").estimate(&mean, "ms").at_most(10.0);
    let tables = vec![Table::new("main", "T", vec![row])];
    let info = RunInfo {
        version: "0".to_owned(),
        program: "p".to_owned(),
        machine: Machine::current(),
        master,
        effort: "full".to_owned(),
        scale: 1.0,
        jobs: 2,
        seconds: 0.5,
        cpu_s: 1.0,
        digest: String::new(),
    };
    let of = directory.join(marline_papers::all()[0].key());
    store(&of, &Reproduction { tables, ..Reproduction::default() }, &info).expect("results");
}

/// Exit status and output.
fn agree(directories: &[&Path]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_marline-lab"));
    let done = command.args(["agree"]).args(directories).output().expect("marline");
    let said = [done.stdout, done.stderr].concat();
    (done.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn master_roots_that_contradict_each_other_fail() {
    let directory = tempfile::tempdir().expect("a directory");
    let [one, two, three] = ["1", "2", "3"].map(|name| directory.path().join(name));
    results(&one, 1, 5.0);
    results(&two, 2, 6.0);
    results(&three, 3, 15.0);
    let (status, said) = agree(&[&one, &two]);
    assert!(status == Some(0) && said.contains("1 rows judged under all 2 roots"), "{said}");
    let (status, said) = agree(&[&one, &two, &three]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("accepted under one root, not accepted under another: 1\n"), "{said}");
    assert!(said.contains("main: mean (at most 10 ms): 4.95 ["), "{said}");
    // The same master root twice is an error.
    results(&two, 1, 5.0);
    let (status, said) = agree(&[&one, &two]);
    assert!(status == Some(1) && said.contains("has the same master root 1"), "{said}");
    let (status, said) = agree(&[&one, &directory.path().join("none")]);
    assert!(status == Some(1) && said.contains("no results"), "{said}");
}
