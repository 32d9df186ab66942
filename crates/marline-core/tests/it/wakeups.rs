//! Tests of an endpoint's next deadline.

use std::time::Duration;

use marline_testkit::fixtures::{listening, served};

const LONG: Duration = Duration::from_secs(3_600);

#[test]
fn only_a_moved_deadline_is_recomputed() {
    let (mut script, mut first, id) = served(listening(), 3);
    script.advance(Duration::from_secs(2));
    first.receive_all(&mut script);
    let written = script.run(|endpoint, now| endpoint.write(now, id, b"a word"));
    assert_eq!(written, Ok(6));
    let due = script.endpoint.poll_timeout().expect("a probe, or the retransmission timer");
    script.endpoint.postpone_timeouts(due + LONG);
    assert_eq!(script.endpoint.poll_timeout(), Some(due), "it is not acknowledged");

    first.receive_all(&mut script);
    first.acknowledge(&mut script);
    assert_eq!(script.endpoint.poll_timeout(), Some(due), "as noted");
    script.endpoint.postpone_timeouts(due);
    assert!(script.endpoint.poll_timeout().is_none_or(|next| next > due));
    // A driver that does not query again is woken without need, but behaves the same otherwise.
    let written = script.run(|endpoint, now| endpoint.write(now, id, b"another"));
    assert_eq!(written, Ok(7));
    let due = script.endpoint.poll_timeout().expect("as before");
    script.endpoint.postpone_timeouts(due);
    assert!(script.advance_to_send(LONG), "and the timer fires");
}
