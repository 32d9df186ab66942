//! Entry points for UDP: SOCKS5 associations, and forwards of a UDP port.
//!
//! Each socket of an application is one socket at the server: an association is one socket, and so is each address
//! that sends to the port of a forward. Therefore a peer always sees the same address of an application, as behind
//! a NAT (RFC 4787).

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

use super::listening::listen_error;
use super::open::Open;
use super::socks_listener::SocksListener;
use super::udp_sources::UdpSources;
use super::udp_tunnel::{UdpInbox, UdpSender, UdpTunnel};
use crate::socks::datagram::{self, MAX_HEADER_LEN};
use crate::socks::{self, Reply, Version};
use crate::target::Target;
use crate::udp::{MAX_APPLICATION_DATAGRAM, send_to};

/// Maximum number of datagrams read from a socket in one turn.
const DATAGRAMS_PER_TURN: usize = 32;
/// Pause after a socket error, so that a lasting error does not cause a busy loop.
const ERROR_PAUSE: Duration = Duration::from_millis(20);
/// Time limit for sending the answer to an application's request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A forward of a UDP port to one target.
#[derive(Debug)]
pub struct UdpForward {
    socket: std::net::UdpSocket,
    target: Target,
}

impl UdpForward {
    /// Binds a port for applications. It is served once there is a runtime.
    ///
    /// # Errors
    /// The port is taken or not allowed.
    pub fn bind(address: SocketAddr, target: Target) -> anyhow::Result<UdpForward> {
        let bound = std::net::UdpSocket::bind(address).and_then(|socket| {
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        let socket = bound.map_err(|error| listen_error("UDP", address, error))?;
        Ok(UdpForward { socket, target })
    }

    /// Returns the local address of the forward.
    ///
    /// # Errors
    /// Fails if the operating system cannot report the socket's address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the target of the datagrams.
    #[must_use]
    pub const fn target(&self) -> &Target {
        &self.target
    }

    async fn serve(self, udp: Arc<UdpTunnel>) {
        let socket = match UdpSocket::from_std(self.socket) {
            Ok(socket) => Arc::new(socket),
            Err(error) => return tracing::error!("cannot serve a UDP forward: {error}"),
        };
        let (sources, datagrams) = (UdpSources::start(udp), ReceivedDatagrams::default());
        Forward { socket, target: self.target, sources, datagrams }.run().await;
    }
}

struct Forward {
    socket: Arc<UdpSocket>,
    target: Target,
    sources: Arc<UdpSources>,
    datagrams: ReceivedDatagrams,
}

/// Datagrams read from a socket in one turn.
#[derive(Debug, Default)]
struct ReceivedDatagrams {
    bytes: Vec<u8>,
    ends: Vec<(SocketAddr, usize)>,
}

impl ReceivedDatagrams {
    /// Replaces the contents with the datagrams that have arrived.
    fn fill(&mut self, socket: &UdpSocket) -> io::Result<()> {
        self.bytes.clear();
        self.ends.clear();
        // One byte more than the limit, so that a longer datagram is detected.
        let mut buffer = [0; MAX_APPLICATION_DATAGRAM + MAX_HEADER_LEN + 1];
        while self.ends.len() < DATAGRAMS_PER_TURN {
            match socket.try_recv_from(&mut buffer) {
                Ok((len, from)) => {
                    self.bytes.extend_from_slice(&buffer[..len]);
                    self.ends.push((from, self.bytes.len()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn iter(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        let mut start = 0;
        self.ends
            .iter()
            .map(move |(from, end)| (*from, &self.bytes[std::mem::replace(&mut start, *end)..*end]))
    }
}

impl Forward {
    async fn run(&mut self) {
        loop {
            let readable = self.socket.readable().await;
            if let Err(error) = readable.and_then(|()| self.drain()) {
                tracing::debug!("cannot read UDP forward; retrying: {error}");
                sleep(ERROR_PAUSE).await;
            }
            tokio::task::yield_now().await;
        }
    }

    fn drain(&mut self) -> io::Result<()> {
        let mut datagrams = std::mem::take(&mut self.datagrams);
        let result = datagrams.fill(&self.socket);
        for (from, _) in datagrams.iter() {
            let serve = |inbox| drop(tokio::spawn(self.answers(from).deliver(inbox)));
            self.sources.admit(from, self.target.port, serve);
        }
        let sources = self.sources.lock();
        let mut batch = self.sources.tunnel().batch();
        for (from, payload) in datagrams.iter() {
            // A source that was removed to make room for another one in this batch will send again.
            if let Some(sender) = sources.get(&from) {
                match payload.len() {
                    ..=MAX_APPLICATION_DATAGRAM => batch.send(sender, &self.target, payload),
                    _ => batch.too_big(),
                }
            }
        }
        drop(batch);
        drop(sources);
        self.datagrams = datagrams;
        result
    }

    fn answers(&self, to: SocketAddr) -> AnswerWriter {
        AnswerWriter {
            socket: Arc::clone(&self.socket),
            to,
            sources: Arc::downgrade(&self.sources),
        }
    }
}

/// Passes the target's answers to an address until its socket is closed.
struct AnswerWriter {
    socket: Arc<UdpSocket>,
    to: SocketAddr,
    sources: Weak<UdpSources>,
}

impl AnswerWriter {
    async fn deliver(self, mut inbox: UdpInbox) {
        while let Some(inbound) = inbox.recv().await {
            // A user of a forward expects all datagrams to be from the target.
            if inbound.asked {
                let Some(sources) = self.sources.upgrade() else { return };
                sources.record_peer_answer(self.to);
                // If there is no room, the datagram is lost, as on any link.
                let _ = send_to(&self.socket, &inbound.payload, self.to);
            }
        }
    }
}

impl<O: Open> SocksListener<O> {
    /// Sends the UDP of applications through this tunnel.
    pub fn carry_udp(&self, udp: Arc<UdpTunnel>) {
        *self.udp.write().unwrap_or_else(PoisonError::into_inner) = Some(udp);
    }

    /// Serves a forward until the drain.
    pub async fn forward_udp(self: Arc<Self>, udp: Arc<UdpTunnel>, forward: UdpForward) {
        tokio::select! {
            () = forward.serve(udp) => {}
            () = self.stop.draining() => {}
        }
    }

    fn udp(&self) -> Option<Arc<UdpTunnel>> {
        self.udp.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Serves a UDP association until the application closes the connection that requested it.
    pub(super) async fn associate(&self, mut control: TcpStream, port: u16) {
        let association = match self.udp() {
            None => Err(Reply::CommandNotSupported),
            Some(udp) => Association::open(&control, udp, port).await.map_err(|error| {
                tracing::warn!("cannot open a UDP association: {error}");
                Reply::GeneralFailure
            }),
        };
        let answer = match &association {
            Ok(association) => socks::reply_bound(&mut control, association.address),
            Err(code) => {
                let answer = socks::reply(&mut control, Version::Five, *code);
                let _ = timeout(ANSWER_TIMEOUT, answer).await;
                let _ = control.shutdown().await;
                return;
            }
        };
        if !matches!(timeout(ANSWER_TIMEOUT, answer).await, Ok(Ok(()))) {
            return;
        }
        let Ok(mut association) = association else { return };
        tokio::select! {
            () = association.run() => {}
            () = wait_for_end(control) => {}
            () = self.stop.draining() => {}
        }
    }
}

/// Resolves when a connection has ended. Its data is ignored.
async fn wait_for_end(mut control: TcpStream) {
    let mut ignored = [0; 64];
    while matches!(control.read(&mut ignored).await, Ok(1..)) {}
}

/// A UDP association.
struct Association {
    socket: UdpSocket,
    /// Local address of the socket.
    address: SocketAddr,
    /// Address of the application. The port is 0 until it is known.
    application: SocketAddr,
    sender: UdpSender,
    inbox: UdpInbox,
    datagrams: ReceivedDatagrams,
    out: Vec<u8>,
}

impl Association {
    /// Opens an association. `port` is the announced port of the application, or 0 if none was announced.
    async fn open(control: &TcpStream, udp: Arc<UdpTunnel>, port: u16) -> io::Result<Association> {
        let (local, application) = (control.local_addr()?, control.peer_addr()?);
        let socket = UdpSocket::bind((local.ip(), 0)).await?;
        let address = socket.local_addr()?;
        let application = SocketAddr::new(application.ip().to_canonical(), port);
        let full = || io::Error::new(io::ErrorKind::QuotaExceeded, "too many UDP sockets");
        let (sender, inbox) = udp.socket().ok_or_else(full)?;
        let (datagrams, out) = (ReceivedDatagrams::default(), Vec::new());
        Ok(Association { socket, address, application, sender, inbox, datagrams, out })
    }

    async fn run(&mut self) {
        loop {
            let readable = tokio::select! {
                readable = self.socket.readable() => readable,
                inbound = self.inbox.recv() => match inbound {
                    Some(inbound) => {
                        self.answer(&inbound.from, &inbound.payload);
                        continue;
                    }
                    None => return,
                }
            };
            if let Err(error) = readable.and_then(|()| self.drain()) {
                tracing::debug!("cannot read UDP association; retrying: {error}");
                sleep(ERROR_PAUSE).await;
            }
            tokio::task::yield_now().await;
        }
    }

    fn drain(&mut self) -> io::Result<()> {
        let result = self.datagrams.fill(&self.socket);
        let mut batch = self.sender.tunnel().batch();
        for (from, bytes) in self.datagrams.iter() {
            let from = SocketAddr::new(from.ip().to_canonical(), from.port());
            let known = self.application.port();
            if from.ip() != self.application.ip() || known != 0 && from.port() != known {
                tracing::debug!(%from, "datagram dropped: it is not from the association's application");
                continue;
            }
            match datagram::parse(bytes) {
                Ok((_, payload)) if payload.len() > MAX_APPLICATION_DATAGRAM => batch.too_big(),
                Ok((peer, payload)) => {
                    // The first sender is the application.
                    self.application = from;
                    batch.send(&self.sender, &peer, payload);
                }
                Err(error) => tracing::debug!(%from, "datagram dropped: {error}"),
            }
        }
        result
    }

    fn answer(&mut self, from: &Target, payload: &[u8]) {
        if self.application.port() == 0 {
            return;
        }
        datagram::write(from, payload, &mut self.out);
        // If there is no room, the datagram is lost, as on any link.
        let _ = send_to(&self.socket, &self.out, self.application);
    }
}
