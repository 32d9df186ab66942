//! Inference of middlebox behavior from the segments seen at both ends.
//!
//! Sequence numbers are relative to the SYN of the same end, so that a middlebox that shifts them does not hide
//! other effects. For each direction the sent segments are compared with the received ones.

use std::collections::BTreeMap;

use marline_io::TappedSegment;

use super::super::Finding;
use super::seen::SeenSegment;

/// Subject of the findings.
pub(super) const SUBJECT: &str = "native TCP";

/// Behavior of a middlebox on the path.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Behavior {
    /// The SYN/ACK has no option of Multipath TCP. It is unknown where the option was lost.
    NoMultipath,
    /// All data is acknowledged, but it is unknown whether the server has received it.
    OnlyAcknowledges,
    StripsSyn,
    StripsSynAck,
    DropsSyn,
    DropsSynAck,
    StripsData {
        is_toward_server: bool,
        in_mid_stream: bool,
    },
    DropsData {
        is_toward_server: bool,
        in_mid_stream: bool,
    },
    Renumbers,
    KeepsSackNumbers,
    Splits,
    Coalesces,
    ChangesPayload,
    ThinsAcks,
    Translates,
    RebindsNat,
    AcknowledgesAndDrops,
}

impl Behavior {
    /// Returns the description of the behavior, and a remedy.
    #[rustfmt::skip]
    fn description(self) -> (String, &'static str) {
        let to = |server| if server { "toward the server" } else { "from the server" };
        let (what, advice) = match self {
            Behavior::NoMultipath => ("the SYN/ACK lacks the Multipath TCP option",
                "the server does not support it, or a middlebox strips it: \
                 run `marline doctor --listen` there to find out"),
            Behavior::OnlyAcknowledges => ("data is acknowledged, but nothing comes back",
                "the server sends nothing, or a middlebox acknowledges data that it does not deliver: \
                 use another path, or the UDP carrier there"),
            Behavior::StripsSyn => ("strips the options of Multipath TCP from SYNs",
                "connections over it run as plain TCP; use the UDP carrier there"),
            Behavior::StripsSynAck => ("strips the options of Multipath TCP from SYN/ACKs",
                "connections over it run as plain TCP; use the UDP carrier there"),
            Behavior::DropsSyn => ("drops SYNs with the options of Multipath TCP",
                "the first connection waits seven seconds, but later ones do not (for an hour); use the UDP \
                 carrier there"),
            Behavior::DropsSynAck => ("drops SYN/ACKs with the options of Multipath TCP",
                "the first connection waits seven seconds, but later ones do not (for an hour); use the UDP \
                 carrier there"),
            Behavior::StripsData { is_toward_server, in_mid_stream } => {
                let when = if in_mid_stream { "in mid-stream" } else { "after the handshake" };
                let what = format!("strips the options of Multipath TCP {when}, {}", to(is_toward_server));
                return (what, if in_mid_stream {
                    "subflows on this path are reset when that begins; keep a second path, or use the UDP \
                     carrier there"
                } else {
                    "connections over it run as plain TCP; use the UDP carrier there"
                });
            }
            Behavior::DropsData { is_toward_server, in_mid_stream } => {
                let when = if in_mid_stream { " in mid-stream" } else { "" };
                let what = format!("drops segments with the options of Multipath TCP{when}, {}", to(is_toward_server));
                return (what, if in_mid_stream {
                    "subflows on this path stop working from then on; keep a second path, or use the UDP \
                     carrier there"
                } else {
                    "connections over it run as plain TCP after some seconds; use the UDP carrier there"
                });
            }
            Behavior::Renumbers => ("rewrites sequence numbers", "harmless to Multipath TCP"),
            Behavior::KeepsSackNumbers => ("rewrites sequence numbers, but not those in selective acknowledgments",
                "losses are repaired late; disable its sequence number randomization, or use the UDP carrier"),
            Behavior::Splits => ("splits segments", "harmless to Multipath TCP"),
            Behavior::Coalesces => ("coalesces segments (keeps the options of only one)",
                "mappings are lost: subflows on this path sometimes reset or fall back; use the UDP carrier there"),
            Behavior::ChangesPayload => ("changes payload",
                "enable DSS checksums there (they detect the change), encrypt, or use the UDP carrier"),
            Behavior::ThinsAcks => ("thins out acknowledgments", "harmless to Multipath TCP, but makes bursts larger"),
            Behavior::Translates => ("translates addresses or ports (NAT)", "harmless to Multipath TCP"),
            Behavior::RebindsNat => ("drops NAT mappings of live connections (NAT rebinding)",
                "native subflows break and are reopened; keepalives help, and the UDP carrier survives it"),
            Behavior::AcknowledgesAndDrops => ("acknowledges data that it does not deliver",
                "subflows on this path are reset after seconds and reopened; use another path, or the UDP carrier"),
        };
        (what.to_owned(), advice)
    }

