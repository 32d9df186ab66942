//! The emulator's thread: sleeps until shortly before the next deadline, spins, and moves datagrams.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};

use marline_time::{Duration, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock::Clock;
use crate::command::LinkCommand;
use crate::config::LinkEnds;
use crate::member::{Member, Source};
use crate::report::RelayReport;
use crate::socket::ReceiveBuffers;
use crate::spin::Spin;
use crate::starvation::ProcessorWaitMeter;
use crate::thread_rest::SleepDebt;

/// Interval of the checks for idle clients; also the longest sleep.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Request to the thread.
#[derive(Debug)]
pub(crate) enum EngineRequest {
    Command { relay: usize, command: Box<LinkCommand>, reply: Sender<io::Result<()>> },
    Report { reply: Sender<Vec<RelayReport>> },
    Stop,
}

/// State of the thread.
#[derive(Debug)]
pub(crate) struct Engine {
    clock: Clock,
    relays: Vec<Member>,
    spin: Spin,
    /// Voluntary sleep of a real-time thread.
    rest: Option<SleepDebt>,
    last_wake: Instant,
    inbox: Receiver<EngineRequest>,
    wakened: UnixStream,
    buffers: ReceiveBuffers,
    ready: Vec<(usize, Source)>,
    next_check: Instant,
}

impl Engine {
    pub(crate) fn new(
        configs: Vec<LinkEnds>,
        spin: Duration,
        inbox: Receiver<EngineRequest>,
        wakened: UnixStream,
    ) -> io::Result<Self> {
        let clock = Clock::start();
        let relays = configs.into_iter().map(|config| Member::new(config, Instant::ZERO));
        Ok(Engine {
            clock,
            relays: relays.collect::<io::Result<Vec<Member>>>()?,
            spin: Spin::new(spin),
            rest: None,
            last_wake: Instant::ZERO,
            inbox,
            wakened,
            buffers: ReceiveBuffers::new(),
            ready: Vec::new(),
            next_check: Instant::ZERO + CHECK_INTERVAL,
        })
    }

    /// Time zero of the links.
    pub(crate) const fn started(&self) -> std::time::Instant {
        self.clock.started()
    }

    /// Listen addresses of the relays; tunnels have none.
    pub(crate) fn addresses(&self) -> io::Result<Vec<Option<SocketAddr>>> {
        self.relays.iter().map(Member::local_addr).collect()
    }

    /// Runs until it is stopped or its owner is dropped.
    pub(crate) fn run(mut self) {
        #[cfg(target_os = "linux")]
        let real_time = crate::priority::raise_priority();
        #[cfg(not(target_os = "linux"))]
        let real_time = false;
        self.rest = real_time.then(SleepDebt::default);
        let mut starvation = ProcessorWaitMeter::for_this_thread();
        while self.handle_requests(&mut starvation) {
            for relay in &mut self.relays {
                relay.advance(&self.clock);
            }
            self.sweep(&mut starvation);
            self.wait(&mut starvation);
            for (relay, source) in self.ready.drain(..) {
                self.relays[relay].receive(source, &self.clock, &mut self.buffers);
            }
        }
    }

    /// Handles waiting requests; returns false when the thread must stop.
    fn handle_requests(&mut self, starvation: &mut ProcessorWaitMeter) -> bool {
        loop {
            let order = match self.inbox.try_recv() {
                Ok(order) => order,
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            };
            let now = self.clock.now();
            // The requester may have ended, which is not an error.
            match order {
                EngineRequest::Stop => return false,
                EngineRequest::Report { reply } => {
                    let age = now.since(Instant::ZERO);
                    let starved = starvation.report();
                    let reports = self.relays.iter().map(|relay| relay.report(age, starved));
                    let _ = reply.send(reports.collect());
                }
                EngineRequest::Command { relay, command, reply } => {
                    let _ = reply.send(match self.relays.get_mut(relay) {
                        Some(relay) => relay.apply(now, *command),
                        None => Err(io::Error::new(io::ErrorKind::NotFound, "unknown relay")),
                    });
                }
            }
        }
    }

    fn sweep(&mut self, starvation: &mut ProcessorWaitMeter) {
        let now = self.clock.now();
        if now < self.next_check {
            return;
        }
        self.next_check = now + CHECK_INTERVAL;
        starvation.add_waits();
        for relay in &mut self.relays {
            relay.expire(now);
        }
    }

    /// Waits until a socket is readable or something is due soon; readable sockets are added to `ready`.
    fn wait(&mut self, starvation: &mut ProcessorWaitMeter) {
        let due = self.relays.iter().filter_map(Member::next_event).min();
        let now = self.clock.now();
        let spin = self.spin.allowed(now);
        let deadline = due.map_or(self.next_check, |due| self.next_check.min(due - spin));
        let sleep = deadline.since(now);
        let mut sources = Vec::with_capacity(2 * self.relays.len() + 1);
        let mut fds = Vec::with_capacity(2 * self.relays.len() + 1);
        fds.push(PollFd::new(&self.wakened, PollFlags::IN));
        for (number, relay) in self.relays.iter().enumerate() {
            relay.for_each_source(|source, fd| {
                sources.push((number, source));
                fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
            });
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(sleep.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: sleep.subsec_nanos().into(),
        };
        // After a signal, the next round waits.
        let count = poll(&mut fds, Some(&timeout)).unwrap_or(0);
        let woke = self.clock.now();
        let slept = woke.since(now);
        if slept > ProcessorWaitMeter::CHECK_THRESHOLD {
            starvation.add_waits();
        }
        let round = woke.since(self.last_wake);
        self.last_wake = woke;
        // A poll that returns immediately takes a microsecond or two.
        let slept = slept.saturating_sub(Duration::from_micros(2));
        if let Some(owed) = self.rest.as_mut().and_then(|rest| rest.sleep_time(round, slept)) {
            std::thread::sleep(owed);
        }
        if count == 0 && !sleep.is_zero() && woke >= deadline {
            self.spin.on_late_wakeup(woke.since(deadline));
        }
        if count == 0 {
            return;
        }
        let woken = !fds[0].revents().is_empty();
        let readable = |fd: &PollFd<'_>| fd.revents().intersects(PollFlags::IN | PollFlags::ERR);
        let found = sources.iter().zip(&fds[1..]).filter(|(_, fd)| readable(fd));
        self.ready.extend(found.map(|(source, _)| *source));
        if woken {
            // The requests are in the inbox; the byte only wakes the thread.
            let _ = (&self.wakened).read(&mut [0; 64]);
        }
    }
}
