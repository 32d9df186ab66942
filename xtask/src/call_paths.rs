//! Call paths of ARCHITECTURE.md: the number of files that a reader opens, and missing functions and files.
//!
//! Names are compared, not types, so a missing function with a common name may go unnoticed. The check finds:
//! - a step that no earlier step of its path calls, unless its item begins with one of [`ENTRIES`];
//! - a file that a step calls and the path does not list. A call counts if the name is defined in only one file of the
//!   path's crates, by a function of at least [`LOGIC_LINES`] lines. Calls outside the usual case are exempt
//!   ([`BRANCHES`]);
//! - an entry of that list that is not needed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::TaskResult;
use crate::architecture::{PAGE, Place, crate_folder, places};
use crate::source::{self, Word};

/// Heading of the paths.
const HEADING: &str = "## Four call paths";
/// Titles of the paths, and their maximum numbers of files.
const FILE_LIMITS: &[(&str, usize)] =
    &[("Write to datagram", 20), ("ACK in", 18), ("SOCKS CONNECT", 16), ("UDP ASSOCIATE", 16)];
/// Prefixes of items whose first function is called on another machine, by another task, or by a library.
const ENTRIES: &[&str] = &["Client:", "Server:", "Lane:", "Back:"];
/// Minimum number of lines of a function for which a reader has to open its file.
const LOGIC_LINES: usize = 8;