    pub(super) fn finding(&self) -> Finding {
        let (what, advice) = self.description();
        let text = format!("a middlebox {what}: {advice}");
        match self {
            Behavior::NoMultipath => Finding::note(SUBJECT, format!("{what}: {advice}")),
            Behavior::OnlyAcknowledges => Finding::fails(SUBJECT, format!("{what}: {advice}")),
            Behavior::ChangesPayload | Behavior::AcknowledgesAndDrops => {
                Finding::fails(SUBJECT, text)
            }
            _ => Finding::note(SUBJECT, text),
        }
    }
}

/// Segments of the first connection that one end recorded, by direction.
struct EndRecord {
    /// Segments toward the server.
    up: Vec<SeenSegment>,
    down: Vec<SeenSegment>,
}

impl EndRecord {
    fn from_entries(entries: &[TappedSegment], of_client: bool) -> EndRecord {
        let seen = |sent: bool| {
            let matching = entries.iter().filter(move |entry| entry.sent == sent);
            matching.map(|entry| SeenSegment::from_entry(entry, of_client)).collect()
        };
        EndRecord { up: seen(of_client), down: seen(!of_client) }
    }

    /// Keeps the segments of the connection with the first SYN.
    fn keep_first_connection(mut self) -> EndRecord {
        let first = self.up.iter().find(|seen| seen.is_syn()).map(|syn| syn.client_port);
        let own = |seen: &SeenSegment| first.is_none_or(|port| seen.client_port == port);
        self.up.retain(own);
        self.down.retain(own);
        self
    }

    fn isn(segments: &[SeenSegment]) -> Option<u32> {
        segments.iter().find(|seen| seen.is_syn()).map(|syn| syn.seq)
    }
}

