//! Applications of workloads in virtual time.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use anyhow::Context as _;
use marline_sim::{App, Message, Messages, Paths, Plan, SERVER_PORT, SentAt, Socket};
use marline_time::{Duration, Instant};

use super::{Flow, Load, START};
use crate::scenario::Side;
use crate::workload::{Mark, Workload};

/// Logs of the workloads of a run, in their order.
pub type Flows = Rc<RefCell<Vec<Flow>>>;

/// Seeds of the verifiable bytes that the client and the server write.
const UP_FIRST: [u64; 2] = [5, 6];
const DOWN_FIRST: [u64; 2] = [8, 7];

/// Starts workloads: the server listens, and the client connects over the first path. Workloads with the same
/// connection share it.
///
/// # Errors
/// The client cannot connect.
pub fn begin(paths: &mut Paths, loads: &[Load], seed: u64) -> anyhow::Result<Flows> {
    let flow = |number| Flow {
        start_ns: START.as_nanos(),
        seed: Load::seed(seed, number),
        ..Flow::default()
    };
    let flows: Flows = Rc::new(RefCell::new((0..loads.len()).map(flow).collect()));
    let mut groups: Vec<Vec<u16>> = Vec::new();
    for (number, load) in (0..).zip(loads) {
        let same = |group: &&mut Vec<u16>| {
            load.connection.is_some() && loads[usize::from(group[0])].connection == load.connection
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(number),
            None => groups.push(vec![number]),
        }
    }
    let mut servers: BTreeMap<u16, Box<dyn App>> = BTreeMap::new();
    let mut clients = Vec::new();
    for (port, group) in (SERVER_PORT..).zip(&groups) {
        let mut ends = [Side::Client, Side::Server].map(|side| End::new(side, Rc::clone(&flows)));
        for number in group {
            let load = &loads[usize::from(*number)];
            add(&mut ends, *number, load, Load::seed(seed, (*number).into()));
        }
        let first = &loads[usize::from(group[0])].workload;
        let both = matches!(first, Workload::Exchange { .. });
        let seeds = if both || first.is_from_client() { UP_FIRST } else { DOWN_FIRST };
        let plans = ends.map(|end| -> Box<dyn Plan> { Box::new(end.in_order()) });
        let [client, server] = Messages::pair(plans, seeds);
        servers.insert(port, Box::new(server));
        clients.push((port, client));
    }
    paths.listen_by_port(Box::new(move |port| servers.remove(&port)));
    for (port, client) in clients {
        paths.connect_to(0, port, Box::new(client)).context("connect")?;
    }
    Ok(flows)
}

/// Adds a workload to both ends of its connection.
fn add([client, server]: &mut [End; 2], flow: u16, load: &Load, seed: u64) {
    let start = START + load.from;
    let after_start = |ns| start + Duration::from_nanos(ns);
    let message = |index, bytes: u32, answer: u32| Message {
        flow,
        index,
        bytes: bytes.into(),
        answer_bytes: answer.into(),
        ends: true,
        sent: SentAt::Begin,
    };
    let workload = &load.workload;
    let times = workload.times_ns(seed).into_iter().map(after_start);
    match *workload {
        Workload::Ask { request_bytes, answer_bytes, .. } => {
            let request = |index| message(index, request_bytes, answer_bytes);
            client.due.extend((0..).map(request).zip(times).map(|(request, at)| (at, request)));
        }
        Workload::Dialogue { request_bytes, answer_bytes, unanswered_bytes, .. } => {
            client.limit = Some((request_bytes.into(), unanswered_bytes.into()));
            for (at, pieces) in workload.dialogue(seed).into_iter().flat_map(|plan| plan.requests) {
                let (last, first) = (pieces.len() - 1, SentAt::Begin);
                for (place, bytes) in pieces.into_iter().enumerate() {
                    let sent = if place == 0 { first } else { SentAt::Never };
                    let answer = if place == last { answer_bytes } else { 0 };
                    let piece = Message { sent, ends: place == last, ..message(0, bytes, answer) };
                    client.due.push_back((after_start(at), piece));
                }
            }
        }
        Workload::Exchange { bytes } => {
            client.due.push_back((start, message(0, bytes, 0)));
            server.due.push_back((start, message(0, bytes, 0)));
        }
        Workload::Bursts { .. } | Workload::RandomBursts { .. } => {
            let sizes = workload.sizes(seed);
            let burst = |(index, at)| (at, message(index, sizes.of(index), 0));
            server.due.extend((0..).zip(times).map(burst));
        }
        Workload::Blocks { bytes, lasts_ms } | Workload::Upload { bytes, lasts_ms } => {
            let block = Message { sent: SentAt::Accepted, ..message(0, bytes, 0) };
            let until = start + Duration::from_millis(lasts_ms);
            let end = if workload.is_from_client() { client } else { server };
            end.floods.push(Flood { block, from: start, until });
        }
    }
}

