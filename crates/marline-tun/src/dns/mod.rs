//! DNS service of the gateway: UDP queries are forwarded to a resolver over TCP (RFC 7766).
//!
//! Programs receive the resolver's own answers for every query type. One connection carries many concurrent queries,
//! with its own message numbers, and is opened when there is a query. A query that was pending on a broken
//! connection is sent again on the next one. If the resolver cannot be reached, programs receive SERVFAIL
//! instead of waiting. Queries that programs send over TCP are relayed like any stream, unless there are exceptions
//! for names, in which case they are handled here too.
//!
//! With exceptions for names, each query is treated according to its name. An answer that refers to a blocked name, for
//! instance as an alias, is not passed on. Malformed messages are refused, because it is unknown how a resolver would
//! interpret them.

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
use self::pending::PendingQueries;
use self::query::LENGTH_BYTES;
pub(crate) use self::query::Query;
use crate::datagram::DatagramWriter;
use crate::exceptions::{Exceptions, Treatment};
use crate::resolver::Resolvers;
use crate::warning_limit::WarningLimit;

/// Maximum number of queries that wait to be sent.
pub(crate) const MAX_QUEUED_QUERIES: usize = 512;
/// Time after which a connection without queries is closed. Resolvers do not keep idle connections longer.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to wait for a resolver's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Forwarder of queries to the first resolver that can be reached.
pub(crate) struct Forwarder<O> {
    pub(crate) way: Arc<O>,
    pub(crate) resolvers: Arc<Resolvers>,
    pub(crate) exceptions: Arc<Exceptions>,
    /// Resolution of names outside the tunnel. Without it all names use the tunnel.
    pub(crate) direct: Option<Arc<DirectNames>>,
    pub(crate) queries: mpsc::Receiver<Query>,
    pub(crate) writer: DatagramWriter,
    pub(crate) warnings: WarningLimit,
}

impl<O: Open> Forwarder<O> {
    /// Forwards queries until all senders are dropped.
    pub(crate) async fn run(mut self) {
        let mut pending = PendingQueries::default();
        loop {
            if pending.is_empty() {
                let Some(query) = self.queries.recv().await else { return };
                self.assign_resolver(query, &mut pending);
                continue;
            }
            match self.open().await {
                Ok(stream) => self.exchange(stream, &mut pending).await,
                Err((resolver, error)) => {
                    self.warn_unreachable(&resolver, &error);
                    self.fail_all(&mut pending);
                }
            }
        }
    }

    /// Assigns a query to the resolver for its name.
    fn assign_resolver(&self, query: Query, pending: &mut PendingQueries) {
        if !self.exceptions.has_domains() {
            return pending.add(query);
        }
        let name = match message::question_name(&query.message) {
            Ok(name) => name,
            Err(code) => return query.refuse(&self.writer, code),
        };
        match (self.exceptions.treatment_of_name(&name), &self.direct) {
            (Treatment::Direct, Some(direct)) => {
                direct.answer_query(query, name, Arc::clone(&self.exceptions), self.writer.clone());
            }
            (Treatment::Blocked, _) => query.refuse(&self.writer, message::NXDOMAIN),
            (Treatment::Tunneled | Treatment::Direct, _) => pending.add(query),
        }
    }

    /// Opens a connection to the first resolver that can be reached. The error names the last one tried.
    async fn open(&self) -> Result<O::Stream, (Target, OpenError)> {
        let mut resolver = self.resolvers.current();
        loop {
            let error = match self.way.open(&resolver).await {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            // Without the server no resolver can be reached.
            let refused = matches!(error, OpenError::Refused(_));
            match self.resolvers.switch_after(&resolver).filter(|_| refused) {
                Some(next) => resolver = next,
                None => return Err((resolver, error)),
            }
        }
    }

    fn warn_unreachable(&self, resolver: &Target, error: &OpenError) {
        let text = format!(
            "DNS queries fail: the resolver {resolver} cannot be reached through the server: {error} \
             (choose another with --dns ADDRESS)"
        );
        if self.warnings.should_log(&text) {
            tracing::warn!("{text}");
        }
    }

    /// Answers all waiting queries with a failure.
    fn fail_all(&mut self, pending: &mut PendingQueries) {
        for query in pending.take_all() {
            query.fail(&self.writer);
        }
        while let Ok(query) = self.queries.try_recv() {
            query.fail(&self.writer);
        }
    }

    /// Sends queries and receives answers on one connection until it ends or is idle. Queries left unanswered by a
    /// broken connection stay in `pending` if they may be sent again.
    async fn exchange(&mut self, stream: O::Stream, pending: &mut PendingQueries) {
        let (mut from, mut to) = tokio::io::split(stream);
        if !self.send_queries(&mut to, pending.encode_unsent()).await {
            return self.on_connection_lost(pending);
        }
        let mut received = Vec::new();
        loop {
            let until = pending
                .oldest_start()
                .map_or_else(|| Instant::now() + IDLE_TIMEOUT, |since| since + ANSWER_TIMEOUT);
            tokio::select! {
                query = self.queries.recv(), if pending.has_room() => {
                    let Some(query) = query else { return };
                    self.assign_resolver(query, pending);
                    if !self.send_queries(&mut to, pending.encode_unsent()).await {
                        return self.on_connection_lost(pending);
                    }
                }
                heard = read_some(&mut from, &mut received) => {
                    if !heard {
                        return self.on_connection_lost(pending);
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

    async fn send_queries(&self, to: &mut WriteHalf<O::Stream>, messages: Vec<u8>) -> bool {
        let write = async {
            to.write_all(&messages).await?;
            to.flush().await
        };
        matches!(timeout(ANSWER_TIMEOUT, write).await, Ok(Ok(())))
    }

    /// Passes on the complete answers among the received bytes.
    fn deliver(&self, received: &mut Vec<u8>, pending: &mut PendingQueries) {
        let mut at = 0;
        while let Some(&[high, low]) = received.get(at..at + LENGTH_BYTES) {
            let len = usize::from(u16::from_be_bytes([high, low]));
            let Some(answer) = received.get(at + LENGTH_BYTES..at + LENGTH_BYTES + len) else {
                break;
            };
            if let Some((query, answer)) = pending.take_answered(answer) {
                match message::refusal(&self.exceptions, &answer) {
                    None => query.answer(&self.writer, answer),
                    Some(code) => query.refuse(&self.writer, code),
                }
            }
            at += LENGTH_BYTES + len;
        }
        received.drain(..at);
    }

    /// Handles a broken connection. Queries that were already sent twice fail.
    fn on_connection_lost(&self, pending: &mut PendingQueries) {
        for query in pending.renumber() {
            query.fail(&self.writer);
        }
    }
}

/// Reads some bytes. Returns false at the end. Cancel-safe.
async fn read_some<S: Transport>(from: &mut ReadHalf<S>, received: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4_096];
    match from.read(&mut buffer).await {
        Ok(len @ 1..) => {
            received.extend_from_slice(&buffer[..len]);
            true
        }
        _ => false,
    }
}

/// Ends a connection, gracefully if no query was left unanswered.
async fn end<S: Transport>(from: ReadHalf<S>, to: WriteHalf<S>, in_order: bool) {
    let mut stream = from.unsplit(to);
    if !in_order {
        return stream.abort();
    }
    let rest = async {
        stream.shutdown().await?;
        stream.read(&mut [0]).await
    };
    if matches!(timeout(IDLE_TIMEOUT, rest).await, Ok(Ok(0))) {
        stream.finish();
    }
}
