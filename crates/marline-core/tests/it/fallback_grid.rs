//! Middlebox faults at every position of a connection: segments that are joined, split, stripped of their options
//! or changed, towards either side, whichever side sends. With any fault, both applications get each other's bytes
//! and the end of the stream, or both get an error, and neither side permanently stays in another mode than its
//! peer.

use std::time::Duration;

use crate::two_hosts::{Dice, MiddleboxAction, Packet, TwoHosts, bytes, with_checksums};
use marline_core::{CloseReason, ConnectionConfig};
use marline_testkit::{Seg, Side, config};
use marline_time::{Rng, SeedTree};
use marline_wire::{SeqNum, TcpFlags};

/// Number of repeated joins. The middlebox of this test has no timer that ends its wait for the next segment, and
/// would delay each one by a TCP timeout.
const REPEATS: usize = 6;
/// Length of each non-empty stream in bytes: about forty segments.
const SIZE: usize = 50_000;

/// Segment that keeps the options when several are merged or one is split.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Keeps {
    First,
    Last,
    None,
}

/// Fault of the middlebox, starting with one segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Fault {
    /// Joins this many consecutive segments with data.
    Join { count: usize, keeps: Keeps, again: bool },
    /// Splits a segment with data into two.
    Cut { keeps: Keeps, overtakes: bool, again: bool },
    /// Removes the options of Multipath TCP from this many segments.
    Strip { count: usize, data: bool, acks: bool },
    /// Changes a byte of payload.
    Change { again: bool },
    /// Holds a segment with data until the next ones have passed, and strips it or those.
    Overtake { strips_it: bool, strips_others: bool },
}

/// Direction of the streams.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Traffic {
    Up,
    Down,
    /// A few bytes up, then a stream down.
    Request,
    Both,
    /// A few bytes down, then a stream up, as in protocols in which the server greets.
    Greeting,
}

/// Position of a fault.
#[derive(Copy, Clone, Debug)]
struct Place {
    towards: Side,
    /// Segments towards that side, excluding the SYN, before the fault begins.
    nth: usize,
    fault: Fault,
}

/// One connection and the faults on its path.
#[derive(Clone, Debug)]
struct Case {
    faults: Vec<Place>,
    /// One in this many segments is lost, of the first hundred; 0 for none.
    loss: u64,
    seed: u64,
    traffic: Traffic,
    checksum: bool,
    /// The applications shut down as soon as they have written, instead of after 20 s.
    shuts: bool,
}

/// State of the middlebox.
#[derive(Debug, Default)]
struct Middlebox {
    seen: usize,
    done: usize,
    held: Option<Seg>,
    joined: usize,
    /// One past the last byte that passed: retransmissions are not joined.
    end: Option<SeqNum>,
    changed: Option<SeqNum>,
}

fn strip(seg: &mut Seg) {
    seg.options.dss = None;
    seg.options.mptcp = Default::default();
}

