//! Copies of messages: the segments that carried a message, their paths, and the copy that completed it.
//!
//! A copy is a segment's part of a message. It counts when the receiving subflow delivers it: subflows deliver in
//! order, so a copy after a gap waits until the gap is filled, however early it arrived. Of several copies of a byte,
//! the first that is delivered counts.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;

use marline_sim::{LinkId, ObservationPoint, Observer, Packet, Paths, Report};
use marline_time::Instant;
use marline_wire::{TcpFlags, TcpSegment, verify_tcp_checksum};

use super::after_start_us;
use crate::results::{Cell, Column, Table};
use crate::stream_places::{SegmentPosition, StreamPositions};
use crate::workload::{Sizes, Workload};

/// A segment's part of a message.
#[derive(Clone, Debug)]
struct MessageCopy {
    message: u32,
    path: usize,
    /// Offset of the part in the message.
    offset: u64,
    bytes: u32,
    sent: Instant,
    arrived: Option<Instant>,
    /// Bytes that no other copy had delivered before.
    new_bytes: u32,
    arrived_first: bool,
}

/// A data segment that is in transit or held by its subflow's receiver.
#[derive(Clone, Debug)]
struct HeldSegment {
    from_client: bool,
    flow: (SocketAddr, SocketAddr),
    /// Position in its subflow.
    subflow: Range<u64>,
    /// Position of its first byte in the stream.
    stream: u64,
    /// Indices of its copies.
    copies: Range<usize>,
}

/// Receiver of one direction of a subflow.
#[derive(Debug, Default)]
struct Inbox {
    /// Everything before this position has been delivered.
    next: u64,
    /// Segments that wait for delivery, by position and packet number.
    waiting: BTreeMap<(u64, u64), HeldSegment>,
    /// Position in the stream minus position in the subflow, for the segment sent last.
    stream_offset: Option<i64>,
}

/// Messages of one direction.
#[derive(Debug)]
struct Direction {
    /// Sizes of the messages.
    sizes: Sizes,
    /// End of each message in the stream, computed on demand if sizes differ.
    ends: Vec<u64>,
    copies: Vec<MessageCopy>,
    /// Received parts of the stream: disjoint and not adjacent.
    received: BTreeMap<u64, u64>,
    /// Progress of each message: missing bytes, and the time of completion.
    progress: Vec<(u64, Option<Instant>)>,
}

/// Records the copies of all messages during a run.
#[derive(Debug)]
pub(super) struct Copies {
    /// Path of a link, and true if the link leads away from the client.
    links: BTreeMap<LinkId, (usize, bool)>,
    places: StreamPositions,
    /// Segments in transit, by packet number. Lost ones are not removed.
    in_transit: BTreeMap<u64, HeldSegment>,
    inboxes: BTreeMap<(SocketAddr, SocketAddr), Inbox>,
    to_client: Direction,
    to_server: Direction,
    /// True if requests are answered.
    answers: bool,
    max_rows: usize,
    left_out: u64,
}

impl Copies {
    pub(super) fn new(paths: &Paths, workload: &Workload, seed: u64, max_rows: usize) -> Copies {
        let up = paths.up.iter().enumerate().map(|(path, link)| (*link, (path, true)));
        let down = paths.down.iter().enumerate().map(|(path, link)| (*link, (path, false)));
        let (requests, answers) = match *workload {
            Workload::Ask { request_bytes, .. } | Workload::Dialogue { request_bytes, .. } => {
                (request_bytes, true)
            }
            Workload::Exchange { bytes } => (bytes, false),
            // No data is written in this direction.
            _ => (u32::MAX, false),
        };
        Copies {
            links: up.chain(down).collect(),
            places: StreamPositions::default(),
            in_transit: BTreeMap::new(),
            inboxes: BTreeMap::new(),
            to_client: Direction::new(workload.sizes(seed)),
            to_server: Direction::new(Sizes::Even(requests)),
            answers,
            max_rows,
            left_out: 0,
        }
    }

    /// Number of copies beyond the limit.
    pub(super) const fn left_out(&self) -> u64 {
        self.left_out
    }