/// Functions that steps call only outside the usual case, and self-explanatory data structures. Grouped by the reason
/// why their files are not listed.
const BRANCHES: &[(&str, &[&str])] = &[
    (
        "handshakes and resets",
        &[
            "marline-core/src/connection/fast_open_handshake.rs:on_fast_open_answer",
            "marline-core/src/connection/reception.rs:on_capable_data",
            "marline-core/src/connection/segment_builder.rs:fast_opening",
            "marline-core/src/endpoint/listener.rs:emit_reply",
            "marline-core/src/endpoint/listener.rs:on_late_segment",
            "marline-core/src/subflow/handshake.rs:on_segment_in_syn_sent",
            "marline-core/src/subflow/segment.rs:plain_header",
            "marline-core/src/subflow/segment.rs:rst_header",
            "marline-core/src/subflow/segment.rs:syn_ack_header",
            "marline-core/src/subflow/segment.rs:syn_header",
        ],
    ),
    (
        "signals, repairs, copies, pieces and probes",
        &[
            "marline-core/src/connection/segment_builder.rs:emit_repair",
            "marline-core/src/connection/segment_builder.rs:emit_signal",
            "marline-core/src/subflow/mtu.rs:on_sent",
            "marline-core/src/subflow/mtu.rs:request_probe_if_due",
            "marline-core/src/tables/silent_paths.rs:on_sent",
            "marline-datagram/src/lane/coding.rs:on_sent",
            "marline-datagram/src/lane/coding.rs:transmit_repair",
            "marline-datagram/src/lane/control.rs:apply_outcome",
            "marline-datagram/src/lane/control.rs:transmit_control",
            "marline-datagram/src/lane/control.rs:write_optional_items",
            "marline-datagram/src/lane/copies.rs:transmit_copy",
            "marline-datagram/src/lane/machine.rs:poll_timeout",
            "marline-datagram/src/lane/pieces.rs:cut_datagram",
            "marline-datagram/src/lane/pieces.rs:process_piece",
            "marline-datagram/src/lane/pieces.rs:transmit_piece",
            "marline-datagram/src/lane/repairing.rs:on_frame",
            "marline-datagram/src/lane/repairing.rs:on_repair",
            "marline-datagram/src/lane/repairing.rs:process_repaired",
        ],
    ),
    (
        "changed addresses, links, native TCP and TUN interfaces",
        &[
            "marline-io/src/carrier/validation.rs:check_address",
            "marline-io/src/carrier/validation.rs:on_challenge",
            "marline-io/src/carrier/validation.rs:on_response",
            "marline-io/src/driver/combined_packet.rs:write_batch",
            "marline-io/src/driver/combined_packet.rs:write_each",
            "marline-io/src/driver/generations.rs:pass_on",
            "marline-io/src/driver/link_events.rs:apply_carrier_changes",
            "marline-io/src/driver/link_events.rs:execute_route_orders",
            "marline-io/src/driver/routing.rs:may_send_datagram",
            "marline-io/src/driver/state.rs:connect",
            "marline-io/src/links/fallback.rs:on_link_answer",
            "marline-io/src/links/fallback.rs:on_udp_received",
        ],
    ),
    (
        "observers",
        &[
            "marline-core/src/tables/outbox.rs:push_decision",
            "marline-io/src/driver/observers.rs:frames",
            "marline-io/src/driver/observers.rs:observe",
            "marline-io/src/driver/observers.rs:pass_to_observer",
        ],
    ),
    (
        "data structures and estimators",
        &[
            "marline-core/src/connection/path_set.rs:wanted_buffer",
            "marline-core/src/subflow/ecn.rs:on_received",
            "marline-core/src/subflow/rate.rs:sample",
            "marline-core/src/tables/chunks.rs:refer_to",
            "marline-core/src/tables/chunks.rs:write",
            "marline-datagram/src/flows.rs:on_datagram",
            "marline-datagram/src/frame.rs:datagram_part",
            "marline-datagram/src/lane/inbox.rs:store",
            "marline-datagram/src/path.rs:room",
            "marline-io/src/driver/wakeups.rs:on_sent",
            "marline-proxy/src/client/backoff.rs:wait_for_next",
            "marline-proxy/src/client/udp_tunnel/inbox.rs:push",
            "marline-proxy/src/relay/socket_buffers.rs:record_blocked",
            "marline-proxy/src/server/admission.rs:take_permit",
            "marline-proxy/src/server/sessions.rs:add_session",
            "marline-proxy/src/socks/datagram.rs:parse",
        ],
    ),
    (
        "processing of the peer's data, which an ACK does not carry",
        &[
            "marline-core/src/connection/reception.rs:take_mapping",
            "marline-core/src/connection/silence.rs:watch_download",
        ],
    ),
    (
        "other services of the same port or connection",
        &[
            "marline-io/src/driver/egress.rs:serve_lanes",
            "marline-proxy/src/client/target_request.rs:request_on_used_connection",
            "marline-proxy/src/client/http_listener.rs:http",
            "marline-proxy/src/client/http_listener.rs:http_request",
            "marline-proxy/src/client/tunnel.rs:expect_message",
            "marline-proxy/src/client/udp_ports.rs:associate",
            "marline-proxy/src/client/udp_sources.rs:admit",
            "marline-proxy/src/deadlines.rs:apply_to",
            "marline-proxy/src/relay/standstill.rs:poll",
            "marline-proxy/src/server/datagrams.rs:carry_datagrams",
            "marline-proxy/src/server/own_resolver.rs:addresses",
            "marline-proxy/src/socks.rs:reply",
            "marline-proxy/src/socks/version_four.rs:read_request",
        ],
    ),
    (
        "opening of a lane's connection, as for CONNECT",
        &["marline-proxy/src/server/arrival.rs:authenticate_connection"],
    ),
    ("parts of the example policy", &["marline-algos/src/schedulers/auto/judge.rs:decide"]),
    (
        "calls to other functions of the same name (in a macro, a library or a parameter)",
        &[
            "marline-algos/src/registry/table.rs:make",
            "marline-core/src/connection/segment_builder.rs:assignment",
            "marline-core/src/connection/segment_builder.rs:emit",
            "marline-io/src/clock.rs:now",
            "marline-io/src/driver/streams.rs:pop",
            "marline-io/src/echo_socket.rs:send",
            "marline-proxy/src/client/places.rs:resize",
        ],
    ),
];

/// A step of a path.
struct Step<'a> {
    place: Place<'a>,
    is_entry: bool,
}

/// One path, as the page describes it.
struct CallPath<'a> {
    title: &'a str,
    steps: Vec<Step<'a>>,
}

/// A function of a crate, or several with the same name in one file.
#[derive(Default)]
struct Definition {
    code_lines: usize,
    bodies: String,
}

/// Functions of the crates of a path, by name and file.
type Definitions = BTreeMap<String, BTreeMap<String, Definition>>;

