use marline_io::{DeliveryError, UnansweredPackets};

use super::*;

const WLAN: &str = "192.168.1.2";
const WWAN: &str = "10.70.0.2";
const SERVER: &str = "9.9.9.1:7777";

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn contact(local: &str, remote: &str) -> Contact {
    let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
    Contact { local, remote, question: None, heard_at: None, delivery_error: None }
}

fn asked(mut contact: Contact, since: u64, last: u64, tries: u32) -> Contact {
    contact.question = Some(UnansweredPackets { since: at(since), last_at: at(last), tries });
    contact
}

fn heard(mut contact: Contact, ms: u64) -> Contact {
    (contact.question, contact.delivery_error, contact.heard_at) = (None, None, Some(at(ms)));
    contact
}

fn record_delivery_error(
    mut contact: Contact,
    ms: u64,
    by: Option<&str>,
    kind: DeliveryErrorKind,
) -> Contact {
    let by = by.map(|by| by.parse().unwrap());
    contact.delivery_error = Some(DeliveryError { since: at(ms), last_at: at(ms), by, kind });
    contact
}

fn contact_text(contact: &Contact, ms: u64) -> String {
    Reach::evaluate(contact, at(ms)).to_string()
}

#[test]
fn contact_states_have_texts() {
    let new = contact(WLAN, SERVER);
    assert_eq!(contact_text(&new, 0), "not yet known");
    let open = asked(new.clone(), 0, 1_000, 2);
    assert_eq!(contact_text(&open, 2_900), "not yet known");
    assert_eq!(contact_text(&open, 3_000), "no answer for 3 s (tried 2 times)");
    assert_eq!(
        contact_text(&asked(new.clone(), 0, 0, 1), 9_000),
        "not yet known",
        "one may get lost"
    );
    assert_eq!(contact_text(&heard(open.clone(), 500), 800), "answers (last received 300 ms ago)");
    let closed = DeliveryErrorKind::PortClosed;
    let refused = record_delivery_error(open.clone(), 1_000, Some("9.9.9.1"), closed);
    assert_eq!(
        contact_text(&refused, 1_400),
        "refused by the server: nothing listens on this port"
    );
    let portal = record_delivery_error(open.clone(), 1_000, Some("192.168.1.1"), closed);
    assert_eq!(contact_text(&portal, 1_400), "192.168.1.1 reports: port unreachable (ICMP)");
    let portal = record_delivery_error(
        open.clone(),
        1_000,
        Some("192.168.1.1"),
        DeliveryErrorKind::Prohibited,
    );
    assert_eq!(
        contact_text(&portal, 1_400),
        "192.168.1.1 reports: administratively prohibited (ICMP)"
    );
    assert_eq!(Reach::evaluate(&portal, at(1_400)).name(), "prohibited");
    // The kernel's own error for a neighbor that does not answer.
    let alone =
        record_delivery_error(open.clone(), 1_000, Some(WLAN), DeliveryErrorKind::HostUnreachable);
    assert_eq!(contact_text(&alone, 1_400), "this machine reports: host unreachable (ICMP)");
    let kept = record_delivery_error(open, 1_000, None, DeliveryErrorKind::NotSent(1));
    assert!(
        contact_text(&kept, 1_400).starts_with("this machine reports: Operation not permitted")
    );
}

#[test]
fn an_error_counts_after_a_delay_and_ends_with_silence() {
    let open = asked(contact(WLAN, SERVER), 0, 1_000, 2);
    let portal =
        record_delivery_error(open, 1_000, Some("192.168.1.1"), DeliveryErrorKind::Prohibited);
    assert_eq!(Reach::evaluate(&portal, at(1_200)), Reach::Unknown);
    assert!(
        delivery_error(&portal).is_some_and(|reach| reach.name() == "prohibited"),
        "immediately"
    );
    let mut later = portal;
    later.question = Some(UnansweredPackets { since: at(0), last_at: at(7_000), tries: 4 });
    assert_eq!(contact_text(&later, 7_100), "no answer for 7 s (tried 4 times)");
}

