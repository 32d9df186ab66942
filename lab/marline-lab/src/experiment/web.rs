//! Web page: objects on several hosts, of which later ones are only known when earlier ones have arrived.
//!
//! *Source.* The median desktop page of HTTP Archive in October 2024 (Web Almanac 2024, Page Weight): 71 requests, of
//! which 2 are HTML (18 kB), 8 style sheets (78 kB), 24 scripts (613 kB), 4 fonts (131 kB) and 18 images (1,054 kB).
//! The other 15 have 1 kB each. From memory and our choice are: the spread of sizes within a type, 12 hosts, what is
//! found in what and the time to find it, a request of 500 bytes, and TLS as one exchange of 600 and 3,000 bytes.
//!
//! *Browser.* It opens a connection to a host at the first request there, with the exchange of TLS. All requests to a
//! host use this connection, and are answered in their order. A page's connections are closed when it is complete.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use marline_sim::{App, Call, ConnectionId, Message, Messages, Plan, SentAt};
use marline_time::{Duration, Instant, Rng, SeedTree};

use super::plan::{End, Flows};
use crate::workload::Mark;

/// Objects of a page.
pub(crate) const OBJECTS: u32 = 71;
/// Hosts of a page; the first has the page.
pub(super) const HOSTS: usize = 12;
const REQUEST_BYTES: u64 = 500;
/// Request and answer of TLS.
const HANDSHAKE: (u64, u64) = (600, 3_000);
/// Number of a handshake among the messages.
const HANDSHAKE_INDEX: u32 = u32::MAX;
/// Standard deviation of the sizes' logarithm within a type.
const SPREAD: f64 = 1.0;

/// Type of objects: number, bytes of all, what they are found in (place of the type in the table), and the time from
/// its arrival to the request, ms. Half of those found in their own type are found in the page.
const TYPES: [(u32, f64, usize, u64); 6] = [
    (2, 18e3, 0, 10),     // HTML, the first of which is the page
    (8, 78e3, 0, 10),     // style sheets
    (24, 613e3, 2, 30),   // scripts
    (4, 131e3, 1, 20),    // fonts
    (18, 1_054e3, 0, 20), // images
    (15, 15e3, 2, 30),    // what scripts fetch
];

/// An object of a page.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    host: usize,
    bytes: u64,
    /// Object in which it is found.
    found_in: usize,
    delay: Duration,
}

/// The objects of a page; the first is the page itself.
pub(super) fn objects(seed: u64, page: u32) -> Vec<Object> {
    let mut rng = SeedTree::new(seed).branch("web").stream(&format!("page/{page}"));
    let mut objects: Vec<Object> = Vec::new();
    let mut first_of = [0; TYPES.len()];
    for (kind, (count, bytes, found_in, delay_ms)) in TYPES.into_iter().enumerate() {
        first_of[kind] = objects.len();
        let weights: Vec<f64> = (0..count).map(|_| (SPREAD * normal(&mut rng)).exp()).collect();
        let scale = bytes / weights.iter().sum::<f64>();
        for (number, weight) in weights.into_iter().enumerate() {
            // The page's own host has half of all objects, and all style sheets.
            let own = objects.is_empty() || kind == 1 || rng.unit() < 0.5;
            let host = if own { 0 } else { 1 + rng.below(HOSTS as u64 - 1) as usize };
            let parents = u64::from(TYPES[found_in].0);
            let found_in = match found_in {
                0 => 0,
                own if own == kind && number < count as usize / 2 => 0,
                own if own == kind => first_of[own] + rng.below(parents / 2) as usize,
                other => first_of[other] + rng.below(parents) as usize,
            };
            let (bytes, delay) =
                ((weight * scale).max(1.0) as u64, Duration::from_millis(delay_ms));
            objects.push(Object { host, bytes, found_in, delay });
        }
    }
    objects
}

/// A draw of the standard normal distribution.
fn normal(rng: &mut impl Rng) -> f64 {
    let (a, b) = (1.0 - rng.unit(), rng.unit());
    (-2.0 * a.ln()).sqrt() * (core::f64::consts::TAU * b).cos()
}

/// Bytes of a page.
pub(crate) fn page_bytes(seed: u64, page: u32) -> u32 {
    objects(seed, page).iter().map(|object| object.bytes as u32).sum()
}

/// Connection to a host.
#[derive(Debug, Default)]
struct Link {
    is_open: bool,
    id: Option<ConnectionId>,
    /// Objects to request, with the times.
    wanted: VecDeque<(Instant, usize)>,
    /// The handshake has been sent, and answered.
    greeted: bool,
    ready: bool,
}

/// Applications of the server by port, for connections that are opened later.
pub(super) type Servers = Rc<RefCell<BTreeMap<u16, Box<dyn App>>>>;

/// A page while it is loaded.
#[derive(Debug)]
pub(super) struct Page {
    flow: u16,
    /// Number of the first object among the messages.
    first_index: u32,
    objects: Vec<Object>,
    links: Vec<Link>,
    /// Ports of the connections, from this one on.
    port: u16,
    left: usize,
    flows: Flows,
    servers: Servers,
    calls: Vec<Call>,
}