/// Returns the behaviors found on the path, in a fixed order.
pub(super) fn diagnose(ours: &[TappedSegment], theirs: Option<&[TappedSegment]>) -> Vec<Behavior> {
    let whole = EndRecord::from_entries(ours, true);
    let client = EndRecord::from_entries(ours, true).keep_first_connection();
    let Some(theirs) = theirs.filter(|theirs| !theirs.is_empty()) else {
        return local_behaviors(&client);
    };
    let server_whole = EndRecord::from_entries(theirs, false);
    let server = EndRecord::from_entries(theirs, false).keep_first_connection();
    let mut found = Vec::new();
    handshake(&client, &server, &mut found);
    let has_middlebox_acks = has_middlebox_acks(&client, &server);
    let ways = [(true, &client.up, &server.up), (false, &server.down, &client.down)];
    let isn = |segments: &[SeenSegment]| EndRecord::isn(segments);
    for (is_toward_server, sent, came) in ways {
        let Some(isns) = isn(sent).zip(isn(came)) else { continue };
        let way = OneWay { is_toward_server, sent, came, isns };
        // Segments created by a middlebox do not have our options.
        if !has_middlebox_acks {
            way.options(&mut found);
        }
        way.find_reshaped_segments(&mut found);
        way.acknowledgments(&mut found);
        if isns.0 != isns.1 {
            found.push(Behavior::Renumbers);
            let back = if is_toward_server { &client.down } else { &server.up };
            if way.has_invalid_sack(back) {
                found.push(Behavior::KeepsSackNumbers);
            }
        }
    }
    if has_middlebox_acks {
        found.push(Behavior::AcknowledgesAndDrops);
    }
    translation(&whole, &server_whole, &mut found);
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns the behaviors that the records of this end alone show.
fn local_behaviors(client: &EndRecord) -> Vec<Behavior> {
    let answered = client.down.iter().find(|seen| seen.is_syn());
    let asked = client.up.iter().filter(|seen| seen.is_syn());
    let (with, without): (Vec<&SeenSegment>, Vec<&SeenSegment>) =
        asked.partition(|seen| seen.mptcp);
    match answered {
        Some(_) if !without.is_empty() && !with.is_empty() => vec![Behavior::DropsSyn],
        Some(answer) if !answer.mptcp => vec![Behavior::NoMultipath],
        _ if is_acked_but_undelivered(client) => vec![Behavior::OnlyAcknowledges],
        _ => Vec::new(),
    }
}

/// Returns true if data was sent and acknowledged, but none was received.
fn is_acked_but_undelivered(client: &EndRecord) -> bool {
    let Some(isn) = EndRecord::isn(&client.up) else { return false };
    let sent = client.up.iter().filter(|seen| seen.len > 0);
    let Some(end) = sent.map(|seen| seen.seq.wrapping_sub(isn) + seen.len).max() else {
        return false;
    };
    let acked = |seen: &&SeenSegment| seen.has_ack() && seen.ack.wrapping_sub(isn) >= end;
    client.down.iter().all(|seen| seen.len == 0) && client.down.iter().any(|seen| acked(&seen))
}

fn handshake(client: &EndRecord, server: &EndRecord, found: &mut Vec<Behavior>) {
    let has = |segments: &[SeenSegment], option: bool| {
        segments.iter().any(|seen| seen.is_syn() && seen.mptcp == option)
    };
    // If the client sent no option, it gave up Multipath TCP by itself.
    let gave_up = has(&client.up, false);
    if has(&client.up, true) && !has(&server.up, true) {
        let came = has(&server.up, false) && !gave_up;
        found.push(if came { Behavior::StripsSyn } else { Behavior::DropsSyn });
    } else if has(&server.down, true) && !has(&client.down, true) {
        let came = has(&client.down, false) && !has(&server.down, false);
        found.push(if came { Behavior::StripsSynAck } else { Behavior::DropsSynAck });
    }
}

/// Sent and received segments of one direction, relative to the SYN of each end.
struct OneWay<'a> {
    is_toward_server: bool,
    sent: &'a [SeenSegment],
    came: &'a [SeenSegment],
    isns: (u32, u32),
}