/// Checks the paths at this time and returns the texts of the events.
fn check_texts(watcher: &mut HealthWatcher, ms: u64, contacts: &[Contact]) -> Vec<String> {
    let of = |name: &str, local: &str| {
        let here = |c: &&Contact| c.local.to_string() == local;
        (name.to_owned(), contacts.iter().filter(here).collect::<Vec<_>>())
    };
    let paths = [of("wlan0", WLAN), of("wwan0", WWAN)];
    watcher.check_paths(at(ms), &paths).iter().map(ToString::to_string).collect()
}

const NOTHING: [&str; 0] = [];

#[test]
fn a_blocked_path_is_logged_once_and_again_when_it_works() {
    let mut watcher = HealthWatcher::new("UDP");
    let wwan = |ms| heard(contact(WWAN, SERVER), ms);
    let wlan = |last, tries| asked(contact(WLAN, SERVER), 0, last, tries);
    assert_eq!(check_texts(&mut watcher, 2_900, &[wlan(1_000, 2), wwan(2_800)]), NOTHING);
    let expected = "path wlan0 to 9.9.9.1:7777: no answer for 3 s (tried 2 times), while it answers over \
                    wwan0: the network there seems to block UDP port 7777, or is down";
    assert_eq!(check_texts(&mut watcher, 3_100, &[wlan(1_000, 2), wwan(3_000)]), [expected]);
    assert_eq!(check_texts(&mut watcher, 60_000, &[wlan(59_000, 30), wwan(59_900)]), NOTHING);
    let again = "path wlan0 works again: 9.9.9.1:7777 answers, after 57 s";
    let back = heard(contact(WLAN, SERVER), 60_200);
    assert_eq!(check_texts(&mut watcher, 60_300, &[back.clone(), wwan(60_100)]), [again]);
    assert_eq!(check_texts(&mut watcher, 60_400, &[back, wwan(60_100)]), NOTHING);
}

#[test]
fn a_path_that_falls_silent_after_working_is_down_and_does_not_block_udp() {
    let mut watcher = HealthWatcher::new("UDP");
    let wlan = asked(heard(contact(WLAN, SERVER), 500), 1_000, 3_000, 3);
    let expected = "path wlan0 to 9.9.9.1:7777: no answer for 3 s (tried 3 times), while it answers over \
                    wwan0: no data arrives on this path anymore; it appears to be down";
    let wwan = heard(contact(WWAN, SERVER), 4_000);
    assert_eq!(check_texts(&mut watcher, 4_100, &[wlan, wwan]), [expected]);
}

#[test]
fn paths_that_fail_together_while_another_works_are_noticed() {
    let mut watcher = HealthWatcher::new("UDP");
    let eth = "172.16.0.2";
    let of = |name: &str, local: &str, all: &[Contact]| {
        let here = all.iter().filter(|c| c.local.to_string() == local).cloned();
        (name.to_owned(), here.collect::<Vec<_>>())
    };
    let mut look = |ms: u64, contacts: &[Contact]| {
        let all = [("wlan0", WLAN), ("wwan0", WWAN), ("eth0", eth)];
        let paths: Vec<_> = all.map(|(name, local)| of(name, local, contacts)).into();
        let paths: Vec<_> =
            paths.iter().map(|(name, own)| (name.clone(), own.iter().collect())).collect();
        watcher.check_paths(at(ms), &paths);
        watcher.take_notices()
    };
    let mut said = Vec::new();
    for round in 0..3 {
        let begun = round * 60_000;
        let silent = |local: &str| asked(contact(local, SERVER), begun + 1_000, begun + 4_000, 3);
        said.extend(look(
            begun + 5_100,
            &[silent(WLAN), silent(WWAN), heard(contact(eth, SERVER), begun + 5_000)],
        ));
        let back = |local: &str| heard(contact(local, SERVER), begun + 30_000);
        look(begun + 30_100, &[WLAN, WWAN, eth].map(back));
    }
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("paths wlan0 and wwan0 have failed together"), "{said:?}");
}

