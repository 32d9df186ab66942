//! Test that stops `marline client` with a signal for some seconds while an answer is on its way. That time must not
//! count as a round-trip time. Needs root.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use marline_lab::scenario::Side;

use super::support;
use super::support::two_uplinks::{self, PATIENCE, TwoUplinks, hear};

/// A round trip of 300 ms, during which the client is stopped.
const SLOW: &str = "rate=20M,delay=150ms,queue=100ms";
const STOPPED: Duration = Duration::from_secs(4);

/// Echoes all data.
#[test]
fn reflector() {
    if two_uplinks::plays(reflector) {
        two_uplinks::echo("127.0.0.1:8080");
    }
}

/// Sends a word for each line on its standard input, and prints a line when the echo arrives.
#[test]
fn speaker() {
    if !two_uplinks::plays(speaker) {
        return;
    }
    let mut stream = TcpStream::connect("127.0.0.1:9000").expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    println!("connected");
    for line in BufReader::new(std::io::stdin()).lines() {
        let line = line.expect("a line");
        stream.write_all(line.as_bytes()).expect("written");
        println!("sent {line}");
        stream.read_exact(&mut vec![0; line.len()]).expect("the echo returns");
        println!("back {line}");
    }
}

/// Returns the longest smoothed round-trip time in `marline status`, in microseconds.
fn longest_round_trip_us(hosts: &TwoUplinks) -> u64 {
    let text = hosts.shell(Side::Client, "marline status --json --control client.sock");
    let mut longest = None;
    let mut rest = text.as_str();
    while let Some((_, after)) = rest.split_once("\"srtt_us\":") {
        let digits: String = after.trim_start().chars().take_while(char::is_ascii_digit).collect();
        longest = longest.max(digits.parse::<u64>().ok());
        rest = after;
    }
    longest.unwrap_or_else(|| panic!("no round trip in {text}"))
}

#[test]
fn a_client_that_is_stopped_while_it_waits_for_an_answer_does_not_take_that_for_a_round_trip() {
    let _place = support::among_others();
    if !two_uplinks::possible(&[]) {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let scenario = two_uplinks::wifi_and_lte(SLOW, SLOW);
    let mut hosts = TwoUplinks::set(&scenario, "paused", dir.path());
    hear(&hosts.role(Side::Server, "", reflector), "ready");
    hosts.marline_server("udp");
    let client = "marline client --invite-file invite --path wifi \
                  -L 9000:127.0.0.1:8080 --warm 0 --control client.sock";
    hear(&hosts.program(Side::Client, client), "listening on");
    let pid = hosts.newest_pid();
    let (mut tell, told) = hosts.dialogue(Side::Client, speaker);
    hear(&told, "connected");
    let mut say = |word: &str| writeln!(tell, "{word}").expect("told");
    for _ in 0..3 {
        say("hello");
        hear(&told, "back hello");
    }
    let usual = longest_round_trip_us(&hosts);
    assert!((250_000..1_000_000).contains(&usual), "{usual} us");
    say("pause");
    hear(&told, "sent pause");
    std::thread::sleep(Duration::from_millis(50));
    hosts.shell(Side::Client, &format!("kill -s STOP {pid}"));
    std::thread::sleep(STOPPED);
    hosts.shell(Side::Client, &format!("kill -s CONT {pid}"));
    hear(&told, "back pause");
    let after = longest_round_trip_us(&hosts);
    println!("smoothed round trip: {usual} us before, {after} us after");
    assert!(after <= usual + usual / 4, "{usual} us before, {after} us after");
}