impl OneWay<'_> {
    fn sent_from(&self, seen: &SeenSegment) -> u32 {
        seen.seq.wrapping_sub(self.isns.0)
    }

    fn sent_position(&self, seen: &SeenSegment) -> u32 {
        seen.seq.wrapping_sub(self.isns.1)
    }

    /// Returns true if the sender received SACK blocks beyond the data it has sent.
    fn has_invalid_sack(&self, back: &[SeenSegment]) -> bool {
        let data = self.sent.iter().filter(|seen| seen.len > 0);
        let highest = data.map(|seen| self.sent_from(seen).saturating_add(seen.len)).max();
        let edges = back.iter().filter_map(|seen| seen.sack);
        edges.map(|edge| edge.wrapping_sub(self.isns.0)).max() > highest
    }

    /// Finds options or segments that were sent but not received.
    fn options(&self, found: &mut Vec<Behavior>) {
        let is_toward_server = self.is_toward_server;
        let rest = |seen: &&SeenSegment| !seen.is_syn() && !seen.is_rst();
        let with: Vec<&SeenSegment> =
            self.sent.iter().filter(rest).filter(|seen| seen.mptcp).collect();
        if with.is_empty() {
            return;
        }
        let came: Vec<&SeenSegment> = self.came.iter().filter(rest).collect();
        let arrived = came.iter().filter(|seen| seen.mptcp).count();
        // The segment was sent with the option, starting with its first byte, but received without it.
        let sent_with = |seen: &&&SeenSegment| {
            with.iter().any(|sent| {
                self.sent_from(sent) == self.sent_position(seen)
                    && sent.len == seen.len
                    && seen.len > 0
            })
        };
        let never_bare = |seen: &&&SeenSegment| {
            !self.sent.iter().any(|sent| {
                !sent.mptcp
                    && self.sent_from(sent) == self.sent_position(seen)
                    && sent.len == seen.len
            })
        };
        let stripped =
            came.iter().filter(|seen| !seen.mptcp).filter(sent_with).filter(never_bare).count();
        let acks_bare = self.lost_option_from_acks(&with, &came);
        if stripped > 0 || acks_bare {
            let in_mid_stream = arrived > 2;
            found.push(Behavior::StripsData { is_toward_server, in_mid_stream });
        } else if arrived == 0 && with.len() > 1 || self.option_ceased(&with, &came) {
            found.push(Behavior::DropsData { is_toward_server, in_mid_stream: arrived > 0 });
        }
    }

    /// Returns true if data with the option arrived at first, but not at the end in spite of retransmissions. The path
    /// itself works then, since the other end's report arrived over it.
    fn option_ceased(&self, with: &[&SeenSegment], came: &[&SeenSegment]) -> bool {
        const MIN_CEASED_US: u64 = 1_000_000;
        let arrived = came.iter().filter(|seen| seen.mptcp && seen.len > 0);
        let Some(highest) =
            arrived.map(|seen| self.sent_position(seen).saturating_add(seen.len)).max()
        else {
            return false;
        };
        let mut beyond = with.iter().filter(|seen| seen.len > 0 && self.sent_from(seen) >= highest);
        let (first, last) = (beyond.next(), beyond.next_back());
        first.zip(last).is_some_and(|(first, last)| last.at_us >= first.at_us + MIN_CEASED_US)
    }

    /// Returns true if acknowledgments that were all sent with the option arrived without it.
    fn lost_option_from_acks(&self, with: &[&SeenSegment], came: &[&SeenSegment]) -> bool {
        let all_with = self.sent.iter().filter(|seen| seen.is_pure_ack()).all(|seen| seen.mptcp);
        let bare = came.iter().filter(|seen| seen.is_pure_ack() && !seen.mptcp).count();
        all_with && bare > 0 && !with.is_empty()
    }

    /// Finds segments that were received differently from how they were sent.
    fn find_reshaped_segments(&self, found: &mut Vec<Behavior>) {
        let mut sent: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
        for seen in self.sent.iter().filter(|seen| seen.len > 0) {
            sent.entry((self.sent_from(seen), seen.len)).or_default().push(seen.sum);
        }
        for seen in self.came.iter().filter(|seen| seen.len > 0) {
            let (from, len) = (self.sent_position(seen), seen.len);
            match sent.get(&(from, len)) {
                Some(sums) if !sums.contains(&seen.sum) => found.push(Behavior::ChangesPayload),
                Some(_) => {}
                None => {
                    let inside = |(start, sent_len): &&(u32, u32)| {
                        *start <= from && from + len <= start + sent_len
                    };
                    let cut = sent.keys().any(|key| inside(&key));
                    found.push(if cut { Behavior::Splits } else { Behavior::Coalesces });
                }
            }
        }
    }

    /// Detects that far fewer acknowledgments arrived than were sent although data was not lost at that rate.
    fn acknowledgments(&self, found: &mut Vec<Behavior>) {
        const MIN_LOST_ACKS: usize = 8;
        let count = |segments: &[SeenSegment], which: fn(&SeenSegment) -> bool| {
            segments.iter().filter(|seen| which(seen)).count()
        };
        let (sent, came) = (
            count(self.sent, SeenSegment::is_pure_ack),
            count(self.came, SeenSegment::is_pure_ack),
        );
        let with_data = |seen: &SeenSegment| seen.len > 0;
        let (data, data_came) = (count(self.sent, with_data), count(self.came, with_data));
        let lossy = data_came * 10 < data * 8;
        let (acks_lost, data_lost) = (sent.saturating_sub(came), data.saturating_sub(data_came));
        let by_chance = acks_lost < MIN_LOST_ACKS || acks_lost * data <= 4 * data_lost * sent;
        let options_drop = found
            .iter()
            .any(|other| matches!(other, Behavior::DropsData { .. } | Behavior::DropsSynAck));
        if came * 10 < sent * 8 && !by_chance && !lossy && !options_drop {
            found.push(Behavior::ThinsAcks);
        }
    }
}

