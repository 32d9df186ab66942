//! Web page: objects on several hosts. Later objects become known only when earlier ones have arrived.
//!
//! *Browser.* It opens a connection to a host at the first request, with a TLS exchange. All requests to a host use
//! this connection, and are answered in their order. A page's connections are closed when it is complete.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use marline_sim::{App, Call, ConnectionId, Message, Messages, Plan, SentAt};
use marline_time::Instant;

use super::plan::{End, Flows};
use crate::workload::Mark;
use crate::workload::page::{HOST_COUNT, OBJECT_COUNT, Object, objects};

const REQUEST_BYTES: u64 = 500;
/// Sizes of the TLS request and answer in bytes.
const HANDSHAKE: (u64, u64) = (600, 3_000);
/// Message number of a handshake.
const HANDSHAKE_INDEX: u32 = u32::MAX;
/// Connection to a host.
#[derive(Debug, Default)]
struct Link {
    is_open: bool,
    id: Option<ConnectionId>,
    /// Objects to request, with the times of the requests.
    wanted: VecDeque<(Instant, usize)>,
    /// True if the handshake has been sent, and true if it has been answered.
    greeted: bool,
    ready: bool,
}

/// Applications of the server by port, for connections that are opened later.
pub(super) type Servers = Rc<RefCell<BTreeMap<u16, Box<dyn App>>>>;

/// A page that is being loaded.
#[derive(Debug)]
pub(super) struct Page {
    flow: u16,
    /// Message number of the first object.
    first_index: u32,
    objects: Vec<Object>,
    links: Vec<Link>,
    /// First port of the connections.
    port: u16,
    left: usize,
    flows: Flows,
    servers: Servers,
    calls: Vec<Call>,
}

impl Page {
    /// Creates the page with this number of a workload, whose connections use the ports starting at `port`. Returns
    /// the application of its first connection, to be opened when the user requests the page.
    pub(super) fn begin(
        number: u32,
        flow: u16,
        port: u16,
        flows: &Flows,
        servers: &Servers,
    ) -> Messages {
        let objects = objects(flows.borrow()[usize::from(flow)].seed, number);
        let shared = Rc::new(RefCell::new(Page {
            flow,
            first_index: number * OBJECT_COUNT,
            left: objects.len(),
            objects,
            links: (0..HOST_COUNT).map(|_| Link::default()).collect(),
            port,
            flows: Rc::clone(flows),
            servers: Rc::clone(servers),
            calls: Vec::new(),
        }));
        shared.borrow_mut().links[0].wanted.push_back((Instant::ZERO, 0));
        Page::open(&shared, 0)
    }

    /// Creates both ends of the connection to a host, and returns the client's.
    fn open(page: &Rc<RefCell<Page>>, host: usize) -> Messages {
        let mut mine = page.borrow_mut();
        mine.links[host].is_open = true;
        let port = mine.port + host as u16;
        let server: Box<dyn Plan> = Box::new(End::answering_end(&mine.flows));
        let client: Box<dyn Plan> = Box::new(HostClient { page: Rc::clone(page), host });
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

    /// Handles the arrival of an object: requests the objects found in it.
    fn on_object_arrived(page: &Rc<RefCell<Page>>, now: Instant, object: usize) {
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
struct HostClient {
    page: Rc<RefCell<Page>>,
    host: usize,
}

impl HostClient {
    fn log(&self, message: &Message, now: Instant, sent: bool) {
        let page = self.page.borrow();
        let mark = Mark { stream: self.host as u8, index: message.index, at_ns: now.as_nanos() };
        let log = &mut page.flows.borrow_mut()[usize::from(page.flow)].client;
        if sent { log.sent.push(mark) } else { log.received.push(mark) }
    }
}

impl Plan for HostClient {
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
        Page::on_object_arrived(&self.page, now, object as usize);
    }

    fn take_requests(&mut self) -> Vec<Call> {
        core::mem::take(&mut self.page.borrow_mut().calls)
    }

    fn closes(&self) -> bool {
        self.page.borrow().left == 0
    }
}

#[cfg(test)]
mod tests;
