//! Link model in real time: a UDP relay between real sockets, or a tunnel between namespaces.
//!
//! *Problem.* A measurement over an emulated link is only as good as the emulator's timing. Timers that fire 4 ms
//! late, or a thread that was not scheduled for 20 ms, look exactly like link jitter. A dedicated thread therefore
//! sleeps in ppoll until shortly before the next packet is due (with a timer slack of one nanosecond) and spins for
//! the rest. It stamps arrivals with the kernel's receive time instead of the time it woke up, and measures the
//! lateness of every packet sent. The report contains this lateness and the number of packets that the kernel dropped
//! before the model saw them.
//!
//! One [`Emulator`] runs any number of relays on its thread, so parallel links share one clock and do not repeatedly
//! wake each other. A relay works like a NAT: each client address gets its own socket towards the target, idle sockets
//! are removed, and a command moves them to other ports ([`LinkCommand::Rebind`]).

mod clock;
mod command;
mod config;
mod engine;
mod flows;
mod lane;
mod lanes;
mod member;
pub mod netns;
#[cfg(target_os = "linux")]
mod priority;
mod relay;
mod report;
pub mod report_text;
mod socket;
mod spin;
mod starvation;
mod tap;
#[cfg(test)]
mod tests;
mod thread_rest;
pub mod traces;
mod tunnel;

pub use command::{LinkCommand, Side};
pub use config::{LinkEnds, RelayConfig};
pub use report::{DirectionReport, Lateness, ProcessorWait, RelayReport};
pub use tap::{Tap, TappedPacket, TappedPackets};
pub use tunnel::{TunnelConfig, TunnelEnd};

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread::JoinHandle;

use marline_time::Duration;

use engine::{Engine, EngineRequest};

/// Maximum time for which the thread spins before a deadline: the cost of a wake-up on an idle machine. The thread
/// spins for less time if sleeps end more precisely.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(60);

/// Running relays. Dropping it stops them.
#[derive(Debug)]
pub struct Emulator {
    orders: mpsc::Sender<EngineRequest>,
    waker: UnixStream,
    thread: Option<JoinHandle<()>>,
    addresses: Vec<Option<SocketAddr>>,
    started: std::time::Instant,
}

impl Emulator {
    /// Binds the relays' sockets and starts the thread. Time zero of the links is now.
    ///
    /// # Errors
    /// A socket cannot be bound, or the thread cannot be started.
    pub fn start(relays: Vec<RelayConfig>, spin: Duration) -> io::Result<Emulator> {
        Self::start_links(relays.into_iter().map(LinkEnds::Relay).collect(), spin)
    }

    /// Like [`start`](Self::start), for links of any kind. Links between namespaces need CAP_NET_ADMIN and
    /// CAP_SYS_ADMIN; their interfaces are down and have no addresses yet.
    ///
    /// # Errors
    /// A socket cannot be bound, an interface cannot be created, or the thread cannot be started.
    pub fn start_links(links: Vec<LinkEnds>, spin: Duration) -> io::Result<Emulator> {
        let (waker, wakened) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        wakened.set_nonblocking(true)?;
        let (orders, inbox) = mpsc::channel();
        let engine = Engine::new(links, spin, inbox, wakened)?;
        let (addresses, started) = (engine.addresses()?, engine.started());
        let thread = std::thread::Builder::new()
            .name("marline-link".to_owned())
            .spawn(move || engine.run())?;
        Ok(Emulator { orders, waker, thread: Some(thread), addresses, started })
    }

    /// Time zero of the links, to which scheduled times are relative.
    #[must_use]
    pub const fn started(&self) -> std::time::Instant {
        self.started
    }

    /// Listen address of the relay with this index, in the order of creation.
    #[must_use]
    pub fn local_addr(&self, relay: usize) -> Option<SocketAddr> {
        self.addresses.get(relay).copied().flatten()
    }

    /// Sends a command to a relay, and returns after its execution.
    ///
    /// # Errors
    /// No relay has this number, or the command failed.
    pub fn command(&self, relay: usize, command: LinkCommand) -> io::Result<()> {
        self.request(|reply| EngineRequest::Command { relay, command: Box::new(command), reply })?
    }

    /// Reports of the relays so far.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn report(&self) -> io::Result<Vec<RelayReport>> {
        self.request(|reply| EngineRequest::Report { reply })
    }

    /// Stops the thread, and returns the reports of the relays.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn stop(self) -> io::Result<Vec<RelayReport>> {
        self.report()
    }

    fn request<T>(&self, order: impl FnOnce(mpsc::Sender<T>) -> EngineRequest) -> io::Result<T> {
        let gone = || io::Error::new(io::ErrorKind::BrokenPipe, "the emulator has stopped");
        let (reply, answer) = mpsc::channel();
        self.orders.send(order(reply)).map_err(|_| gone())?;
        self.wake();
        answer.recv().map_err(|_| gone())
    }

    fn wake(&self) {
        // If the pipe is full, the thread has already been woken.
        let _ = (&self.waker).write(&[1]);
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.orders.send(EngineRequest::Stop);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // The panic hook has already printed a panic of the thread.
            let _ = thread.join();
        }
    }
}
