mod kinds;
mod talk;

use super::seen::{read_line, write_line};
use super::*;

#[test]
fn lines_survive_and_nonsense_is_refused() {
    let (local, remote) = ("10.0.0.1:443".parse().unwrap(), "[fd00::2]:999".parse().unwrap());
    let mut segment = vec![7; 50];
    segment[12] = 0x80;
    let entry = TappedSegment::of(12, true, local, remote, &segment).expect("a segment");
    let mut text = String::new();
    write_line(&entry, &mut text);
    assert_eq!(read_line(text.trim_end()), Some(entry));
    for bad in [
        "",
        "end",
        "1 S x y 1 2 00",
        "1 S 1.2.3.4:5 1.2.3.4:5 1 2 zz",
        text.trim_end_matches("07\n"),
    ] {
        let read = read_line(bad);
        assert!(read.is_none() || bad.len() > 60, "{bad}: {read:?}");
    }
}

#[test]
fn no_connection_and_a_foreign_server_are_reported_as_such() {
    let said = |exchanged: &ExchangeResult| {
        let found = findings(&[], None, exchanged);
        found.iter().map(|f| (f.status, f.text.clone())).collect::<Vec<_>>()
    };
    let refused = ExchangeResult {
        error: Some("no connection: refused by the peer".to_owned()),
        ..ExchangeResult::default()
    };
    assert_eq!(
        said(&refused),
        [(FindingStatus::Fails, "no connection: refused by the peer".to_owned())]
    );
    let [(status, text)] =
        &said(&ExchangeResult { opened: true, is_foreign: true, ..ExchangeResult::default() })[..]
    else {
        panic!("one finding");
    };
    assert_eq!(*status, FindingStatus::Note);
    assert!(text.starts_with("Multipath TCP; the other end is not `marline doctor"), "{text}");
    // A responder whose report does not arrive is a separate finding.
    let mute =
        ExchangeResult { opened: true, answered: true, right: 9, ..ExchangeResult::default() };
    let said = said(&mute);
    assert_eq!((said[0].0, said.len()), (FindingStatus::Works, 2), "{said:?}");
    assert!(said[1].1.contains("no report from the other end"), "{said:?}");
}
