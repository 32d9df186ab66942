use marline_proxy::client::open::OpenError;
use marline_proxy::client::trouble::Trouble;

use super::*;
use crate::doctor::FindingStatus;

const SERVER: &str = "9.9.9.1:7777";

fn spec(path: &str) -> PathSpec {
    path.parse().expect("a path")
}

fn silent() -> CandidateResult {
    CandidateResult::Unreached { cause: "no answer".to_owned(), help: "open the port".to_owned() }
}

fn gone(path: &str, transport: Transport, end: CandidateResult) -> TriedCandidate {
    let way =
        Candidate { path: spec(path), server: SERVER.parse().expect("an address"), transport };
    TriedCandidate { way, end, took: Duration::from_millis(12), findings: Vec::new() }
}

/// Findings for paths, each with its results over UDP and over TCP.
fn concluded(paths: &[(&str, CandidateResult, CandidateResult)]) -> Examination {
    let ways: Vec<(PathSpec, [TriedCandidate; 2])> = paths
        .iter()
        .map(|(path, udp, tcp)| {
            let udp = gone(path, Transport::Udp, udp.clone());
            (spec(path), [udp, gone(path, Transport::Tcp, tcp.clone())])
        })
        .collect();
    let ways: Vec<(&PathSpec, Vec<&TriedCandidate>)> =
        ways.iter().map(|(path, gone)| (path, gone.iter().collect())).collect();
    add_findings(Vec::new(), &ways)
}

fn last(examination: &Examination) -> &str {
    &examination.findings.last().expect("a conclusion").text
}

#[test]
fn a_path_works_by_either_carrier_and_the_other_one_is_forgiven() {
    let found = concluded(&[("wlan0", silent(), CandidateResult::Served)]);
    assert!(found.can_connect());
    assert_eq!(found.paths[0].cause.as_deref(), Some("over TCP, as UDP gets no answer"));
    assert!(found.findings.iter().all(|finding| finding.status != FindingStatus::Fails));
    let found = concluded(&[("wlan0", CandidateResult::Served, silent())]);
    assert_eq!((found.can_connect(), found.paths[0].cause.clone()), (true, None));
    assert_eq!(last(&found), "a client can connect over wlan0");
    let found = concluded(&[("wlan0", silent(), silent())]);
    assert!(!found.can_connect());
    assert_eq!(
        (found.paths[0].state, found.paths[0].cause.as_deref()),
        ("unreachable", Some("no answer"))
    );
    assert_eq!(last(&found), "a client cannot connect: no path leads to the server");
}

#[test]
fn a_server_that_rejects_the_client_is_reported_with_a_remedy() {
    let away = || CandidateResult::Rejected(Trouble::from(&OpenError::Pin));
    let found = concluded(&[("wlan0", away(), away()), ("wwan0", silent(), away())]);
    assert!(!found.can_connect());
    assert!(found.paths.iter().all(|path| path.state == "unreachable"));
    assert!(last(&found).contains("key differs from the invite's"), "{}", last(&found));
    assert!(last(&found).ends_with("ask the server's owner for a new invite"), "{}", last(&found));
}

#[test]
fn the_paths_together_show_where_the_fault_is() {
    let of = |paths: &[(&str, CandidateResult, CandidateResult)]| {
        let found = concluded(paths);
        let lines = found.findings.into_iter().filter(|finding| finding.what == PATHS);
        lines.map(|finding| finding.text).collect::<Vec<_>>()
    };
    let one = of(&[("wlan0", silent(), silent()), ("wwan0", CandidateResult::Served, silent())]);
    assert!(
        one[0].contains("answers over wwan0: the network behind wlan0 is down or blocks"),
        "{one:?}"
    );
    assert!(of(&[("wlan0", silent(), silent()), ("wwan0", silent(), silent())]).is_empty());
    assert!(
        of(&[
            ("wlan0", CandidateResult::Served, silent()),
            ("wwan0", silent(), CandidateResult::Served)
        ])
        .is_empty()
    );
}

#[tokio::test]
async fn addresses_need_no_resolver_and_a_name_without_any_is_named() {
    let servers = ["192.0.2.1:7", "[2001:db8::1]:7"].map(|text| text.parse().unwrap());
    let (findings, addresses) = resolve(&servers).await;
    assert!(findings.is_empty());
    assert_eq!(addresses.len(), 2);
    let (findings, addresses) = resolve(&["nobody.invalid:7".parse().unwrap()]).await;
    assert!(addresses.is_empty());
    assert!(findings[0].text.contains("nobody.invalid does not resolve"), "{findings:?}");
}
