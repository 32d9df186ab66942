//! Messages that both ends of a connection write for its workloads, in virtual time and live.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::rc::Rc;

use marline_sim::{Message, Plan, SentAt};
use marline_time::{Duration, Instant};

use super::film::Player;
use super::{Flow, Load};
use crate::scenario::Side;
use crate::workload::{Mark, Workload};

/// Length in bytes of a request for a video segment.
const REQUEST_BYTES: u64 = 400;

/// Logs of the workloads of a run, in their order.
pub type Flows = Rc<RefCell<Vec<Flow>>>;

/// Creates empty logs for a run whose workloads start at this time.
pub(super) fn flows(loads: &[Load], start: Instant, seed: u64) -> Flows {
    let flow = |(number, load): (usize, &Load)| Flow {
        start_ns: start.as_nanos(),
        from_ns: load.starts_ns(),
        seed: Load::seed(seed, number),
        ..Flow::default()
    };
    Rc::new(RefCell::new(loads.iter().enumerate().map(flow).collect()))
}

/// Numbers of the workloads of each connection, without datagrams and pages. Workloads that name the same connection
/// share it.
pub(super) fn connections(loads: &[Load]) -> Vec<Vec<u16>> {
    let mut groups: Vec<Vec<u16>> = Vec::new();
    for (number, load) in (0..).zip(loads) {
        if matches!(load.workload, Workload::Voice { .. } | Workload::Web { .. }) {
            continue;
        }
        let same = |group: &&mut Vec<u16>| {
            load.connection.is_some() && loads[usize::from(group[0])].connection == load.connection
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(number),
            None => groups.push(vec![number]),
        }
    }
    groups
}

/// Source of the messages that an end writes for a workload without being asked.
pub(super) trait Source: Debug {
    /// Time at which the next message is due. `None` if there is none.
    fn next_at(&self) -> Option<Instant>;

    /// Time at which the end must act even if nothing arrives and all data has been accepted.
    fn wakes_at(&self) -> Option<Instant> {
        self.next_at()
    }

    /// Takes the due message. `None` if it is skipped.
    fn take(&mut self, now: Instant) -> Option<Message>;

    /// Handles a message of the workload that was read.
    fn on_read(&mut self, _now: Instant, _message: &Message) {}

    /// End time of an endless source, which has a message whenever the connection accepts one.
    fn bulk_end_time(&self) -> Option<Instant> {
        None
    }
}

/// Source of messages at planned times.
#[derive(Debug)]
struct Schedule(VecDeque<(Instant, Message)>);

impl Source for Schedule {
    fn next_at(&self) -> Option<Instant> {
        self.0.front().map(|(at, _)| *at)
    }

    fn take(&mut self, _now: Instant) -> Option<Message> {
        self.0.pop_front().map(|(_, message)| message)
    }
}

/// Source of requests in pieces. A due request is skipped while too much is unanswered.
#[derive(Debug)]
struct DialogueRequests {
    pieces: VecDeque<(Instant, Message)>,
    request_bytes: u64,
    /// Limit on unanswered bytes.
    limit: u64,
    asked_bytes: u64,
    /// Number of requests made.
    asked: u32,
    answered: u64,
}

impl Source for DialogueRequests {
    fn next_at(&self) -> Option<Instant> {
        self.pieces.front().map(|(at, _)| *at)
    }

    fn take(&mut self, _now: Instant) -> Option<Message> {
        let (_, mut piece) = self.pieces.pop_front()?;
        let begins = piece.sent == SentAt::Begin;
        let answered = (self.answered * self.request_bytes).min(self.asked_bytes);
        if begins && self.asked_bytes - answered > self.limit {
            let is_rest = |(_, piece): &mut (Instant, Message)| piece.sent == SentAt::Never;
            while self.pieces.pop_front_if(is_rest).is_some() {}
            return None;
        }
        self.asked += u32::from(begins);
        self.asked_bytes += piece.bytes;
        piece.index = self.asked - 1;
        Some(piece)
    }

    fn on_read(&mut self, _now: Instant, _message: &Message) {
        self.answered += 1;
    }
}

/// Source of consecutive blocks, as fast as the stack accepts them.
#[derive(Debug)]
struct BlockSource {
    /// Next block number.
    block: Message,
    /// Start, and later the time of the last block, so that several sources take turns.
    from: Instant,
    until: Instant,
}

impl Source for BlockSource {
    fn next_at(&self) -> Option<Instant> {
        Some(self.from)
    }

    fn wakes_at(&self) -> Option<Instant> {
        (self.block.index == 0).then_some(self.from)
    }

