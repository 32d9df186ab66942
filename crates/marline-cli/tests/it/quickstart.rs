//! Test that executes docs/start/quickstart.md literally.
//!
//! Info strings of the page's blocks contain the machine that runs them (`role=`), whether they keep running
//! (`background ready=".."`), the input (`stdin=`, `type=`), the expected output (`expect=`), and an event before
//! them (`event=`). The blocks run in three network namespaces: a client with `wlan0` and `wwan0`, a server, and an
//! internet between them with example.org and host.example, whose addresses are public only there. This needs root.
//! Without it the test is skipped with a message.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use super::support;
use super::support::testbed::{Testbed, Until, namespaces_work};
use marline_testkit::need;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/start/quickstart.md");
const WORLD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/quickstart_world.sh");
const STEP_S: &str = "30";

/// A fenced block of the page.
struct Block {
    line: usize,
    language: String,
    attributes: BTreeMap<String, String>,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut out = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let (language, rest) = info.split_once(' ').unwrap_or((info, ""));
        let text = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let text = text.collect::<Vec<_>>().join("\n") + "\n";
        let language = language.to_owned();
        out.push(Block { line: number + 1, language, attributes: attributes(rest), text });
    }
    out
}

/// `a=b c="d e" f`: a word without a value has an empty one.
fn attributes(text: &str) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = rest.find([' ', '=']).unwrap_or(rest.len());
        let (name, tail) = rest.split_at(end);
        let (value, tail) = match tail.strip_prefix('=') {
            None => ("", tail),
            Some(tail) => match tail.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"').expect("a closing quote"),
                None => tail.split_at(tail.find(' ').unwrap_or(tail.len())),
            },
        };
        out.insert(name.to_owned(), value.to_owned());
        rest = tail.trim_start();
    }
    out
}

fn make_world(dir: &Path) -> Testbed {
    for role in ["bin", "client", "server", "web", "ssh"] {
        std::fs::create_dir_all(dir.join(role)).unwrap();
    }
    std::fs::copy(env!("CARGO_BIN_EXE_marline"), dir.join("bin/marline")).unwrap();
    std::fs::write(dir.join("web/index.html"), "Hello from example.org\n").unwrap();
    Testbed::make(dir, WORLD)
}

/// Runs a block as it is on the page.
fn run(testbed: &mut Testbed, block: &Block, input: &[u8]) {
    let get = |name: &str| block.attributes.get(name).map(String::as_str);
    let role = get("role").expect("a role");
    let place = format!("docs/start/quickstart.md:{}", block.line);
    if let Some(event) = get("event") {
        let status = testbed.command(role, event, STEP_S).status().unwrap();
        assert!(status.success(), "{place}: {event}");
    }
    if let Some(ready) = get("ready") {
        eprintln!("{place}");
        testbed.start(role, &block.text, Until::Says(ready));
        return;
    }
    let mut command = testbed.command(role, &block.text, STEP_S);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, err) = support::texts(&output);
    assert!(output.status.success(), "{place}: {}\n{out}\n{err}", output.status);
    let expected = get("expect").unwrap_or_default();
    assert!(out.contains(expected), "{place}: no {expected:?} in {out:?}\n{err}");
}

#[test]
fn the_page_works_word_for_word() {
    let _alone = support::lock_exclusively();
    for program in ["curl", "ssh", "sshd", "ssh-keygen", "unshare", "nsenter", "ip", "python3"] {
        let Some(_) = need::program(program) else { return };
    }
    if !namespaces_work() {
        return need::skip("creating network namespaces needs root");
    }
    let page = std::fs::read_to_string(PAGE).unwrap();
    let blocks = blocks(&page);
    let config = blocks.iter().find(|block| block.language == "toml").expect("a TOML example");
    let dir = tempfile::tempdir().unwrap();
    let mut testbed = make_world(dir.path());
    let mut steps = 0;
    for block in blocks.iter().filter(|block| block.attributes.contains_key("role")) {
        let typed = block.attributes.get("type").map(|line| format!("{line}\n").into_bytes());
        let input = match block.attributes.get("stdin").map(String::as_str) {
            Some("invite") => std::fs::read(dir.path().join("server/invite")).unwrap(),
            Some("config") => config.text.clone().into_bytes(),
            Some(other) => panic!("stdin={other}"),
            None => typed.unwrap_or_default(),
        };
        run(&mut testbed, block, &input);
        steps += 1;
    }
    assert!(steps >= 10, "only {steps} steps were found");
}