impl Middlebox {
    fn treat(&mut self, case: &Place, p: &mut Packet<'_>) -> MiddleboxAction {
        let flags = p.seg.header.flags;
        if p.to != case.towards || flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::RST) {
            return MiddleboxAction::Pass;
        }
        self.seen += 1;
        let data = !p.seg.payload.is_empty();
        if self.seen <= case.nth {
            return MiddleboxAction::Pass;
        }
        match case.fault {
            Fault::Join { count, keeps, again } => self.join(p, count, keeps, again),
            Fault::Cut { keeps, overtakes, again } if data && (again || self.done == 0) => {
                self.cut(p, keeps, overtakes)
            }
            Fault::Strip { count, data: of_data, acks } if self.done < count => {
                if if data { of_data } else { acks } {
                    self.done += 1;
                    strip(p.seg);
                }
                MiddleboxAction::Pass
            }
            Fault::Change { again } => {
                let at = p.seg.header.seq;
                if data && (again || self.changed.is_none() || self.changed == Some(at)) {
                    self.changed = Some(at);
                    let middle = p.seg.payload.len() / 2;
                    p.seg.payload[middle] ^= 0xff;
                }
                MiddleboxAction::Pass
            }
            Fault::Overtake { strips_it, strips_others } if self.done < 3 && data => {
                self.done += 1;
                if self.done > 1 {
                    if strips_others {
                        strip(p.seg);
                    }
                    return MiddleboxAction::Pass;
                }
                let mut late = p.seg.clone();
                if strips_it {
                    strip(&mut late);
                }
                p.behind.push((late, Duration::from_millis(3)));
                MiddleboxAction::Drop
            }
            _ => MiddleboxAction::Pass,
        }
    }

    fn join(
        &mut self,
        p: &mut Packet<'_>,
        count: usize,
        keeps: Keeps,
        again: bool,
    ) -> MiddleboxAction {
        let data = !p.seg.payload.is_empty();
        if let Some(held) = self.held.take() {
            let follows = data && p.seg.header.seq == held.end();
            if !follows {
                // The following segment is not the next one: both pass unchanged.
                p.behind.push((p.seg.clone(), Duration::ZERO));
                *p.seg = held;
                self.joined = 0;
                return MiddleboxAction::Pass;
            }
            self.joined += 1;
            self.end = Some(p.seg.end());
            let options = match keeps {
                Keeps::First => held.options.clone(),
                _ => p.seg.options.clone(),
            };
            p.seg.header.seq = held.header.seq;
            let mut payload = held.payload.clone();
            payload.extend_from_slice(&p.seg.payload);
            p.seg.payload = payload;
            p.seg.options = options;
            if keeps == Keeps::None {
                strip(p.seg);
            }
            if self.joined < count {
                self.held = Some(p.seg.clone());
                return MiddleboxAction::Drop;
            }
            self.joined = 0;
            return MiddleboxAction::Pass;
        }
        let fin = p.seg.header.flags.contains(TcpFlags::FIN);
        let again_sent = self.end.is_some_and(|end| p.seg.header.seq.offset_from(end) > 1 << 31);
        if again_sent {
            return MiddleboxAction::Pass;
        }
        self.end = Some(p.seg.end());
        if data && !fin && self.done < if again { REPEATS } else { 1 } {
            self.done += 1;
            self.joined = 1;
            self.held = Some(p.seg.clone());
            return MiddleboxAction::Drop;
        }
        MiddleboxAction::Pass
    }

    fn cut(&mut self, p: &mut Packet<'_>, keeps: Keeps, overtakes: bool) -> MiddleboxAction {
        self.done += 1;
        let half = p.seg.payload.len() / 2;
        if half == 0 {
            return MiddleboxAction::Pass;
        }
        let (mut first, mut last) = (p.seg.clone(), p.seg.clone());
        first.payload.truncate(half);
        first.header.flags = first.header.flags.without(TcpFlags::FIN);
        last.payload.drain(..half);
        last.header.seq = last.header.seq.add(half as u32);
        if keeps != Keeps::First {
            strip(&mut first);
        }
        if keeps != Keeps::Last {
            strip(&mut last);
        }
        let (ahead, behind) = if overtakes { (last, first) } else { (first, last) };
        p.behind.push((behind, Duration::from_millis(u64::from(overtakes) * 3)));
        *p.seg = ahead;
        MiddleboxAction::Pass
    }
}

impl Case {
    /// Returns the result, or a description of the error.
    fn run(&self) -> Result<&'static str, String> {
        let mut middleboxes: Vec<(Place, Middlebox)> =
            self.faults.iter().map(|place| (*place, Middlebox::default())).collect();
        let (mut dice, mut sent, loss) = (Dice(self.seed), 0, self.loss);
        let treat = move |p: &mut Packet<'_>| {
            sent += 1;
            // A receiver that misses a RST waits without a limit, as any idle connection.
            let reset = p.seg.header.flags.contains(TcpFlags::RST);
            if loss > 0 && sent < 100 && !reset && dice.once_in(loss) {
                return MiddleboxAction::Drop;
            }
            for (place, middlebox) in &mut middleboxes {
                if middlebox.treat(place, p) == MiddleboxAction::Drop {
                    return MiddleboxAction::Drop;
                }
            }
            MiddleboxAction::Pass
        };
        let client: ConnectionConfig = if self.checksum { with_checksums() } else { config() };
        let mut hosts = TwoHosts::new(client, config(), treat, self.seed);
        let (mut up, mut down) = (Vec::new(), Vec::new());
        match self.traffic {
            Traffic::Up => up = bytes(SIZE, 1),
            Traffic::Down => down = bytes(SIZE, 2),
            Traffic::Request => (up, down) = (bytes(100, 1), bytes(SIZE, 2)),
            Traffic::Both => (up, down) = (bytes(SIZE, 1), bytes(SIZE, 2)),
            Traffic::Greeting => (up, down) = (bytes(SIZE, 1), bytes(100, 2)),
        }
        let (first, second) = match self.traffic {
            Traffic::Request | Traffic::Up => (Side::A, Side::B),
            _ => (Side::B, Side::A),
        };
        let of = |side| if side == Side::A { up.clone() } else { down.clone() };
        hosts.run_ms(25);
        hosts.write(first, &of(first));
        if self.shuts {
            hosts.shutdown(first);
        }
        if self.traffic != Traffic::Both {
            hosts.run_ms(40);
        }
        hosts.write(second, &of(second));
        if self.shuts {
            hosts.shutdown(second);
        }
        hosts.run_ms(20_000);
        hosts.shutdown(first);
        hosts.shutdown(second);
        hosts.run_ms(400_000);
        self.judge(&hosts, &up, &down)
    }

    fn judge(&self, hosts: &TwoHosts, up: &[u8], down: &[u8]) -> Result<&'static str, String> {
        let [client, server] = &hosts.ends;
        let is_change = |place: &Place| matches!(place.fault, Fault::Change { .. });
        let changes = self.faults.iter().any(is_change);
        for (name, end, sent) in [("client", client, down), ("server", server, up)] {
            let right = if changes {
                end.received.len() <= sent.len()
            } else {
                sent.starts_with(&end.received)
            };
            let all = end.received.len() == sent.len();
            if !right {
                return Err(format!(
                    "wrong bytes at the {name}: {} of {}",
                    end.received.len(),
                    sent.len()
                ));
            }
            if !all && (end.at_end || end.closed == Some(CloseReason::Finished)) {
                let got = end.received.len();
                return Err(format!("the {name} has {got} of {} bytes and an end", sent.len()));
            }
        }
        let ends = [client, server].map(|end| end.closed);
        let modes = [client, server].map(|end| end.fallback);
        let complete = client.received.len() == down.len() && server.received.len() == up.len();
        let finished = ends.iter().all(|end| *end == Some(CloseReason::Finished));
        let aborted = ends.iter().all(|end| end.is_some_and(|e| e != CloseReason::Finished));
        if finished && complete {
            return match modes {
                [None, None] => Ok("multipath"),
                [Some(_), Some(_)] => Ok("plain"),
                _ => Err(format!("modes differ: {modes:?}")),
            };
        }
        if aborted {
            return Ok("error");
        }
        // The last DATA_ACK may be blocked: its sender is done, and the other end has all bytes.
        let over = ends.iter().all(Option::is_some);
        if complete && over && client.at_end && server.at_end {
            return Ok("unconfirmed end");
        }
        Err(format!(
            "complete: {complete} ({} {}), {ends:?}, modes {modes:?}",
            client.received.len(),
            server.received.len()
        ))
    }
}

