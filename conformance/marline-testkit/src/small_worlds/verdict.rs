//! Rules that hold when a small world has come to its end.

use core::fmt;

use marline_core::CloseReason;

use super::application::Facts;

/// What is wrong with a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The rule that was broken.
    pub rule: &'static str,
    /// Which end, and what it has.
    pub details: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.details)
    }
}

/// How a world ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How both ends ended, in a few words.
    pub outcome: String,
    /// Joins that came up at both ends.
    pub joins: usize,
    /// What is wrong with it, if anything.
    pub complaint: Option<Complaint>,
}

/// What the faults of a world did beside losing, copying and delaying packets.
#[derive(Copy, Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum Harm {
    None,
    /// No options pass on the first path since early on (`World::is_early`), nor did anything else happen.
    NoOptions,
    Other,
}

/// Names of the two ends.
const NAMES: [&str; 2] = ["client", "server"];

/// A world in which nothing happens any more, or that was given up.
#[derive(Copy, Clone, Debug)]
pub(super) struct Ended<'a> {
    pub(super) ends: [&'a Facts; 2],
    /// By end: it went over to plain TCP where no bytes are left to which the mode matters.
    pub(super) late_fallback: [bool; 2],
    /// What happened beside late, lost and copied packets.
    pub(super) harm: Harm,
    /// It was given up as it never came to rest.
    pub(super) endless: bool,
}

impl Ended<'_> {
    /// An application ended its connection at once.
    fn is_aborted(&self) -> bool {
        self.ends.iter().any(|end| end.closed == Some(CloseReason::Aborted))
    }
}

/// Judges a world.
pub(super) fn judge(world: &Ended<'_>) -> Verdict {
    let [client, server] = world.ends;
    let complaint = broken_bytes(world)
        .or_else(|| world.endless.then(|| complain("never comes to rest", world)))
        .or_else(|| waits_forever(world))
        .or_else(|| false_success(world))
        .or_else(|| different_modes(world))
        .or_else(|| left_behind(world))
        .or_else(|| server.crowded.then(|| complain("a second connection", world)))
        .or_else(|| withdrawn(world))
        .or_else(|| match world.harm {
            Harm::Other => None,
            _ if world.is_aborted() => misread_abort(world),
            Harm::None => needless(world),
            Harm::NoOptions => not_plain(world),
        });
    Verdict { outcome: outcome(world), joins: client.joined.min(server.joined), complaint }
}

/// What no fault that only delays, loses or copies packets may lead to.
fn needless(world: &Ended<'_>) -> Option<Complaint> {
    let failed = |end: &Facts| end.closed != Some(CloseReason::Finished);
    let any = |is: &dyn Fn(&Facts) -> bool| world.ends.into_iter().any(is);
    let rule = match () {
        // Every packet that was sent again would have arrived.
        () if any(&failed) => "an error without need",
        () if any(&|end| end.lacks_join) => "no join came up",
        // Nothing happened to it that TCP does not make good.
        () if any(&|end| end.was_reset) => "a subflow was reset without need",
        () => return None,
    };
    Some(complain(rule, world))
}

/// An application aborts its connection, and the other end reports that its peer broke the protocol.
fn misread_abort(world: &Ended<'_>) -> Option<Complaint> {
    let blames = |end: &&Facts| end.closed == Some(CloseReason::PeerMisbehaved);
    let any = world.ends.iter().any(blames);
    any.then(|| complain("an abort was taken for a broken protocol", world))
}

/// No options pass on the first path since early on: plain TCP suffices, or another path does.
fn not_plain(world: &Ended<'_>) -> Option<Complaint> {
    let failed = |end: &&Facts| end.closed != Some(CloseReason::Finished);
    let any = world.ends.iter().any(failed);
    any.then(|| complain("an error where plain TCP was possible", world))
}

/// A subflow to an address of the peer stayed although the peer had withdrawn that.
fn withdrawn(world: &Ended<'_>) -> Option<Complaint> {
    let any = world.ends.iter().any(|end| end.keeps_withdrawn);
    any.then(|| complain("a subflow to an address that is gone", world))
}