/// Fails with a list of all findings in the page's paths.
pub(crate) fn check(root: &Path) -> TaskResult {
    let page = fs::read_to_string(root.join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let wrong = findings(root, &page)?;
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n    ")) }
}

/// Collects every finding in a page's paths.
fn findings(root: &Path, page: &str) -> Result<Vec<String>, String> {
    let paths = call_paths(page);
    let titles: Vec<&str> = paths.iter().map(|path| path.title).collect();
    let known: Vec<&str> = FILE_LIMITS.iter().map(|(title, _)| *title).collect();
    if titles != known {
        return Ok(vec![format!("{PAGE}: expected the call paths {known:?}, found {titles:?}")]);
    }
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    for (path, (_, most)) in paths.iter().zip(FILE_LIMITS) {
        wrong.extend(judge(path, *most, &read_crates(root, path)?, &mut used));
    }
    for branch in listed_branches().filter(|branch| !used.contains(*branch)) {
        wrong.push(format!(
            "xtask/src/call_paths.rs: no step calls {branch}; remove it from the list"
        ));
    }
    Ok(wrong)
}

/// The paths of the page: a title in bold letters, and numbered items.
fn call_paths(page: &str) -> Vec<CallPath<'_>> {
    let places = places(page);
    let mut paths: Vec<CallPath<'_>> = Vec::new();
    let lines = page.lines().enumerate().skip_while(|(_, line)| *line != HEADING).skip(1);
    for (index, line) in lines.take_while(|(_, line)| !line.starts_with("## ")) {
        let title = line.strip_prefix("**").and_then(|rest| rest.strip_suffix("**"));
        if let Some(title) = title {
            paths.push(CallPath { title, steps: Vec::new() });
        } else if let Some((_, text)) = line.split_once(". ")
            && let Some(path) = paths.last_mut()
        {
            let mut is_entry = ENTRIES.iter().any(|entry| text.starts_with(entry));
            for place in places.iter().filter(|place| place.line == index + 1) {
                path.steps.push(Step { place: *place, is_entry });
                is_entry = false;
            }
        }
    }
    paths
}

/// Reads the functions of the crates of a path.
fn read_crates(root: &Path, path: &CallPath<'_>) -> Result<Definitions, String> {
    let crates: BTreeSet<&str> = path.steps.iter().map(|step| step.place.krate).collect();
    let mut definitions = Definitions::new();
    for krate in crates {
        let folder = crate_folder(root, krate).ok_or_else(|| format!("no crate {krate}"))?;
        read(&folder.join("src"), &format!("{krate}/src"), &mut definitions)?;
    }
    Ok(definitions)
}

/// Reads the functions of a folder's files, excluding their tests. `name` is the folder on the page.
fn read(folder: &Path, name: &str, into: &mut Definitions) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries.flatten() {
        let file_name = entry.file_name().to_string_lossy().into_owned();
        let (path, name) = (entry.path(), format!("{name}/{file_name}"));
        let is_test = file_name.trim_end_matches(".rs").ends_with("tests");
        if is_test || file_name == "testing.rs" {
            continue;
        }
        if path.is_dir() {
            read(&path, &name, into)?;
        } else if file_name.ends_with(".rs") {
            let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            define(&name, &text, into);
        }
    }
    Ok(())
}

fn define(file: &str, text: &str, into: &mut Definitions) {
    let text = text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or(text);
    let blanked = source::blank(text);
    for function in source::functions(&blanked) {
        let files = into.entry(function.name).or_default();
        let definition = files.entry(file.to_owned()).or_default();
        definition.code_lines = definition.code_lines.max(function.code_lines);
        definition.bodies.push_str(&blanked[function.body]);
        definition.bodies.push('\n');
    }
}