fn faults() -> Vec<Fault> {
    let mut faults = Vec::new();
    for keeps in [Keeps::First, Keeps::Last, Keeps::None] {
        for again in [false, true] {
            for count in [2, 5, 45] {
                faults.push(Fault::Join { count, keeps, again });
            }
            for overtakes in [false, true] {
                faults.push(Fault::Cut { keeps, overtakes, again });
            }
        }
    }
    for count in [1, 2, 5, usize::MAX] {
        for (data, acks) in [(true, true), (true, false), (false, true)] {
            faults.push(Fault::Strip { count, data, acks });
        }
    }
    for again in [false, true] {
        faults.push(Fault::Change { again });
    }
    for (strips_it, strips_others) in [(true, false), (false, true), (true, true)] {
        faults.push(Fault::Overtake { strips_it, strips_others });
    }
    faults
}

/// Runs cases that start at these positions, and lists the errors.
fn explore(positions: &[usize]) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut ends = std::collections::BTreeMap::new();
    let traffics = [Traffic::Up, Traffic::Down, Traffic::Request, Traffic::Both, Traffic::Greeting];
    for fault in faults() {
        for towards in [Side::A, Side::B] {
            for traffic in traffics {
                for (checksum, shuts) in [(false, false), (false, true), (true, true)] {
                    for &nth in positions {
                        let faults = vec![Place { towards, nth, fault }];
                        let case = Case { faults, loss: 0, seed: 1, traffic, checksum, shuts };
                        match case.run() {
                            Ok(end) => *ends.entry(end).or_insert(0) += 1,
                            Err(words) => complaints.push(format!("{case:?}: {words}")),
                        }
                    }
                }
            }
        }
    }
    println!("{ends:?}");
    complaints
}

#[test]
fn no_fault_at_any_position_leaves_the_two_ends_in_disagreement() {
    let complaints = explore(&[0, 1, 2, 5, 12]);
    assert!(complaints.is_empty(), "{}\n{}", complaints.len(), complaints.join("\n"));
}

/// Two faults at random positions, and a few losses. `FALLBACK_WORLDS` sets their number, and
/// `FALLBACK_WORLDS_FROM` the first seed.
#[test]
fn two_faults_and_losses_leave_the_two_ends_in_agreement() {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let from = number("FALLBACK_WORLDS_FROM").unwrap_or(1);
    let faults = faults();
    let traffics = [Traffic::Up, Traffic::Down, Traffic::Request, Traffic::Both, Traffic::Greeting];
    let mut complaints = Vec::new();
    let mut ends = std::collections::BTreeMap::new();
    for seed in from..from + number("FALLBACK_WORLDS").unwrap_or(1_000) {
        let mut rng = SeedTree::new(seed).stream("fallback");
        let mut place = || Place {
            towards: if rng.chance(0.5) { Side::A } else { Side::B },
            nth: rng.below(25) as usize,
            fault: faults[rng.below(faults.len() as u64) as usize],
        };
        let places = vec![place(), place()];
        let case = Case {
            faults: places,
            loss: [0, 8, 20][rng.below(3) as usize],
            seed,
            traffic: traffics[rng.below(5) as usize],
            checksum: rng.chance(0.5),
            shuts: rng.chance(0.5),
        };
        match case.run() {
            Ok(end) => *ends.entry(end).or_insert(0) += 1,
            Err(words) => complaints.push(format!("{case:?}: {words}")),
        }
    }
    println!("{ends:?}");
    assert!(complaints.is_empty(), "{}\n{}", complaints.len(), complaints.join("\n"));
}