#[test]
fn an_unused_path_is_not_reported_as_failing() {
    let wlan = asked(contact(WLAN, SERVER), 1_000, 4_000, 3);
    let expected = "path wlan0 to 9.9.9.1:7777: no answer for 4 s (tried 3 times); no requests were sent \
        over wwan0 since";
    let idle = heard(contact(WWAN, SERVER), 900);
    assert_eq!(
        check_texts(&mut HealthWatcher::new("UDP"), 5_100, &[wlan.clone(), idle]),
        [expected]
    );
    assert_eq!(check_texts(&mut HealthWatcher::new("UDP"), 5_100, &[wlan]), [expected]);
}

#[test]
fn one_line_reports_that_no_path_works() {
    let mut watcher = HealthWatcher::new("UDP");
    let both = |first, second, last| {
        [
            asked(contact(WLAN, SERVER), first, last, 3),
            asked(contact(WWAN, SERVER), second, last, 3),
        ]
    };
    assert_eq!(
        check_texts(&mut watcher, 3_100, &both(0, 250, 3_000)),
        NOTHING,
        "the other path may follow"
    );
    let said = check_texts(&mut watcher, 3_300, &both(0, 250, 3_000));
    let expected = "no path reaches 9.9.9.1:7777 over UDP (wlan0: no answer for 3 s (tried 3 times); \
                    wwan0: no answer for 3 s (tried 3 times)): is `marline server` running there with \
                    the same --carrier, is UDP port 7777 open in its firewall and its provider's, and \
                    does this network let UDP out?";
    assert_eq!(said, [expected]);
    assert_eq!(check_texts(&mut watcher, 30_000, &both(0, 250, 29_000)), NOTHING);
    let [wlan, wwan] = both(0, 250, 3_000);
    let wwan = Contact { heard_at: Some(at(200)), ..wwan };
    let known = [("wlan0".to_owned(), vec![&wlan]), ("wwan0".to_owned(), vec![&wwan])];
    let (_, found) = fault(&known[0].1, at(3_300)).expect("a fault");
    let words = problem_text("wlan0", &found, &known, "UDP", at(3_300));
    assert_eq!(
        words, "9.9.9.1:7777: no answer for 3 s (tried 3 times)",
        "it no longer answers on any path"
    );
    // The last path fails later than the first.
    let mut watcher = HealthWatcher::new("UDP");
    let wwan = heard(contact(WWAN, SERVER), 3_000);
    let wlan = asked(contact(WLAN, SERVER), 0, 1_000, 2);
    assert_eq!(check_texts(&mut watcher, 3_100, &[wlan.clone(), wwan]).len(), 1);
    let wwan = asked(heard(contact(WWAN, SERVER), 3_000), 0, 0, 0);
    let wwan = asked(wwan, 9_000, 12_000, 3);
    let said = check_texts(&mut watcher, 12_500, &[wlan, wwan]);
    assert!(said.len() == 1 && said[0].starts_with("no path reaches"), "{said:?}");
}