impl Page {
    /// A page of a workload, whose connections use the ports from `port` on. Returns the application of its first
    /// connection, to be opened when the user wants the page.
    pub(super) fn begin(
        (flow, seed, page): (u16, u64, u32),
        port: u16,
        flows: &Flows,
        servers: &Servers,
    ) -> Messages {
        let objects = objects(seed, page);
        let shared = Rc::new(RefCell::new(Page {
            flow,
            first_index: page * OBJECTS,
            left: objects.len(),
            objects,
            links: (0..HOSTS).map(|_| Link::default()).collect(),
            port,
            flows: Rc::clone(flows),
            servers: Rc::clone(servers),
            calls: Vec::new(),
        }));
        shared.borrow_mut().links[0].wanted.push_back((Instant::ZERO, 0));
        Page::open(&shared, 0)
    }

    /// Makes both ends of the connection to a host; returns the client's.
    fn open(page: &Rc<RefCell<Page>>, host: usize) -> Messages {
        let mut mine = page.borrow_mut();
        mine.links[host].is_open = true;
        let port = mine.port + host as u16;
        let server: Box<dyn Plan> = Box::new(End::answering(&mine.flows));
        let client: Box<dyn Plan> = Box::new(ToHost { page: Rc::clone(page), host });
        let seeds = [2 * u64::from(port), 2 * u64::from(port) + 1];
        let [client, server] = Messages::pair([client, server], seeds);
        mine.servers.borrow_mut().insert(port, Box::new(server));
        client
    }

    fn next(&mut self, host: usize, now: Instant) -> Option<Message> {
        let (flow, link) = (self.flow, &mut self.links[host]);
        let message = |index, bytes, answer_bytes, sent| {
            Some(Message { flow, index, bytes, answer_bytes, ends: true, sent })
        };
        if !link.greeted {
            link.greeted = true;
            return message(HANDSHAKE_INDEX, HANDSHAKE.0, HANDSHAKE.1, SentAt::Never);
        }
        let ready = link.ready;
        let (_, object) = link.wanted.pop_front_if(|(at, _)| ready && *at <= now)?;
        let index = self.first_index + object as u32;
        message(index, REQUEST_BYTES, self.objects[object].bytes, SentAt::Begin)
    }

    /// An object has arrived: those found in it are wanted.
    fn arrived(page: &Rc<RefCell<Page>>, now: Instant, object: usize) {
        let mut to_open = Vec::new();
        let mut mine = page.borrow_mut();
        mine.left -= 1;
        for (number, found) in mine.objects.clone().into_iter().enumerate().skip(1) {
            if found.found_in != object {
                continue;
            }
            let link = &mut mine.links[found.host];
            link.wanted.push_back((now + found.delay, number));
            link.wanted.make_contiguous().sort_unstable();
            match link.id {
                Some(id) => mine.calls.push(Call::Wake(id)),
                None if !link.is_open => to_open.push(found.host),
                None => {}
            }
            mine.links[found.host].is_open = true;
        }
        // The last object closes all connections.
        if mine.left == 0 {
            let ids: Vec<_> = mine.links.iter().filter_map(|link| link.id).collect();
            mine.calls.extend(ids.into_iter().map(Call::Wake));
        }
        drop(mine);
        for host in to_open {
            let app = Page::open(page, host);
            let mut mine = page.borrow_mut();
            let port = mine.port + host as u16;
            mine.calls.push(Call::Open { port, app: Box::new(app) });
        }
    }
}

/// The client's end of a connection to a host.
#[derive(Debug)]
struct ToHost {
    page: Rc<RefCell<Page>>,
    host: usize,
}

impl ToHost {
    fn log(&self, message: &Message, now: Instant, sent: bool) {
        let page = self.page.borrow();
        let mark = Mark { stream: self.host as u8, index: message.index, at_ns: now.as_nanos() };
        let log = &mut page.flows.borrow_mut()[usize::from(page.flow)].client;
        if sent { log.sent.push(mark) } else { log.received.push(mark) }
    }
}

impl Plan for ToHost {
    fn on_open(&mut self, id: ConnectionId) {
        self.page.borrow_mut().links[self.host].id = Some(id);
    }

    fn next_message(&mut self, now: Instant) -> Option<Message> {
        self.page.borrow_mut().next(self.host, now)
    }

    fn next_timeout(&self) -> Option<Instant> {
        let page = self.page.borrow();
        let link = &page.links[self.host];
        link.wanted.front().map(|(at, _)| *at).filter(|_| link.ready)
    }

    fn on_sent(&mut self, now: Instant, message: &Message) {
        self.log(message, now, true);
    }

    fn on_message(&mut self, now: Instant, message: &Message) {
        if message.index == HANDSHAKE_INDEX {
            self.page.borrow_mut().links[self.host].ready = true;
            return;
        }
        self.log(message, now, false);
        let object = message.index - self.page.borrow().first_index;
        Page::arrived(&self.page, now, object as usize);
    }

    fn take_calls(&mut self) -> Vec<Call> {
        core::mem::take(&mut self.page.borrow_mut().calls)
    }

    fn closes(&self) -> bool {
        self.page.borrow().left == 0
    }
}

#[cfg(test)]
mod tests;
