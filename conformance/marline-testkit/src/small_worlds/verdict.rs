//! Rules that must hold at the end of a small world.

use core::fmt;

use marline_core::CloseReason;

use super::application::EndState;

/// A broken rule in a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleViolation {
    /// The rule that was broken.
    pub rule: &'static str,
    /// The states of both ends.
    pub details: String,
}

impl fmt::Display for RuleViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.details)
    }
}

/// Result of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Short description of both ends' results.
    pub outcome: String,
    /// Joins that were established at both ends.
    pub joins: usize,
    /// The broken rule, if there is one.
    pub complaint: Option<RuleViolation>,
}

/// Effect of a world's faults, except loss, copies and delay of packets.
#[derive(Copy, Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum FaultEffect {
    None,
    /// Starting early (`World::is_early`), the first path passes no options. There are no other effects.
    NoOptions,
    Other,
}

/// Names of the two ends.
const END_NAMES: [&str; 2] = ["client", "server"];

/// A world that has ended, or that was stopped.
#[derive(Copy, Clone, Debug)]
pub(super) struct FinalWorld<'a> {
    pub(super) ends: [&'a EndState; 2],
    /// For each end: true if it fell back to plain TCP after the last bytes for which the mode matters.
    pub(super) late_fallback: [bool; 2],
    /// Effects other than delayed, lost and copied packets.
    pub(super) effects: FaultEffect,
    /// True if the world was stopped because it would never end.
    pub(super) endless: bool,
}

impl FinalWorld<'_> {
    /// True if an application aborted its connection.
    fn is_aborted(&self) -> bool {
        self.ends.iter().any(|end| end.closed == Some(CloseReason::Aborted))
    }
}

/// Judges a world.
pub(super) fn judge(world: &FinalWorld<'_>) -> Verdict {
    let [client, server] = world.ends;
    let complaint = find_wrong_bytes(world)
        .or_else(|| world.endless.then(|| new_violation("the ends never become idle", world)))
        .or_else(|| find_stuck_end(world))
        .or_else(|| find_false_success(world))
        .or_else(|| find_mode_mismatch(world))
        .or_else(|| find_leaked_state(world))
        .or_else(|| {
            server
                .has_second_connection
                .then(|| new_violation("a second connection arrived", world))
        })
        .or_else(|| find_withdrawn_address_use(world))
        .or_else(|| match world.effects {
            FaultEffect::Other => None,
            _ if world.is_aborted() => find_misread_abort(world),
            FaultEffect::None => find_needless_error(world),
            FaultEffect::NoOptions => find_failed_fallback(world),
        });
    Verdict { outcome: outcome(world), joins: client.joined.min(server.joined), complaint }
}

/// Finds results that faults must not cause if they only delay, lose or copy packets.
fn find_needless_error(world: &FinalWorld<'_>) -> Option<RuleViolation> {
    let failed = |end: &EndState| end.closed != Some(CloseReason::Finished);
    let any = |is: &dyn Fn(&EndState) -> bool| world.ends.into_iter().any(is);
    let rule = match () {
        // Every retransmitted packet would have arrived.
        () if any(&failed) => "an unnecessary error",
        () if any(&|end| end.lacks_join) => "no join was established",
        // The subflow had only faults that TCP repairs.
        () if any(&|end| end.was_reset) => "a subflow was reset unnecessarily",
        () => return None,
    };
    Some(new_violation(rule, world))
}

/// Finds an aborted connection whose other end reports that its peer violated the protocol.
fn find_misread_abort(world: &FinalWorld<'_>) -> Option<RuleViolation> {
    let blames = |end: &&EndState| end.closed == Some(CloseReason::PeerMisbehaved);
    let any = world.ends.iter().any(blames);
    any.then(|| new_violation("an abort was treated as a protocol violation", world))
}

/// Finds an error in a world whose first path stops passing options early. Plain TCP or another path is sufficient
/// there.
fn find_failed_fallback(world: &FinalWorld<'_>) -> Option<RuleViolation> {
    let failed = |end: &&EndState| end.closed != Some(CloseReason::Finished);
    let any = world.ends.iter().any(failed);
    any.then(|| new_violation("an error where plain TCP was possible", world))
}

