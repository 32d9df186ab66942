use super::*;
use crate::experiment::file::ExperimentFile;
use crate::experiment::{Variant, simulate};

const WORKLOAD: &str = "\n[workload]\nkind = 'bulk'\nlasts = '6s'\n";

#[test]
fn a_csv_becomes_a_path_that_does_what_was_measured() {
    let text = "timestamp,cell,rate_mbit_per_s,rtt_ms,up_loss_percent\n\
                1000,7,20,40,0\n1002,7,20,60,\n1003,8,2,60,2.5\n1005,8,0,,0\n1005.5,8,2,,\n";
    let renamed = [("timestamp".to_owned(), "time_s".to_owned())];
    let measured = read_csv("x.csv", text, &renamed).expect("a measurement");
    assert_eq!(measured.ignored, ["cell"]);
    let toml = measured.toml("lte", Some("100ms")).expect("a path");
    for wanted in [
        "link = \"rate=20000000,delay=20000us,up.loss=0%,queue=100ms,outage=suspend\"",
        "at = \"2000000us\"\npath = \"lte\"\ncommand = \"set delay=30000us\"",
        "at = \"3000000us\"\npath = \"lte\"\ncommand = \"set rate=2000000,up.loss=2.5%\"",
        "at = \"5000000us\"\npath = \"lte\"\ncommand = \"down\"",
        "at = \"5000000us\"\npath = \"lte\"\ncommand = \"set up.loss=0%\"",
        "at = \"5500000us\"\npath = \"lte\"\ncommand = \"up\"",
    ] {
        assert!(toml.contains(wanted), "{wanted} in {toml}");
    }
    let file = ExperimentFile::from_toml("x.toml", &format!("{toml}{WORKLOAD}")).expect("a file");
    let outcome = simulate(&file.experiment, &Variant::new("auto"), 1).expect("a run");
    let workload = &file.experiment.workload;
    let goodput = |from, to| outcome.goodput_mbit_per_s(workload, from, to);
    let [fast, slow, dead] = [goodput(1e3, 3e3), goodput(3.5e3, 5e3), goodput(5.1e3, 5.5e3)];
    assert!((16.0..20.0).contains(&fast), "{fast}");
    assert!((1.3..2.1).contains(&slow) && dead < 0.01, "{slow} {dead}");
    assert!(goodput(5.6e3, 6e3) > 0.5, "what stood still goes on");
}

#[test]
fn all_that_is_wrong_with_a_csv_is_told_at_once() {
    let wrong = |text: &str| format!("{:#}", read_csv("x.csv", text, &[]).expect_err("wrong"));
    let said = wrong("time_s,delay_ms,loss\n0,10,0\n1,ten,0\n2,10,3\n1,10,0\n3,10\n");
    for wanted in [
        "line 3: `ten` in column `delay_ms` is no number",
        "line 4: 3 in column `loss`: must be from 0 to 1",
        "line 6: 2 fields, and the heading has 3",
    ] {
        assert!(said.contains(wanted), "{wanted} in {said}");
    }
    let said = wrong("when,delay_ms\n0,10\n");
    assert!(
        said.contains("one column of times (time_s,") && said.contains("it has when, delay_ms"),
        "{said}"
    );
    assert!(wrong("time_s,loss\n1,0\n0,0\n").contains("line 3: the time is before"));
    assert!(wrong("").contains("is empty") && wrong("time_s,loss\n").contains("no sample"));
    let many = format!("time_s,loss\n{}", "x,0\n".repeat(30));
    assert!(wrong(&many).contains("and 22 more"), "{}", wrong(&many));
    let renamed = [("nowhere".to_owned(), "time_s".to_owned())];
    let said = read_csv("x.csv", "time_s,loss\n0,0\n", &renamed).expect_err("no such column");
    assert!(said.to_string().contains("no column `nowhere`; it has time_s, loss"), "{said}");
}

#[test]
fn what_iperf3_measured_is_a_rate_of_its_direction() {
    let interval = |start: f64, rate: f64, omitted: bool| {
        format!(
            "{{\"sum\":{{\"start\":{start},\"end\":0,\"bits_per_second\":{rate},\"omitted\":{omitted}}}}}"
        )
    };
    let intervals =
        [interval(0.0, 9e9, true), interval(1.0, 20e6, false), interval(2.00001, 5e6, false)];
    let text = format!(
        "{{\"start\":{{\"test_start\":{{\"protocol\":\"TCP\",\"reverse\":1}}}},\"intervals\":[{}]}}",
        intervals.join(",")
    );
    let toml = read_iperf3("x.json", &text).and_then(|measured| measured.toml("wifi", None));
    let toml = toml.expect("a path");
    assert!(toml.contains("link = \"down.rate=20000000\""), "{toml}");
    assert!(
        toml.contains("at = \"1000010us\"") && toml.contains("set down.rate=5000000"),
        "{toml}"
    );
    let failed = read_iperf3("x.json", "{\"intervals\":[],\"error\":\"unable to connect\"}");
    assert!(failed.expect_err("failed").to_string().contains("iperf3 failed: unable to connect"));
    assert!(read_iperf3("x.json", "time_s,loss").is_err());
    let none = read_iperf3("x.json", "{\"intervals\":[]}").expect_err("nothing");
    assert!(none.to_string().contains("no sample"), "{none}");
}