/// A complaint that shows both ends.
fn complain(rule: &'static str, world: &Ended<'_>) -> Complaint {
    Complaint { rule, details: description(world) }
}

/// Both ends, each with how it ended and in which mode.
fn outcome(world: &Ended<'_>) -> String {
    let mode = |end: &Facts| if end.fallback.is_some() { "plain" } else { "multipath" };
    let words = |end: &Facts| match end.closed {
        Some(CloseReason::Finished) => format!("finished ({})", mode(end)),
        Some(reason) => reason.to_string(),
        None if !end.is_open => "never began".to_owned(),
        None => "open".to_owned(),
    };
    let [client, server] = world.ends;
    format!("client {}, server {}", words(client), words(server))
}

fn description(world: &Ended<'_>) -> String {
    let one = |at: usize| {
        let (end, peer) = (world.ends[at], world.ends[1 - at]);
        format!(
            "{}: {:?}, fallback {:?}, read {} of {}, end {}, errors {:?} {:?}",
            NAMES[at],
            end.closed,
            end.fallback,
            end.received,
            peer.written,
            end.at_end,
            end.read_error,
            end.write_error
        )
    };
    format!("{}; {}", one(0), one(1))
}

fn broken_bytes(world: &Ended<'_>) -> Option<Complaint> {
    let wrong = |at: usize| {
        let (end, peer) = (world.ends[at], world.ends[1 - at]);
        end.wrong_byte.is_some() || end.received > peer.written
    };
    (wrong(0) || wrong(1)).then(|| complain("wrong bytes", world))
}

/// An end is still open although nothing will ever happen to it.
fn waits_forever(world: &Ended<'_>) -> Option<Complaint> {
    let [client, server] = world.ends;
    let open = |end: &Facts| end.is_open || (end.connects && end.closed.is_none());
    (open(client) || open(server)).then(|| complain("waits forever", world))
}

/// An end believes in a success that there was not.
fn false_success(world: &Ended<'_>) -> Option<Complaint> {
    for at in [0, 1] {
        let (end, peer) = (world.ends[at], world.ends[1 - at]);
        let has_all = |reader: &Facts, writer: &Facts| reader.received == writer.all_written;
        if end.at_end && !has_all(end, peer) {
            return Some(complain("a clean end before the last byte", world));
        }
        if end.closed != Some(CloseReason::Finished) {
            continue;
        }
        if !(end.at_end && has_all(end, peer)) {
            return Some(complain("finished without the peer's bytes", world));
        }
        if !(peer.at_end && has_all(peer, end)) {
            return Some(complain("finished although the peer has not read all", world));
        }
    }
    None
}

/// Both ends finished, one as plain TCP and the other as Multipath TCP.
///
/// The mode says which numbers further bytes have (RFC 8684 section 3.7). An end that falls back may be alone with that
/// where it neither sends nor expects any (`docs/spec/fallback.md`): its peer has finished, or it has the peer's whole
/// stream itself, sent all of its own with mappings, and sees only now that options do not pass. Nothing that it still
/// sends tells the peer, and a peer that lacks some of it gets that without a mapping, and falls back as well.
/// [`false_success`] has seen to it that both have all bytes.
fn different_modes(world: &Ended<'_>) -> Option<Complaint> {
    let [client, server] = world.ends;
    let finished = [client, server].iter().all(|e| e.closed == Some(CloseReason::Finished));
    let differ = client.fallback.is_some() != server.fallback.is_some();
    let late = world.late_fallback.contains(&true);
    (finished && differ && !late).then(|| complain("the ends disagree on the mode", world))
}

/// An endpoint holds a connection or an ended subflow for good.
fn left_behind(world: &Ended<'_>) -> Option<Complaint> {
    world.ends.iter().any(|end| end.holds).then(|| complain("something is held for good", world))
}
