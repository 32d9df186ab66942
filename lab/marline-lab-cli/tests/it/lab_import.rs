//! Test of `marline-lab import` and `what-if` with the commands of docs/research/import.md, and with iperf3's
//! output.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use marline_testkit::{free_address, need};

use super::lab_what_if::TWO_PATHS;
use super::support::{self, run_err, run_ok};

const PAGE: &str = include_str!("../../../../docs/research/import.md");

const REST: &str = "\
[[path]]
name = 'wifi'
link = 'rate=20M,delay=10ms'
[workload]
kind = 'echo'
bytes = 200
gap = '50ms'
count = 50
";

/// Runs a line of the page in a shell, with this build as `marline`.
fn typed(line: &str, at: &Path) -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_marline-lab")).parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", line]).current_dir(at).stdin(Stdio::null());
    shell.env("PATH", format!("{}:{path}", programs.display()));
    let output = shell.output().expect("bash");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Creates files with the page's names and columns.
fn measurements(at: &Path) {
    let write = |name: &str, text: &str| std::fs::write(at.join(name), text).expect("a file");
    write("drive.csv", "time_s,down_rate_kbit_per_s,rtt_ms\n5,20000,40\n6,9000,40\n7,8000,60\n");
    write("rest.toml", REST);
    write("two.toml", TWO_PATHS);
    run_ok(at, &["run", "two.toml", "--seeds", "1", "--pcap", "--out", "out"]);
    for (name, path, end) in [
        ("client", "lte", "client"),
        ("server", "lte", "server"),
        ("w-client", "wifi", "client"),
        ("w-server", "wifi", "server"),
        ("l-client", "lte", "client"),
        ("l-server", "lte", "server"),
        ("wifi", "wifi", "client"),
        ("lte", "lte", "client"),
    ] {
        let from = at.join(format!("out/pcap/{path}-1-{end}.pcapng"));
        std::fs::copy(from, at.join(format!("{name}.pcap"))).expect("a capture");
    }
    write(
        "irtt-10ms-10m-2024-05-01.csv",
        "timestamp,rtt,uplink,downlink\n1.00,40.5,22.1,18.4\n1.01,41,22.5,18.5\n",
    );
    write(
        "B_2019.12.14_10.16.30.csv",
        "Timestamp,Longitude,Latitude,Speed,Operatorname,CellID,NetworkMode,RSRP,DL_bitrate,UL_bitrate,State\n\
         2019.12.14_10.16.30,-8.49,51.89,1,B,11,5G,-96,31200,310,D\n\
         2019.12.14_10.16.31,-8.49,51.89,1,B,11,5G,-97,42100,420,D\n",
    );
}

#[test]
fn the_page_runs_as_it_is_written() {
    let _others = support::among_others();
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path();
    measurements(at);
    let code = PAGE.split("```\n").skip(1).step_by(2).flat_map(str::lines);
    // Commands that need a network are left out.
    let lines: Vec<&str> = code.filter(|line| !line.starts_with("tcpdump ")).collect();
    assert!(lines.len() >= 8, "{lines:?}");
    for line in lines {
        let said = typed(line, at);
        let words: Vec<&str> = line.split_whitespace().take(2).collect();
        match words[..] {
            ["marline-lab", "import"] => {
                let whole =
                    if line.contains('>') { at.join("lte.toml") } else { continue_with(at, &said) };
                let toml = std::fs::read_to_string(whole).expect("a path");
                assert!(
                    toml.contains("[[path]]") && toml.contains("command = \"set "),
                    "{line}: {toml}"
                );
            }
            ["marline-lab", "run"] => assert!(said.contains("p99"), "{line}: {said}"),
            ["marline-lab", "what-if"] => assert!(said.contains("both"), "{line}: {said}"),
            _ => assert!(said.is_empty(), "{line}: {said}"),
        }
    }
}

/// Writes the output to a file.
fn continue_with(at: &Path, said: &str) -> PathBuf {
    let file = at.join("printed.toml");
    std::fs::write(&file, said).expect("a file");
    file
}

/// An iperf3 server that ends with the test.
struct Server(Child, String);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn iperf3_server(program: &Path, more: &[&str]) -> Server {
    let port = free_address().port().to_string();
    let mut command = Command::new(program);
    command.args(["-s", "-p", &port]).args(more).stdin(Stdio::null()).stdout(Stdio::null());
    Server(command.spawn().expect("iperf3"), port)
}

#[test]
fn iperf3_output_becomes_a_path() {
    let _others = support::among_others();
    let Some(program) = need::program("iperf3") else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path();
    let (plain, json) =
        (iperf3_server(&program, &[]), iperf3_server(&program, &["--json", "-i", "0.2"]));
    let measure = |name: &str, server: &Server, more: &[&str]| {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let mut command = Command::new(&program);
            command.args([
                "-c",
                "127.0.0.1",
                "-p",
                &server.1,
                "-n",
                "1500K",
                "-i",
                "0.2",
                "--json",
            ]);
            let output = command.args(more).stdin(Stdio::null()).output().expect("iperf3");
            std::fs::write(at.join(name), &output.stdout).expect("a file");
            // The server may not listen yet, or may still be busy with the previous test; with `--json` that is
            // not a failure.
            let refused = String::from_utf8_lossy(&output.stdout).contains("\"error\":");
            if output.status.success() && !refused || Instant::now() > until {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let (tcp, udp) = (["-b", "20M"], ["-u", "-b", "20M"]);
    let (back, told) = (["-R"], ["--get-server-output"]);
    for (name, server, more, wanted) in [
        ("up.json", &plain, &tcp[..], "link = \"up.rate="),
        ("down.json", &plain, &[&tcp[..], &back].concat(), "link = \"down.rate="),
        ("udp-down.json", &plain, &[&udp[..], &back].concat(), "link = \"down.rate="),
        ("udp-up.json", &json, &[&udp[..], &told].concat(), "link = \"up.rate="),
    ] {
        measure(name, server, more);
        let path = run_ok(at, &["import", name]);
        assert!(path.contains(wanted) && path.contains("set "), "{name}: {path}");
        assert_eq!(name.starts_with("udp"), path.contains("loss="), "{name}: {path}");
    }
    // A datagram sender's results show what it sent, not what the link carried.
    for more in [&udp[..], &[&udp[..], &told].concat()] {
        measure("sent.json", &plain, more);
        let refused = run_err(at, &["import", "sent.json"]);
        assert!(refused.contains("sent, not received"), "{refused}");
    }
}
