//! Throughput and connection setup of `marline up`: kernel TCP, the interface, sealed datagrams, the server and kernel
//! TCP again, all on one machine, compared with connections without a tunnel. Medians of five. Needs root, iproute2,
//! iperf3 and python3.
//!
//! ```text
//! sudo cargo bench -p marline-cli --bench whole_machine
//! ```

use std::process::Command;

const SCRIPT: &str = include_str!("whole_machine.sh");
const RUNS: usize = 5;

fn main() {
    if !marline_testkit::need::root() {
        return;
    }
    for program in ["ip", "iperf3", "python3"] {
        if marline_testkit::need::program(program).is_none() {
            return;
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut measured: [Vec<f64>; 5] = Default::default();
    for _ in 0..RUNS {
        let mut command = Command::new("bash");
        command.args(["-euc", SCRIPT, "bash", env!("CARGO_BIN_EXE_marline")]);
        let output = command.current_dir(&dir).output().expect("bash");
        let text = String::from_utf8_lossy(&output.stdout);
        let words: Vec<f64> =
            text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect();
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && words.len() == measured.len(), "{text}{err}");
        for (all, word) in measured.iter_mut().zip(words) {
            all.push(word);
        }
    }
    let [direct, up, down, connect, connect_up] = measured.map(median);
    println!("without a tunnel          {direct:6.2} Gbit/s, connected after {connect:4.0} us");
    println!(
        "up, to the far side       {up:6.2} Gbit/s ({:.2}), connected after {connect_up:4.0} us",
        up / direct
    );
    println!("up, from the far side     {down:6.2} Gbit/s ({:.2})", down / direct);
    println!("figure up-to-gbit {up:.2}\nfigure up-from-gbit {down:.2}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
