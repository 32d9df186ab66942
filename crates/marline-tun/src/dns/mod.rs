//! DNS service of the gateway: queries that come by UDP are carried to a resolver over TCP (RFC 7766).
//!
//! Programs see a resolver's own answers, whatever they ask for. One connection serves many queries at a time,
//! under numbers of its own, and is opened when there is something to ask. A query that a broken connection took
//! with it is asked once more on the next. Where the resolver cannot be reached programs are told so (SERVFAIL), so
//! that they need not wait. Queries that programs ask over TCP are relayed like any stream, unless there are exceptions
//! of names: then they come here as well.
//!
//! With exceptions of names, each query is sorted by its name. An answer that leads on to a blocked name, by an alias
//! for instance, is not passed on. What cannot be read is refused, as nobody knows what a resolver would make of it.

mod connection;
mod direct;
pub(crate) mod message;
mod pending;
mod query;

use std::sync::Arc;
use std::time::Duration;

use marline_proxy::client::open::{Open, OpenError};
use marline_proxy::target::Target;
use marline_proxy::transport::Transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

pub(crate) use self::connection::answer_queries;
pub use self::direct::{DirectAddresses, DirectNames, TimedAddress};
use self::pending::Pending;
use self::query::LENGTH_BYTES;
pub(crate) use self::query::Query;
use crate::datagram::DatagramWriter;
use crate::exceptions::{Exceptions, Treatment};
use crate::resolver::Resolvers;
use crate::warning_limit::WarningLimit;

/// Queries that may wait to be asked.
pub(crate) const QUEUED: usize = 512;
/// A connection without queries ends after this long: resolvers do not keep them for longer.
const IDLE: Duration = Duration::from_secs(5);
/// Resolvers answer within this time, or not at all.
const ANSWER: Duration = Duration::from_secs(10);

/// Forwarder of queries to the resolver that is reached.
pub(crate) struct Forwarder<O> {
    pub(crate) way: Arc<O>,
    pub(crate) resolvers: Arc<Resolvers>,
    pub(crate) exceptions: Arc<Exceptions>,
    /// Who asks for names that are not the tunnel's; without it all names are.
    pub(crate) direct: Option<Arc<DirectNames>>,
    pub(crate) queries: mpsc::Receiver<Query>,
    pub(crate) writer: DatagramWriter,
    pub(crate) warnings: WarningLimit,
}

impl<O: Open> Forwarder<O> {
    /// Forwards until nobody can ask any more.
    pub(crate) async fn run(mut self) {
        let mut pending = Pending::default();
        loop {
            if pending.is_empty() {
                let Some(query) = self.queries.recv().await else { return };
                self.sort(query, &mut pending);
                continue;
            }
            match self.open().await {
                Ok(stream) => self.exchange(stream, &mut pending).await,
                Err((resolver, error)) => {
                    self.warn(&resolver, &error);
                    self.fail_all(&mut pending);
                }
            }
        }
    }

    /// Has a query asked by whom its name belongs to.
    fn sort(&self, query: Query, pending: &mut Pending) {
        if !self.exceptions.has_domains() {
            return pending.add(query);
        }
        let name = match message::asked_name(&query.message) {
            Ok(name) => name,
            Err(code) => return query.refuse(&self.writer, code),
        };
        match (self.exceptions.of_name(&name), &self.direct) {
            (Treatment::Direct, Some(direct)) => {
                direct.ask(query, name, Arc::clone(&self.exceptions), self.writer.clone());
            }
            (Treatment::Blocked, _) => query.refuse(&self.writer, message::NXDOMAIN),
            (Treatment::Tunnelled | Treatment::Direct, _) => pending.add(query),
        }
    }