/// Returns true if the client received acknowledgments for bytes that the server never acknowledged.
fn has_middlebox_acks(client: &EndRecord, server: &EndRecord) -> bool {
    let highest = |segments: &[SeenSegment], isn: Option<u32>| {
        let relative = |seen: &SeenSegment| seen.ack.wrapping_sub(isn.unwrap_or_default());
        let acks = segments.iter().filter(|seen| seen.has_ack() && !seen.is_rst());
        acks.map(relative).filter(|ack| *ack < 1 << 30).max().unwrap_or_default()
    };
    let made_up = |told: &[SeenSegment], sent: &[SeenSegment], isns: (Option<u32>, Option<u32>)| {
        highest(told, isns.0) > highest(sent, isns.1) + 1
    };
    // A middlebox that swallows data causes gaps: the acknowledgments go beyond the data that the other end has in
    // order.
    let up = made_up(
        &client.down,
        &server.down,
        (EndRecord::isn(&client.up), EndRecord::isn(&server.up)),
    );
    let down = made_up(
        &server.up,
        &client.up,
        (EndRecord::isn(&server.down), EndRecord::isn(&client.down)),
    );
    let early = has_premature_acks(client, server);
    up || down || early
}

/// Returns true if acknowledgments were received that were never sent.
fn has_premature_acks(client: &EndRecord, server: &EndRecord) -> bool {
    let missing = |came: &[SeenSegment], sent: &[SeenSegment], isns: (Option<u32>, Option<u32>)| {
        let (Some(came_isn), Some(sent_isn)) = isns else { return false };
        let known: std::collections::BTreeSet<u32> =
            sent.iter().map(|seen| seen.ack.wrapping_sub(sent_isn)).collect();
        let pure = came.iter().filter(|seen| seen.is_pure_ack() && seen.has_ack());
        pure.filter(|seen| !known.contains(&seen.ack.wrapping_sub(came_isn))).count() > 0
    };
    let down = (EndRecord::isn(&client.up), EndRecord::isn(&server.up));
    let up = (EndRecord::isn(&server.down), EndRecord::isn(&client.down));
    missing(&client.down, &server.down, down) || missing(&server.up, &client.up, up)
}

fn translation(client: &EndRecord, server: &EndRecord, found: &mut Vec<Behavior>) {
    let ports = |end: &EndRecord, opening: bool| {
        let segments = end.up.iter().filter(|seen| !opening || seen.is_syn() && !seen.has_ack());
        let mut ports: Vec<u16> = segments.map(|seen| seen.client_port).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    };
    // Client ports from which the server received segments but no SYN.
    let opened = ports(server, true);
    let strangers = ports(server, false).into_iter().filter(|port| !opened.contains(port)).count();
    if strangers > 0 {
        found.push(Behavior::RebindsNat);
    }
    let ours = ports(client, true);
    let alike = opened.iter().any(|port| ours.contains(port));
    if !opened.is_empty() && !ours.is_empty() && !alike && strangers == 0 {
        found.push(Behavior::Translates);
    }
}