/// Collects the findings of one path. Adds the branches that it needs to `used`.
fn judge(
    path: &CallPath<'_>,
    most: usize,
    definitions: &Definitions,
    used: &mut BTreeSet<&'static str>,
) -> Vec<String> {
    let title = path.title;
    let listed: BTreeSet<String> = path.steps.iter().map(|step| file_of(&step.place)).collect();
    let mut wrong = BTreeSet::new();
    if listed.len() > most {
        let count = listed.len();
        wrong.insert(format!(
            "{PAGE}: {title}: {count} files, at most {most} allowed: merge or shorten"
        ));
    }
    let mut reached = BTreeSet::new();
    for Step { place, is_entry } in &path.steps {
        let (file, line) = (file_of(place), place.line);
        let Some(name) = place.function else {
            wrong.insert(format!("{PAGE}:{line}: {file} is named without a function"));
            continue;
        };
        if !is_entry && !reached.is_empty() && !reached.contains(name) {
            wrong.insert(format!("{PAGE}:{line}: {title}: no earlier step calls `{name}`"));
        }
        let definition = definitions.get(name).and_then(|files| files.get(&file));
        let bodies = definition.map_or("", |definition| &definition.bodies);
        for word in source::words(bodies) {
            reached.insert(word.text.to_owned());
            let called = definitions.get(word.text).filter(|_| word.is_called);
            let Some(other) = called.and_then(|files| file_of_call(files, &word)) else { continue };
            if listed.contains(other) {
                continue;
            }
            let called = format!("{other}:{}", word.text);
            if let Some(branch) = listed_branches().find(|branch| *branch == called) {
                used.insert(branch);
            } else {
                wrong.insert(format!(
                    "{PAGE}: {title}: `{name}` calls {called}, which is not listed"
                ));
            }
        }
    }
    wrong.into_iter().collect()
}

fn listed_branches() -> impl Iterator<Item = &'static str> {
    BRANCHES.iter().flat_map(|(_, functions)| functions.iter().copied())
}

fn file_of(place: &Place<'_>) -> String {
    format!("{}/{}", place.krate, place.file)
}