    fn direction(&mut self, from_client: bool) -> &mut Direction {
        if from_client { &mut self.to_server } else { &mut self.to_client }
    }

    fn sent(&mut self, now: Instant, link: LinkId, packet: &Packet) {
        let Some((path, from_client)) = self.links.get(&link).copied() else { return };
        let Ok(tcp) = TcpSegment::parse(&packet.segment) else { return };
        let place = self.places.place_segment(from_client, &packet.path, &tcp);
        let flow = (packet.path.local, packet.path.remote);
        if tcp.header.flags.contains(TcpFlags::SYN) {
            // Data with a SYN is not a copy, so nothing waits for it.
            let next = tcp.payload.len() as u64;
            self.inboxes.insert(flow, Inbox { next, ..Inbox::default() });
            return;
        }
        if tcp.payload.is_empty() {
            return;
        }
        let bytes = tcp.payload.len() as u64;
        let inbox = self.inboxes.entry(flow).or_default();
        let Some(stream) = inbox.stream_offset(&place) else { return };
        let messages = self.direction(from_client).messages(stream..stream + bytes);
        let rows = self.to_client.copies.len() + self.to_server.copies.len();
        if rows + messages.len() > self.max_rows {
            self.left_out += messages.len() as u64;
            return;
        }
        let direction = self.direction(from_client);
        let first = direction.copies.len();
        direction.copies.extend(messages.into_iter().map(|(message, part)| MessageCopy {
            message,
            path,
            offset: part.start,
            bytes: (part.end - part.start) as u32,
            sent: now,
            arrived: None,
            new_bytes: 0,
            arrived_first: false,
        }));
        let copies = first..direction.copies.len();
        let begin = u64::from(place.subflow_offset);
        let subflow = begin..begin + bytes;
        let held = HeldSegment { from_client, flow, subflow, stream, copies };
        self.in_transit.insert(packet.number, held);
    }

    fn delivered(&mut self, now: Instant, packet: &Packet) {
        let addresses = (packet.path.local.ip(), packet.path.remote.ip());
        if !verify_tcp_checksum(Some(addresses), &packet.segment) {
            return;
        }
        let Some(held) = self.in_transit.remove(&packet.number) else { return };
        for copy in &mut self.direction(held.from_client).copies[held.copies.clone()] {
            copy.arrived = Some(now);
        }
        let Some(inbox) = self.inboxes.get_mut(&held.flow) else { return };
        let (flow, from_client) = (held.flow, held.from_client);
        inbox.waiting.insert((held.subflow.start, packet.number), held);
        while let Some((held, from)) = self.inboxes.get_mut(&flow).and_then(Inbox::pass_on) {
            self.direction(from_client).pass_on(now, &held, from);
        }
    }

    /// Adds a row per copy, and per message without copies.
    pub(super) fn rows(
        &self,
        names: &[String],
        client: Option<&Report>,
        server: Option<&Report>,
    ) -> Table {
        let sent = |report: Option<&Report>| report.map_or(Vec::new(), |r| r.sent.clone());
        let read = |report: Option<&Report>| report.map_or(Vec::new(), |r| r.received.clone());
        let requests = self.to_server.message_count(sent(client), &read(server));
        // A server answers as soon as it has the request.
        let answered: Vec<Instant> =
            requests.iter().map_while(|message| message.complete).collect();
        let written = if self.answers { answered } else { sent(server) };
        let answers = self.to_client.message_count(written, &read(client));
        let mut rows = table();
        let most = requests.len().max(answers.len());
        let both = [
            ("client", &self.to_server, &requests, self.to_server.group_copies_by_message()),
            ("server", &self.to_client, &answers, self.to_client.group_copies_by_message()),
        ];
        for index in 0..most {
            for (from, direction, messages, copies) in &both {
                let Some(message) = messages.get(index) else { continue };
                let head: [Cell<'_>; 6] = [
                    index.into(),
                    (*from).into(),
                    direction.sizes.size_of(index as u32).into(),
                    message.written.map(after_start_us).into(),
                    message.complete.map(after_start_us).into(),
                    message.read.map(after_start_us).into(),
                ];
                let mine = copies.get(index).map_or(&[][..], Vec::as_slice);
                for (number, copy) in mine.iter().enumerate() {
                    let cells = direction.copies[*copy].cells(number, names);
                    rows.push(head.into_iter().chain(cells));
                }
                if mine.is_empty() {
                    rows.push(head.into_iter().chain([Cell::Unknown; 8]));
                }
            }
        }
        rows
    }
}