/// Blocks one after another.
#[derive(Debug)]
struct Flood {
    /// The next block.
    block: Message,
    from: Instant,
    until: Instant,
}

/// What one end of a connection writes.
#[derive(Debug)]
struct End {
    side: Side,
    /// Messages with their times, in order.
    due: VecDeque<(Instant, Message)>,
    floods: Vec<Flood>,
    /// Answers to requests that have arrived.
    owed: VecDeque<Message>,
    /// Size of a dialogue's request, and the limit of unanswered bytes above which a due one is skipped.
    limit: Option<(u64, u64)>,
    /// Bytes of the dialogue's requests so far, and their number.
    asked: (u64, u32),
    answered: u64,
    skipped: u64,
    flows: Flows,
}

impl End {
    fn new(side: Side, flows: Flows) -> End {
        let (due, floods, owed) = (VecDeque::new(), Vec::new(), VecDeque::new());
        End { side, due, floods, owed, limit: None, asked: (0, 0), answered: 0, skipped: 0, flows }
    }

    /// Sorts the messages of several workloads by time.
    fn in_order(mut self) -> End {
        self.due.make_contiguous().sort_by_key(|(at, _)| *at);
        self
    }

    /// The next message of the schedule, if it is due.
    fn scheduled(&mut self, now: Instant) -> Option<Message> {
        loop {
            let (_, mut message) = self.due.pop_front_if(|(at, _)| *at <= now)?;
            let Some((request_bytes, limit)) = self.limit else { return Some(message) };
            let begins = message.sent == SentAt::Begin;
            let open = self.asked.0 - (self.answered * request_bytes).min(self.asked.0);
            if begins && open > limit {
                self.skipped += 1;
                if let Some(flow) = self.flows.borrow_mut().get_mut(usize::from(message.flow)) {
                    flow.client.skipped += 1;
                }
                while self.due.pop_front_if(|(_, later)| later.sent == SentAt::Never).is_some() {}
                continue;
            }
            self.asked.1 += u32::from(begins);
            self.asked.0 += message.bytes;
            message.index = self.asked.1 - 1;
            return Some(message);
        }
    }

    /// The next block of the flood that has sent the fewest.
    fn flood(&mut self, now: Instant) -> Option<Message> {
        let active = self.floods.iter_mut().filter(|flood| flood.from <= now && now < flood.until);
        let flood = active.min_by_key(|flood| flood.block.index)?;
        let block = flood.block;
        flood.block.index += 1;
        Some(block)
    }

    /// Records an event in this end's log of a workload.
    fn log(&self, message: &Message, now: Instant, sent: bool) {
        let mark = Mark { stream: 0, index: message.index, at_ns: now.as_nanos() };
        if let Some(flow) = self.flows.borrow_mut().get_mut(usize::from(message.flow)) {
            let log = if self.side == Side::Client { &mut flow.client } else { &mut flow.server };
            if sent { log.sent.push(mark) } else { log.received.push(mark) }
        }
    }
}

impl Plan for End {
    fn next_message(&mut self, now: Instant) -> Option<Message> {
        let owed = self.owed.pop_front();
        owed.or_else(|| self.scheduled(now)).or_else(|| self.flood(now))
    }

    fn next_timeout(&self) -> Option<Instant> {
        let begins = self.floods.iter().filter(|flood| flood.block.index == 0);
        self.due.front().map(|(at, _)| *at).into_iter().chain(begins.map(|flood| flood.from)).min()
    }

    fn on_sent(&mut self, now: Instant, message: &Message) {
        self.log(message, now, true);
    }

    fn on_message(&mut self, socket: &mut Socket<'_>, message: &Message) {
        if message.answer_bytes > 0 {
            let (bytes, sent) = (message.answer_bytes, SentAt::Never);
            self.owed.push_back(Message { bytes, answer_bytes: 0, sent, ..*message });
        } else if message.ends {
            self.answered += 1;
            self.log(message, socket.now(), false);
        }
    }

    fn skipped(&self) -> u64 {
        self.skipped
    }
}