/// The file that a reader has to open for a called function: the only one that defines the name, or the only one named
/// after the owner.
fn file_of_call<'a>(files: &'a BTreeMap<String, Definition>, word: &Word<'_>) -> Option<&'a str> {
    let named_like = |file: &str, owner: &str| {
        let stem = file.rsplit('/').next().unwrap_or(file).trim_end_matches(".rs");
        stem == owner || stem.strip_suffix(owner).is_some_and(|rest| rest.ends_with('_'))
    };
    let mut fitting = files.iter().filter(|(file, _)| {
        files.len() == 1 || word.owner.is_some_and(|owner| named_like(file, owner))
    });
    let (file, definition) = fitting.next().filter(|_| fitting.next().is_none())?;
    (definition.code_lines >= LOGIC_LINES).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_TEXT: &str = "## Four call paths\n\n**Up**\n\n\
        1. Client: `k/src/a.rs:write` and `k/src/b.rs:send`, `:push`.\n2. `k/src/c.rs:emit`.\n\n\
        **Down**\n\n1. `k/src/d.rs:read`.\n\n## Others\n\n**No path**\n";
    const A: &str = "fn write(b: &B) { b.send() }";
    const B: &str = "fn send(&self) { self.push() } fn push(&self) { emit::<u8>(1) }";

    /// A function of eight lines.
    fn long(name: &str) -> String {
        format!("fn {name}() {{\n{}}}\n", "    step();\n".repeat(LOGIC_LINES))
    }

    fn definitions(files: &[(&str, &str)]) -> Definitions {
        let mut definitions = Definitions::new();
        for (name, text) in files {
            define(&format!("k/src/{name}.rs"), text, &mut definitions);
        }
        definitions
    }

    /// Findings of the first path of a page.
    fn judged(page: &str, most: usize, files: &[(&str, &str)]) -> Vec<String> {
        let paths = call_paths(page);
        judge(&paths[0], most, &definitions(files), &mut BTreeSet::new())
    }

    #[test]
    fn paths_are_read_with_their_steps_in_order() {
        let paths = call_paths(PAGE_TEXT);
        let titles: Vec<&str> = paths.iter().map(|path| path.title).collect();
        assert_eq!(titles, ["Up", "Down"]);
        let steps = paths[0].steps.iter().map(|step| {
            (file_of(&step.place), step.place.function.unwrap_or_default(), step.is_entry)
        });
        let step = |file: &str, name, is_entry| (format!("k/src/{file}.rs"), name, is_entry);
        let expected = [
            step("a", "write", true),
            step("b", "send", false),
            step("b", "push", false),
            step("c", "emit", false),
        ];
        assert!(steps.eq(expected));
    }

    #[test]
    fn each_file_is_counted_once() {
        let files = [("a", A), ("b", B), ("c", "fn emit() {}")];
        assert_eq!(judged(PAGE_TEXT, 3, &files), [""; 0]);
        let found = judged(PAGE_TEXT, 2, &files);
        assert_eq!(found, ["ARCHITECTURE.md: Up: 3 files, at most 2 allowed: merge or shorten"]);
    }

    #[test]
    fn steps_that_no_earlier_step_calls_are_found() {
        let files = [("a", A), ("b", "fn send() {} fn push() {}"), ("c", "fn emit() { push() }")];
        let found = judged(PAGE_TEXT, 3, &files);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[1].contains("Up: no earlier step calls `emit`"), "{found:?}");
        assert!(found[0].contains("Up: no earlier step calls `push`"), "{found:?}");
        // An item may state that it begins in another task.
        let page = PAGE_TEXT.replace("2. `k", "2. Server: `k");
        assert_eq!(judged(&page, 3, &files).len(), 1);
    }

    #[test]
    fn unlisted_called_files_are_found_by_name() {
        let with = |caller: &str, others: &[(&str, &str)]| {
            let a = format!("{A} fn write() {{ {caller} }}");
            let files = [&[("a", &*a), ("b", B), ("c", "fn emit() {}")], others].concat();
            judged(PAGE_TEXT, 3, &files)
        };
        let (room, other) = (long("room"), long("room"));
        let found = with("x.room()", &[("nagle", &room)]);
        assert_eq!(
            found,
            ["ARCHITECTURE.md: Up: `write` calls k/src/nagle.rs:room, which is not listed"]
        );
        // Two files have such a function. The owner's name decides.
        let both = [("nagle", &*room), ("send_buffer", &*other)];
        assert_eq!(with("x.room()", &both), [""; 0]);
        assert!(with("self.nagle.room()", &both)[0].contains("nagle.rs:room"));
        assert!(with("self.buffer().room()", &both)[0].contains("send_buffer.rs:room"));
        // A short function, a value, and a test do not count.
        assert_eq!(with("x.room()", &[("nagle", "fn room() {}")]), [""; 0]);
        assert_eq!(with("x.room", &[("nagle", &room)]), [""; 0]);
        let test = format!("\n#[cfg(test)]\nmod tests {{\n{room}}}\n");
        assert_eq!(with("x.room()", &[("nagle", &test)]), [""; 0]);
    }

    /// Removes the steps of each file in turn from the page.
    #[test]
    fn removing_most_files_is_noticed() {
        let root = crate::workspace_root();
        let page = fs::read_to_string(root.join(PAGE)).expect(PAGE);
        let (mut all, mut noticed) = (0, 0);
        for path in call_paths(&page) {
            let definitions = read_crates(&root, &path).expect("readable");
            let files: BTreeSet<_> = path.steps.iter().map(|step| file_of(&step.place)).collect();
            for file in files {
                let kept = path.steps.iter().filter(|step| file_of(&step.place) != file);
                let kept = kept.map(|step| Step { place: step.place, ..*step }).collect();
                let without = CallPath { title: path.title, steps: kept };
                let found = judge(&without, usize::MAX, &definitions, &mut BTreeSet::new());
                (all, noticed) = (all + 1, noticed + usize::from(!found.is_empty()));
            }
        }
        assert!(noticed * 3 >= all * 2, "{noticed} of {all}");
    }

    #[test]
    fn the_call_paths_of_the_page_are_complete_and_within_their_limits() {
        assert_eq!(check(&crate::workspace_root()), Ok(()));
    }

    #[test]
    fn a_missing_path_is_found() {
        let found = findings(&crate::workspace_root(), PAGE_TEXT).expect("readable");
        assert!(found[0].contains("found [\"Up\", \"Down\"]"), "{found:?}");
    }
}