/// The empty table.
pub(super) fn table() -> Table {
    let columns = vec![
        Column::count("index", ""),
        Column::text("from"),
        Column::count("bytes", "B"),
        Column::integer("written_us", "us"),
        Column::integer("complete_us", "us"),
        Column::integer("read_us", "us"),
        Column::count("copy", ""),
        Column::text("path"),
        Column::count("offset_bytes", "B"),
        Column::count("copy_bytes", "B"),
        Column::integer("sent_us", "us"),
        Column::integer("arrived_us", "us"),
        Column::count("new_bytes", "B"),
        Column::flag("won"),
    ];
    Table::new("copies", columns)
}

impl MessageCopy {
    /// The copy's cells, which follow those of the message.
    fn cells<'a>(&self, number: usize, names: &'a [String]) -> [Cell<'a>; 8] {
        [
            number.into(),
            names[self.path].as_str().into(),
            self.offset.into(),
            self.bytes.into(),
            after_start_us(self.sent).into(),
            self.arrived.map(after_start_us).into(),
            self.new_bytes.into(),
            self.arrived_first.into(),
        ]
    }
}

impl Inbox {
    /// A segment's position in the stream. Data without a mapping is plain TCP, which continues the mapped data or
    /// begins the stream.
    fn stream_offset(&mut self, place: &SegmentPosition) -> Option<u64> {
        let in_subflow = i64::from(place.subflow_offset);
        let Some(stream) = place.stream_offset else {
            return u64::try_from(in_subflow + self.stream_offset.unwrap_or(0)).ok();
        };
        self.stream_offset = Some(stream as i64 - in_subflow);
        Some(stream)
    }

    /// The next segment in order, and the position in the subflow at which its new data starts.
    fn pass_on(&mut self) -> Option<(HeldSegment, u64)> {
        let next = self.next;
        let first = self.waiting.first_entry().filter(|first| first.key().0 <= next)?;
        let held = first.remove();
        let from = next.min(held.subflow.end);
        self.next = next.max(held.subflow.end);
        Some((held, from))
    }
}

/// Times at which a message was written, completed and read, if the application records them.
#[derive(Debug)]
struct Message {
    written: Option<Instant>,
    complete: Option<Instant>,
    read: Option<Instant>,
}

impl Direction {
    fn new(sizes: Sizes) -> Direction {
        let (ends, copies, progress) = (Vec::new(), Vec::new(), Vec::new());
        Direction { sizes, ends, copies, received: BTreeMap::new(), progress }
    }

    /// The message's range in the stream.
    fn span(&mut self, message: u32) -> Range<u64> {
        if let Sizes::Even(bytes) = self.sizes {
            let bytes = u64::from(bytes.max(1));
            return u64::from(message) * bytes..(u64::from(message) + 1) * bytes;
        }
        while self.ends.len() <= message as usize {
            let before = self.ends.last().copied().unwrap_or(0);
            // Data after the last message would belong to an infinite message.
            let bytes = u64::from(self.sizes.size_of(self.ends.len() as u32));
            self.ends.push(before + if bytes == 0 { u64::from(u32::MAX) } else { bytes });
        }
        let start = message.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        start..self.ends[message as usize]
    }

    /// The message that a byte of the stream belongs to.
    fn message_at(&mut self, offset: u64) -> u32 {
        if let Sizes::Even(bytes) = self.sizes {
            return (offset / u64::from(bytes.max(1))) as u32;
        }
        let mut message = self.ends.partition_point(|end| *end <= offset) as u32;
        while self.span(message).end <= offset {
            message += 1;
        }
        message
    }