    fn take(&mut self, now: Instant) -> Option<Message> {
        let block = self.block;
        self.block.index += 1;
        self.from = now;
        Some(block)
    }

    fn bulk_end_time(&self) -> Option<Instant> {
        Some(self.until)
    }
}

/// Source of a player's requests.
#[derive(Debug)]
struct FilmRequests {
    flow: u16,
    player: Player,
}

impl Source for FilmRequests {
    fn next_at(&self) -> Option<Instant> {
        self.player.next_at
    }

    fn take(&mut self, now: Instant) -> Option<Message> {
        let index = self.player.requested;
        let answer_bytes = self.player.request(now);
        let (flow, bytes, sent) = (self.flow, REQUEST_BYTES, SentAt::Begin);
        Some(Message { flow, index, bytes, answer_bytes, ends: true, sent })
    }

    fn on_read(&mut self, now: Instant, _message: &Message) {
        self.player.on_segment_arrived(now);
    }
}

/// Data that one end of a connection writes, and its log.
#[derive(Debug)]
pub(super) struct End {
    side: Side,
    /// Stream number in the log.
    stream: u8,
    sources: Vec<(u16, Box<dyn Source>)>,
    /// Answers to be sent to received requests.
    pending_answers: VecDeque<Message>,
    /// Number of messages that this end will read, by workload. `None` for endless ones.
    expected_messages: BTreeMap<u16, u64>,
    skipped_count: u64,
    flows: Flows,
}

impl End {
    /// Creates both ends of a connection, the client's first, with these workloads of a run that starts at this time.
    pub(super) fn both_ends(
        loads: &[Load],
        group: &[u16],
        start: Instant,
        seed: u64,
        flows: &Flows,
    ) -> [End; 2] {
        let mut ends =
            [Side::Client, Side::Server].map(|side| End { side, ..End::answering_end(flows) });
        for number in group {
            let load = &loads[usize::from(*number)];
            let seed = Load::seed(seed, usize::from(*number));
            add(&mut ends, *number, &load.workload, start + load.from, seed);
        }
        ends
    }

    fn write(&mut self, flow: u16, source: impl Source + 'static) {
        self.sources.push((flow, Box::new(source)));
    }

    /// An end that only answers.
    pub(super) fn answering_end(flows: &Flows) -> End {
        End {
            side: Side::Server,
            stream: 0,
            sources: Vec::new(),
            pending_answers: VecDeque::new(),
            expected_messages: BTreeMap::new(),
            skipped_count: 0,
            flows: Rc::clone(flows),
        }
    }

    /// Sets the number of the stream, if the same messages use several.
    pub(super) fn with_stream(self, stream: u8) -> End {
        End { stream, ..self }
    }

    /// Latest end of the endless sources of both ends.
    pub(super) fn bulk_end(loads: &[Load], group: &[u16], start: Instant) -> Option<Instant> {
        let mine = group.iter().map(|number| &loads[usize::from(*number)]);
        let endless = mine.filter(|load| load.workload.count().is_none());
        endless.map(|load| start + load.ends(0)).max()
    }

    /// Returns true if all planned messages, except endless ones, have been written and read.
    pub(super) fn is_complete(&self) -> bool {
        let written = self
            .sources
            .iter()
            .all(|(_, source)| source.next_at().is_none() || source.bulk_end_time().is_some());
        written
            && self.pending_answers.is_empty()
            && self.expected_messages.values().all(|left| *left == 0)
    }

    /// The next due message: the earliest planned one, or else one of an endless source.
    fn due_message(&mut self, now: Instant) -> Option<Message> {
        loop {
            let due = |(_, source): &&mut (u16, Box<dyn Source>)| {
                source.next_at().is_some_and(|at| at <= now)
                    && source.bulk_end_time().is_none_or(|until| now < until)
            };
            let earliest = |(_, source): &&mut (u16, Box<dyn Source>)| {
                (source.bulk_end_time().is_some(), source.next_at())
            };
            let (flow, source) = self.sources.iter_mut().filter(due).min_by_key(earliest)?;
            if let Some(message) = source.take(now) {
                return Some(message);
            }
            self.skipped_count += 1;
            self.expected_messages.entry(*flow).and_modify(|left| *left = left.saturating_sub(1));
            if let Some(flow) = self.flows.borrow_mut().get_mut(usize::from(*flow)) {
                flow.client.skipped += 1;
            }
        }
    }

