//! Test that tshark reads captures of simulated connections as native Multipath TCP.

use std::path::Path;
use std::process::Command;

use crate::cases::oracle::stream;
use crate::cases::{connection, link};
use marline_sim::{Amount, Bulk, Capture, Paths, PathsConfig};
use marline_testkit::wiretap;
use marline_time::{Instant, SeedTree};

/// Writes a capture of the client during a small transfer over two paths, in both directions.
fn capture(file: &Path, checksums: bool) {
    let links = ["rate=20M,delay=10ms,loss=1%", "rate=10M,delay=30ms,loss=1%"].map(link);
    let mut connection = connection("min-rtt");
    connection.dss_checksum = checksums;
    let config = PathsConfig::new(links.to_vec(), connection);
    let mut paths = Paths::new(&config, SeedTree::new(3));
    let addresses = [Paths::address(0, 0), Paths::address(1, 0)];
    paths.world.observe(Box::new(Capture::new(paths.client, &addresses, 64 << 20)));
    let amount = Amount::Bytes(300_000);
    paths.listen(Box::new(move |_| Box::new(Bulk::new(amount, 1, 2))));
    paths.connect(0, Box::new(Bulk::new(amount, 2, 1))).expect("a connection");
    paths.world.run_until(Instant::from_secs(30));
    let (client, server) = (paths.client_report(0).unwrap(), paths.server_report(0).unwrap());
    stream::complete(client, server).unwrap();
    stream::complete(server, client).unwrap();
    let capture: &Capture = paths.world.observer().expect("the observer was set");
    assert_eq!(capture.left_out(), 0);
    std::fs::write(file, capture.bytes()).unwrap();
}

/// Lines that tshark prints for a display filter and further arguments.
fn tshark(program: &Path, file: &Path, filter: &str, more: &[&str]) -> Vec<String> {
    let mut command = Command::new(program);
    // The bytes are not TLS, so no tool must try to reassemble records from them.
    let options = ["tcp.check_checksum:TRUE", "tcp.desegment_tcp_streams:FALSE"];
    command.arg("-r").arg(file).args(options.iter().flat_map(|option| ["-o", option]));
    command.args(["-Y", filter]).args(more);
    let output = command.output().expect("tshark runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    text.lines().map(str::to_owned).collect()
}

#[test]
fn tshark_finds_nothing_malformed_and_knows_the_connection() {
    let Some(program) = marline_testkit::need::program("tshark") else { return };
    for checksums in [false, true] {
        let name = format!("marline-sim-{}-{checksums}.pcapng", std::process::id());
        let file = std::env::temp_dir().join(name);
        capture(&file, checksums);
        let count = |filter: &str| tshark(&program, &file, filter, &[]).len();
        assert_eq!(
            count("_ws.malformed || tcp.checksum.status == 0 || ip.checksum.status == 0"),
            0
        );
        // tshark uses the keys: it assigns subflows with valid tokens and HMACs to one stream.
        assert_eq!(
            count("tcp.options.mptcp.sendkey && tcp.flags.syn == 1"),
            1,
            "the SYN/ACK's key"
        );
        assert!(count("tcp.options.mptcp.recvtok") > 0, "the join's token");
        assert!(count("tcp.options.mptcp.sendhmac") > 0, "the third ACK's HMAC");
        let mapped = count("tcp.options.mptcp.rawdataseqno");
        // Every eighth segment of a run has a mapping.
        assert!(mapped > 100, "{mapped} mappings");
        let streams =
            tshark(&program, &file, "mptcp.stream", &["-T", "fields", "-e", "mptcp.stream"]);
        assert!(
            streams.len() > 400 && streams.iter().all(|stream| stream == "0"),
            "one connection"
        );
        std::fs::remove_file(&file).unwrap();
    }
}

/// The bytes of a capture of a transfer, and the checker's findings.
fn tapped(checksums: bool) -> (Vec<u8>, wiretap::Findings) {
    // Tests of one process run at the same time.
    static TAPS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let tap = TAPS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("marline-sim-tap-{}-{tap}.pcapng", std::process::id());
    let file = std::env::temp_dir().join(name);
    capture(&file, checksums);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let findings = wiretap::check(&[&bytes]).expect("a capture");
    (bytes, findings)
}

#[test]
fn the_checker_computes_everything_again() {
    for checksums in [false, true] {
        let (_, findings) = tapped(checksums);
        assert!(findings.is_clean(), "{findings}\n{:#?}", findings.faults);
        for check in ["keys echoed", "tokens of joins", "HMACs of SYN/ACKs", "HMACs of third ACKs"]
        {
            assert_eq!(findings.count_correct(check), 1, "{check}: {findings}");
        }
        let mapped = if checksums { "DSS checksums" } else { "bytes sent again" };
        assert!(findings.count_correct(mapped) > 0, "{findings}");
    }
}

#[test]
fn the_checker_finds_one_wrong_byte_and_bears_any_end() {
    let (bytes, clean) = tapped(true);
    let last_data = bytes.len() / 2;
    let mut found = std::collections::BTreeSet::new();
    for at in (last_data..last_data + 2_000).step_by(97) {
        let mut wrong = bytes.clone();
        wrong[at] ^= 0x10;
        // A block's length may be changed, and then the file is not a valid capture.
        let Ok(findings) = wiretap::check(&[&wrong]) else { continue };
        found.extend(findings.checks.into_iter().filter(|(_, (_, bad))| *bad > 0).map(|c| c.0));
    }
    assert!(found.contains("TCP checksums") && found.contains("DSS checksums"), "{found:?}");
    for end in (0..bytes.len()).step_by(bytes.len() / 50) {
        let _ = wiretap::check(&[&bytes[..end]]).map(|f| assert!(f.is_clean(), "{end}: {f}"));
    }
    // Two files of the same host are checked together.
    let both = wiretap::check(&[&bytes, &bytes]).expect("captures");
    assert!(both.is_clean(), "{both}\n{:#?}", both.faults);
    assert_eq!(both.count_correct("TCP checksums"), 2 * clean.count_correct("TCP checksums"));
}