    /// The messages in a part of the stream, each with the included part.
    fn messages(&mut self, part: Range<u64>) -> Vec<(u32, Range<u64>)> {
        let mut found = Vec::new();
        let mut message = self.message_at(part.start);
        loop {
            let span = self.span(message);
            if span.start >= part.end {
                return found;
            }
            let (from, to) = (part.start.max(span.start), part.end.min(span.end));
            found.push((message, from - span.start..to - span.start));
            message += 1;
        }
    }

    /// Delivers a segment that is in order, starting at this position in the subflow.
    fn pass_on(&mut self, now: Instant, held: &HeldSegment, from: u64) {
        let skipped = from.saturating_sub(held.subflow.start);
        let end = held.stream + (held.subflow.end - held.subflow.start);
        for new in self.take(held.stream + skipped..end) {
            for (message, part) in self.messages(new) {
                self.credit(now, message, part, held.copies.clone());
            }
        }
    }

    /// Marks a part of the stream as received and returns its new parts.
    fn take(&mut self, part: Range<u64>) -> Vec<Range<u64>> {
        let (mut from, mut new) = (part.start, Vec::new());
        let (mut start, mut end) = (part.start, part.end);
        // An earlier part may overlap this one.
        let first =
            self.received.range(..=part.start).next_back().map_or(part.start, |(at, _)| *at);
        let near: Vec<(u64, u64)> = self
            .received
            .range(first..=part.end)
            .map(|(start, end)| (*start, *end))
            .filter(|(_, end)| *end >= part.start)
            .collect();
        for (known_start, known_end) in near {
            self.received.remove(&known_start);
            (start, end) = (start.min(known_start), end.max(known_end));
            if from < known_start {
                new.push(from..known_start);
            }
            from = from.max(known_end);
        }
        if from < part.end {
            new.push(from..part.end);
        }
        if start < end {
            self.received.insert(start, end);
        }
        new
    }

    /// Credits a delivered part of a message to one of these copies.
    fn credit(&mut self, now: Instant, message: u32, part: Range<u64>, copies: Range<usize>) {
        let span = self.span(message);
        while self.progress.len() <= message as usize {
            let whole = self.span(self.progress.len() as u32);
            self.progress.push((whole.end - whole.start, None));
        }
        debug_assert!(part.end <= span.end - span.start, "the part belongs to the message");
        let bytes = part.end - part.start;
        let (missing, complete) = &mut self.progress[message as usize];
        *missing = missing.saturating_sub(bytes);
        let won = *missing == 0;
        if won {
            *complete = Some(now);
        }
        let mine = self.copies[copies].iter_mut().find(|copy| copy.message == message);
        if let Some(copy) = mine {
            copy.new_bytes += bytes as u32;
            copy.arrived_first |= won;
        }
    }

    /// Copies of each message by number, in the order of sending.
    fn group_copies_by_message(&self) -> Vec<Vec<usize>> {
        let mut found: Vec<Vec<usize>> = Vec::new();
        for (number, copy) in self.copies.iter().enumerate() {
            let message = copy.message as usize;
            if found.len() <= message {
                found.resize(message + 1, Vec::new());
            }
            found[message].push(number);
        }
        found
    }

    /// Messages that were written or sent, at least in part. If arrivals do not show when a message was complete
    /// (repairs are not copies), the read time is used.
    fn message_count(&self, written: Vec<Instant>, read: &[Instant]) -> Vec<Message> {
        let sent = self.copies.iter().map(|copy| copy.message as usize + 1).max().unwrap_or(0);
        let message = |index: usize| {
            let arrived = self.progress.get(index).and_then(|(_, complete)| *complete);
            let read = read.get(index).copied();
            let complete = arrived.or(read);
            Message { written: written.get(index).copied(), complete, read }
        };
        (0..sent.max(written.len())).map(message).collect()
    }
}

impl Observer for Copies {
    fn on_packet(&mut self, now: Instant, sighting: ObservationPoint, packet: &Packet) {
        match sighting {
            ObservationPoint::Sent { link: Some(link), .. } => self.sent(now, link, packet),
            ObservationPoint::Delivered { .. } => self.delivered(now, packet),
            ObservationPoint::Sent { link: None, .. } => {}
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