    /// A connection to the first resolver that is reached; else who was tried last, and why that failed.
    async fn open(&self) -> Result<O::Stream, (Target, OpenError)> {
        let mut resolver = self.resolvers.current();
        loop {
            let error = match self.way.open(&resolver).await {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            // Without the server none is reached.
            let refused = matches!(error, OpenError::Refused(_));
            match self.resolvers.after(&resolver).filter(|_| refused) {
                Some(next) => resolver = next,
                None => return Err((resolver, error)),
            }
        }
    }

    fn warn(&self, resolver: &Target, error: &OpenError) {
        let text = format!(
            "names do not resolve: the resolver {resolver} is not reached through the server: {error} \
             (another one: --dns ADDRESS)"
        );
        if self.warnings.admits(&text) {
            tracing::warn!("{text}");
        }
    }

    /// All that wait are told that it failed.
    fn fail_all(&mut self, pending: &mut Pending) {
        for query in pending.take_all() {
            query.fail(&self.writer);
        }
        while let Ok(query) = self.queries.try_recv() {
            query.fail(&self.writer);
        }
    }

    /// Asks and hears on one connection until it ends or nothing more is asked. What has not been answered when
    /// it breaks stays in `pending` if it may be asked again.
    async fn exchange(&mut self, stream: O::Stream, pending: &mut Pending) {
        let (mut from, mut to) = tokio::io::split(stream);
        if !self.ask(&mut to, pending.unasked()).await {
            return self.after_break(pending);
        }
        let mut received = Vec::new();
        loop {
            let until =
                pending.since().map_or_else(|| Instant::now() + IDLE, |since| since + ANSWER);
            tokio::select! {
                query = self.queries.recv(), if pending.has_room() => {
                    let Some(query) = query else { return };
                    self.sort(query, pending);
                    if !self.ask(&mut to, pending.unasked()).await {
                        return self.after_break(pending);
                    }
                }
                heard = hear(&mut from, &mut received) => {
                    if !heard {
                        return self.after_break(pending);
                    }
                    self.deliver(&mut received, pending);
                }
                () = sleep_until(until) => {
                    end(from, to, pending.is_empty()).await;
                    return self.fail_all(pending);
                }
            }
        }
    }

    async fn ask(&self, to: &mut WriteHalf<O::Stream>, messages: Vec<u8>) -> bool {
        let write = async {
            to.write_all(&messages).await?;
            to.flush().await
        };
        matches!(timeout(ANSWER, write).await, Ok(Ok(())))
    }

    /// Passes on the whole answers among what was received.
    fn deliver(&self, received: &mut Vec<u8>, pending: &mut Pending) {
        let mut at = 0;
        while let Some(&[high, low]) = received.get(at..at + LENGTH_BYTES) {
            let len = usize::from(u16::from_be_bytes([high, low]));
            let Some(answer) = received.get(at + LENGTH_BYTES..at + LENGTH_BYTES + len) else {
                break;
            };
            if let Some((query, answer)) = pending.answered(answer) {
                match message::refusal(&self.exceptions, &answer) {
                    None => query.answer(&self.writer, answer),
                    Some(code) => query.refuse(&self.writer, code),
                }
            }
            at += LENGTH_BYTES + len;
        }
        received.drain(..at);
    }

    /// The connection broke. What was asked for the second time failed.
    fn after_break(&self, pending: &mut Pending) {
        for query in pending.renumber() {
            query.fail(&self.writer);
        }
    }
}

/// Reads some bytes; `false` at the end. Safe to cancel.
async fn hear<S: Transport>(from: &mut ReadHalf<S>, received: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4_096];
    match from.read(&mut buffer).await {
        Ok(len @ 1..) => {
            received.extend_from_slice(&buffer[..len]);
            true
        }
        _ => false,
    }
}

/// Ends a connection: in good order if nothing was left unanswered.
async fn end<S: Transport>(from: ReadHalf<S>, to: WriteHalf<S>, in_order: bool) {
    let mut stream = from.unsplit(to);
    if !in_order {
        return stream.abort();
    }
    let rest = async {
        stream.shutdown().await?;
        stream.read(&mut [0]).await
    };
    if matches!(timeout(IDLE, rest).await, Ok(Ok(0))) {
        stream.finish();
    }
}