/// Finds a subflow to an address that stayed although the peer withdrew the address.
fn find_withdrawn_address_use(world: &FinalWorld<'_>) -> Option<RuleViolation> {
    let any = world.ends.iter().any(|end| end.keeps_withdrawn);
    any.then(|| new_violation("a subflow to a withdrawn address stayed open", world))
}

/// Creates a violation with the states of both ends.
fn new_violation(rule: &'static str, world: &FinalWorld<'_>) -> RuleViolation {
    RuleViolation { rule, details: description(world) }
}

/// The result and the mode of both ends.
fn outcome(world: &FinalWorld<'_>) -> String {
    let mode = |end: &EndState| if end.fallback.is_some() { "plain" } else { "multipath" };
    let words = |end: &EndState| match end.closed {
        Some(CloseReason::Finished) => format!("finished ({})", mode(end)),
        Some(reason) => reason.to_string(),
        None if !end.is_open => "never started".to_owned(),
        None => "open".to_owned(),
    };
    let [client, server] = world.ends;
    format!("client {}, server {}", words(client), words(server))
}

fn description(world: &FinalWorld<'_>) -> String {
    let one = |at: usize| {
        let (end, peer) = (world.ends[at], world.ends[1 - at]);
        format!(
            "{}: {:?}, fallback {:?}, read {} of {}, end {}, errors {:?} {:?}",
            END_NAMES[at],
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

fn find_wrong_bytes(world: &FinalWorld<'_>) -> Option<RuleViolation> {
    let wrong = |at: usize| {
        let (end, peer) = (world.ends[at], world.ends[1 - at]);
        end.wrong_byte.is_some() || end.received > peer.written
    };
    (wrong(0) || wrong(1)).then(|| new_violation("wrong bytes were delivered", world))
}

/// Finds an end that is still open although no further events are possible.
fn find_stuck_end(world: &FinalWorld<'_>) -> Option<RuleViolation> {
    let [client, server] = world.ends;
    let open = |end: &EndState| end.is_open || (end.connects && end.closed.is_none());
    (open(client) || open(server)).then(|| new_violation("an end waits forever", world))
}

/// Finds an end that reports a success that did not occur.
fn find_false_success(world: &FinalWorld<'_>) -> Option<RuleViolation> {
    for at in [0, 1] {
        let (end, peer) = (world.ends[at], world.ends[1 - at]);
        let has_all = |reader: &EndState, writer: &EndState| reader.received == writer.all_written;
        if end.at_end && !has_all(end, peer) {
            return Some(new_violation("the stream ended cleanly before the last byte", world));
        }
        if end.closed != Some(CloseReason::Finished) {
            continue;
        }
        if !(end.at_end && has_all(end, peer)) {
            return Some(new_violation("an end finished without all of the peer's bytes", world));
        }
        if !(peer.at_end && has_all(peer, end)) {
            return Some(new_violation(
                "an end finished although the peer has not read all bytes",
                world,
            ));
        }
    }
    None
}

/// Finds ends that finished in different modes, one as plain TCP and the other as Multipath TCP.
///
/// The mode determines the sequence numbers of further bytes (RFC 8684 section 3.7). An end may fall back alone if it
/// neither sends nor expects further bytes (`docs/spec/fallback.md`). Either its peer has finished, or the end has the
/// peer's whole stream, has sent all of its own with mappings, and detects only now that options do not pass. Nothing
/// that it still sends can inform the peer. A peer that lacks some of these bytes receives them without a mapping, and
/// falls back as well. [`find_false_success`] has already verified that both ends have all bytes.
fn find_mode_mismatch(world: &FinalWorld<'_>) -> Option<RuleViolation> {
    let [client, server] = world.ends;
    let finished = [client, server].iter().all(|e| e.closed == Some(CloseReason::Finished));
    let differ = client.fallback.is_some() != server.fallback.is_some();
    let late = world.late_fallback.contains(&true);
    (finished && differ && !late)
        .then(|| new_violation("one end fell back to TCP, the other did not", world))
}

/// Finds an endpoint that holds a connection or an ended subflow permanently.
fn find_leaked_state(world: &FinalWorld<'_>) -> Option<RuleViolation> {
    world
        .ends
        .iter()
        .any(|end| end.has_state)
        .then(|| new_violation("memory is never released", world))
}