#[test]
fn a_dead_server_and_a_portal_are_distinguished() {
    let refused = |local| {
        let open = asked(contact(local, SERVER), 0, 100, 2);
        record_delivery_error(open, 10, Some("9.9.9.1"), DeliveryErrorKind::PortClosed)
    };
    let said = check_texts(&mut HealthWatcher::new("UDP"), 500, &[refused(WLAN), refused(WWAN)]);
    let expected = "no path reaches 9.9.9.1:7777 over UDP (wlan0: refused by the server: nothing listens on this \
                    port; wwan0: refused by the server: nothing listens on this port): \
                    is `marline server` running there, with the same --carrier?";
    assert_eq!(said, [expected]);
    let open = asked(contact(WLAN, SERVER), 0, 100, 2);
    let portal =
        record_delivery_error(open, 10, Some("192.168.1.1"), DeliveryErrorKind::Prohibited);
    let mut watcher = HealthWatcher::new("UDP");
    let said = check_texts(&mut watcher, 500, &[portal.clone(), heard(contact(WWAN, SERVER), 400)]);
    let expected = "path wlan0 to 9.9.9.1:7777: 192.168.1.1 reports: administratively prohibited (ICMP), \
                    while it answers over wwan0: a captive portal or a firewall there blocks UDP port \
                    7777";
    assert_eq!(said, [expected]);
    // The host sometimes repeats its error; that is not a new event each time.
    let mut silent = portal;
    silent.question = Some(UnansweredPackets { since: at(0), last_at: at(9_000), tries: 9 });
    let wwan = heard(contact(WWAN, SERVER), 9_000);
    assert_eq!(check_texts(&mut watcher, 9_100, &[silent.clone(), wwan.clone()]), NOTHING);
    let again =
        record_delivery_error(silent, 9_200, Some("192.168.1.1"), DeliveryErrorKind::Prohibited);
    assert_eq!(check_texts(&mut watcher, 9_600, &[again, wwan]), NOTHING);
}

#[test]
fn a_path_with_another_answering_server_is_not_bad() {
    let dead = asked(contact(WLAN, "192.0.2.9:443"), 0, 3_000, 3);
    let other = heard(contact(WLAN, SERVER), 2_000);
    assert_eq!(check_texts(&mut HealthWatcher::new("TCP"), 9_000, &[dead.clone(), other]), NOTHING);
    let long_ago = heard(contact(WLAN, SERVER), 0);
    let dead = asked(dead, 10_000, 14_000, 3);
    assert_eq!(check_texts(&mut HealthWatcher::new("TCP"), 15_000, &[dead, long_ago]).len(), 1);
}

/// A driver reads the clock once for packets received and sent at the same time.
#[test]
fn the_last_answer_does_not_excuse_silence_after_a_question_of_the_same_instant() {
    let mut watcher = HealthWatcher::new("UDP");
    let wlan = asked(heard(contact(WLAN, SERVER), 1_000), 1_000, 2_000, 2);
    let wwan = heard(contact(WWAN, SERVER), 3_900);
    assert_eq!(fault(&[&wlan], at(3_999)), None);
    let (_, found) = fault(&[&wlan], at(4_000)).expect("it is silent for three seconds");
    assert_eq!(found.reach.name(), "no-answer");
    let check_texts = check_texts(&mut watcher, 4_000, &[wlan, wwan]);
    assert!(
        check_texts.len() == 1 && check_texts[0].contains("while it answers over"),
        "{check_texts:?}"
    );
}

#[test]
fn a_forgotten_contact_is_not_reported_as_working() {
    let mut watcher = HealthWatcher::new("UDP");
    let wlan = asked(contact(WLAN, SERVER), 0, 1_000, 2);
    let wwan = heard(contact(WWAN, SERVER), 3_000);
    assert_eq!(check_texts(&mut watcher, 3_100, &[wlan.clone(), wwan.clone()]).len(), 1);
    assert_eq!(
        check_texts(&mut watcher, 5_000, std::slice::from_ref(&wwan)),
        NOTHING,
        "another network, still unknown"
    );
    assert_eq!(
        check_texts(&mut watcher, 9_000, &[wlan, wwan]).len(),
        1,
        "this network is also blocked"
    );
}

#[test]
fn health_checks_are_due_only_while_a_verdict_is_pending() {
    let watcher = HealthWatcher::new("UDP");
    let due =
        |contact: &Contact, ms| watcher.is_recheck_due(at(ms), &[("wlan0".into(), vec![contact])]);
    let open = asked(contact(WLAN, SERVER), 0, 1_000, 2);
    assert!(due(&open, 3_000) && !due(&open, 4_000));
    assert!(!due(&heard(contact(WLAN, SERVER), 0), 10));
    let said = record_delivery_error(
        heard(contact(WLAN, SERVER), 0),
        100,
        None,
        DeliveryErrorKind::Prohibited,
    );
    assert!(due(&said, 200) && !due(&said, 500));
}
