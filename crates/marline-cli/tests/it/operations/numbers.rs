//! Tests of connection numbers: short, and identical in all views and commands.

use super::support::socks::{echo, echo_target, open};
use super::support::{self, start_client, start_server};
use super::{ask, until};

/// Number of concurrent streams, each on a connection of its own.
const STREAMS: usize = 12;

/// With several threads, ids contain the thread in their highest bits.
#[test]
fn a_connection_has_at_most_six_digits_by_which_it_is_meant() {
    let _others = support::among_others();
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("control").display().to_string();
    let traces = dir.path().join("traces");
    let flags = ["--allow", "127.0.0.0/8", "--shards", "4", "--control", &control];
    let flags = [&flags[..], &["--qlog", traces.to_str().unwrap()]].concat();
    let server = start_server(dir.path(), &flags);
    let path = format!("127.0.0.1={}", server.address);
    let (_client, socks) =
        start_client(dir.path(), &server.invite_file, &["--path", &path, "--warm", "0"]);
    let target = echo_target();
    let mut streams: Vec<_> = (0..STREAMS).map(|_| open(socks, target).unwrap()).collect();
    streams.iter_mut().for_each(|stream| echo(stream, b"here"));

    let connections = || -> Vec<serde_json::Value> {
        let shown = ["monitor", "--table", "--once", "--json", "--control", &control];
        serde_json::from_str(&ask(dir.path(), &shown, true)).unwrap()
    };
    let before = connections();
    let mut numbers: Vec<u64> =
        before.iter().map(|one| one["connection"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert!(numbers.len() >= STREAMS && numbers.len() == before.len(), "{numbers:?}");
    assert!(numbers.iter().all(|number| (1..=999_999).contains(number)), "{numbers:?}");

    // Each number selects exactly the connection that has it.
    for (done, number) in numbers.iter().enumerate() {
        let number = number.to_string();
        let change = ["scheduler", "redundant", "--connection", &number, "--control", &control];
        assert_eq!(ask(dir.path(), &change, true), "1 connections changed\n");
        let after = connections();
        let changed = |one: &&serde_json::Value| one["scheduler"] == "redundant";
        let changed = after.iter().filter(changed).map(|one| one["connection"].as_u64().unwrap());
        let mut changed: Vec<u64> = changed.collect();
        changed.sort_unstable();
        assert_eq!(changed, numbers[..=done]);
    }
    let unknown = ["scheduler", "redundant", "--connection", "999999", "--control", &control];
    assert!(ask(dir.path(), &unknown, false).contains("no connection 999999"));

    let traced = || -> Vec<u64> {
        let files = std::fs::read_dir(&traces).unwrap().map(|file| file.unwrap().path());
        let texts = files.map(|file| std::fs::read_to_string(file).unwrap());
        let number = |text: String| {
            let rest = text.split("\"group_id\":\"").nth(1)?;
            rest.split('"').next()?.parse().ok()
        };
        texts.filter_map(number).collect()
    };
    until("traces have them, too", || {
        let traced = traced();
        numbers.iter().all(|number| traced.contains(number))
    });
}