    /// Records an event in this end's log of a workload.
    fn log(&self, message: &Message, now: Instant, sent: bool) {
        let mark = Mark { stream: self.stream, index: message.index, at_ns: now.as_nanos() };
        if let Some(flow) = self.flows.borrow_mut().get_mut(usize::from(message.flow)) {
            let log = if self.side == Side::Client { &mut flow.client } else { &mut flow.server };
            if sent { log.sent.push(mark) } else { log.received.push(mark) }
        }
    }
}

impl Plan for End {
    fn next_message(&mut self, now: Instant) -> Option<Message> {
        self.pending_answers.pop_front().or_else(|| self.due_message(now))
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.sources.iter().filter_map(|(_, source)| source.wakes_at()).min()
    }

    fn on_sent(&mut self, now: Instant, message: &Message) {
        self.log(message, now, true);
    }

    fn on_message(&mut self, now: Instant, message: &Message) {
        if message.answer_bytes > 0 {
            let (bytes, sent) = (message.answer_bytes, SentAt::Never);
            self.pending_answers.push_back(Message { bytes, answer_bytes: 0, sent, ..*message });
        } else if message.ends {
            self.expected_messages
                .entry(message.flow)
                .and_modify(|left| *left = left.saturating_sub(1));
            self.log(message, now, false);
            let mine = self.sources.iter_mut().filter(|(flow, _)| *flow == message.flow);
            mine.for_each(|(_, source)| source.on_read(now, message));
        }
    }

    fn skipped_count(&self) -> u64 {
        self.skipped_count
    }
}

/// Adds a workload to both ends of its connection.
fn add([client, server]: &mut [End; 2], flow: u16, workload: &Workload, start: Instant, seed: u64) {
    let after_start = |ns| start + Duration::from_nanos(ns);
    let message = |index, bytes: u32, answer: u32| Message {
        flow,
        index,
        bytes: bytes.into(),
        answer_bytes: answer.into(),
        ends: true,
        sent: SentAt::Begin,
    };
    let times = workload.times_ns(seed).into_iter().map(after_start);
    let count = u64::from(workload.count().unwrap_or(0));
    match *workload {
        Workload::Ask { request_bytes, answer_bytes, .. } => {
            let request = |(index, at)| (at, message(index, request_bytes, answer_bytes));
            client.write(flow, Schedule((0..).zip(times).map(request).collect()));
            client.expected_messages.insert(flow, count);
        }
        Workload::Dialogue { request_bytes, answer_bytes, unanswered_bytes, .. } => {
            let pieces = workload.pieces(seed).into_iter().flat_map(|(at, pieces)| {
                let last = pieces.len() - 1;
                let piece = move |(place, bytes)| {
                    let sent = if place == 0 { SentAt::Begin } else { SentAt::Never };
                    let (ends, answer) =
                        (place == last, if place == last { answer_bytes } else { 0 });
                    (after_start(at), Message { sent, ends, ..message(0, bytes, answer) })
                };
                pieces.into_iter().enumerate().map(piece)
            });
            let (asked_bytes, asked, answered) = (0, 0, 0);
            let (request_bytes, limit) = (request_bytes.into(), unanswered_bytes.into());
            let pieces = pieces.collect();
            let requests =
                DialogueRequests { pieces, request_bytes, limit, asked_bytes, asked, answered };
            client.write(flow, requests);
            client.expected_messages.insert(flow, count);
        }
        Workload::Exchange { bytes } => {
            for end in [client, server] {
                end.write(flow, Schedule([(start, message(0, bytes, 0))].into()));
                end.expected_messages.insert(flow, 1);
            }
        }
        Workload::Bursts { .. } | Workload::RandomBursts { .. } => {
            let sizes = workload.sizes(seed);
            let burst = |(index, at)| (at, message(index, sizes.size_of(index), 0));
            server.write(flow, Schedule((0..).zip(times).map(burst).collect()));
            client.expected_messages.insert(flow, count);
        }
        Workload::Film(film) => {
            let player = Player::new(film, start);
            client.write(flow, FilmRequests { flow, player });
            client.expected_messages.insert(flow, count);
        }
        // Datagrams have no connection, and pages open their own.
        Workload::Voice { .. } | Workload::Web { .. } => {}
        Workload::Blocks { bytes, lasts_ms } | Workload::Upload { bytes, lasts_ms } => {
            let block = Message { sent: SentAt::Accepted, ..message(0, bytes, 0) };
            let until = start + Duration::from_millis(lasts_ms);
            let end = if workload.is_from_client() { client } else { server };
            end.write(flow, BlockSource { block, from: start, until });
        }
    }
}
