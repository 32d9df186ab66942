//! Handover state: everything that a successor needs to start.

use core::net::SocketAddr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use marline_time::Duration;

use super::Channel;
use super::channel::MAX_MESSAGE_LEN;
use super::message::{Message, NativePart};
use crate::random::ResetSeed;

/// Version of the messages between two processes. If it differs, the handover is refused and the old process
/// continues.
pub const PROTOCOL: u8 = 1;

/// State that a process hands over to its successor.
#[derive(Debug)]
pub struct HandoverState {
    /// Generation of the successor.
    pub generation: u8,
    /// Generation of the process that hands over.
    pub predecessor: u8,
    /// Seed of reset tokens, with which the newest process can send resets for processes that have ended.
    pub seed: ResetSeed,
    /// UDP sockets, with their shards and addresses.
    pub sockets: Vec<(u8, SocketAddr, OwnedFd)>,
    /// Parts of a native carrier; guards are in the order in which their ports were requested.
    pub native: Vec<(NativePart, SocketAddr, OwnedFd)>,
    /// Listening TCP sockets.
    pub listeners: Vec<(SocketAddr, OwnedFd)>,
    /// Older processes that still have connections: their generations, and the channels for their packets.
    pub older_processes: Vec<(u8, OwnedFd)>,
    /// Additional descriptors of the program, by name.
    pub further: Vec<(String, OwnedFd)>,
}

/// Delay before a full channel is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(5);

fn other_error(text: impl Into<String>) -> io::Error {
    io::Error::other(text.into())
}

impl HandoverState {
    /// Sends the state to the other end of `channel`. Blocks while the channel is full.
    ///
    /// # Errors
    /// Fails if the other process is gone.
    pub fn send_to(&self, channel: &Channel) -> io::Result<()> {
        let put = |message: Message, fd: Option<&OwnedFd>| loop {
            match channel.send(&[&message.to_bytes()], fd.map(AsFd::as_fd)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(RETRY_DELAY);
                }
                result => return result,
            }
        };
        let (generation, predecessor) = (self.generation, self.predecessor);
        let seed = self.seed.into_bytes();
        put(Message::Hello { protocol: PROTOCOL, generation, predecessor, seed }, None)?;
        for (shard, local, fd) in &self.sockets {
            put(Message::Socket { shard: *shard, local: *local }, Some(fd))?;
        }
        for (part, local, fd) in &self.native {
            put(Message::Native { part: *part, local: *local }, Some(fd))?;
        }
        for (local, fd) in &self.listeners {
            put(Message::Listener { local: *local }, Some(fd))?;
        }
        for (generation, fd) in &self.older_processes {
            put(Message::OlderProcess { generation: *generation }, Some(fd))?;
        }
        for (name, fd) in &self.further {
            put(Message::Additional { name: name.clone() }, Some(fd))?;
        }
        put(Message::End, None)
    }

    /// Receives the state from the other end of `channel`, which must be blocking.
    fn receive(channel: &Channel) -> io::Result<HandoverState> {
        let mut buffer = vec![0; MAX_MESSAGE_LEN];
        let mut next = || receive_next(channel, &mut buffer);
        let (Message::Hello { protocol, generation, predecessor, seed }, _) = next()? else {
            return Err(other_error("the predecessor did not send its version first"));
        };
        if protocol != PROTOCOL {
            let text =
                format!("the predecessor uses handover version {protocol} (expected {PROTOCOL})");
            return Err(other_error(text));
        }
        let mut handover = HandoverState {
            generation,
            predecessor,
            seed: ResetSeed::new(seed),
            sockets: Vec::new(),
            native: Vec::new(),
            listeners: Vec::new(),
            older_processes: Vec::new(),
            further: Vec::new(),
        };
        loop {
            let (message, fd) = next()?;
            if message == Message::End {
                return Ok(handover);
            }
            let fd = fd.ok_or_else(|| other_error("a descriptor is missing"))?;
            match message {
                Message::Socket { shard, local } => handover.sockets.push((shard, local, fd)),
                Message::Native { part, local } => handover.native.push((part, local, fd)),
                Message::Listener { local } => handover.listeners.push((local, fd)),
                Message::OlderProcess { generation } => {
                    handover.older_processes.push((generation, fd))
                }
                Message::Additional { name } => handover.further.push((name, fd)),
                _ => return Err(other_error("unexpected message from the predecessor")),
            }
        }
    }
}

fn receive_next(channel: &Channel, buffer: &mut [u8]) -> io::Result<(Message, Option<OwnedFd>)> {
    let Some((len, fd)) = channel.receive(buffer)? else {
        return Err(other_error("the other process exited"));
    };
    let (message, _) = Message::parse(buffer.get(..len).unwrap_or_default())?;
    Ok((message, fd))
}

/// Process that has received a handover state but has not yet started.
#[derive(Debug)]
pub struct PendingSuccessor {
    channel: Channel,
}

impl PendingSuccessor {
    /// Receives the state from the predecessor on this channel. Blocks until it is complete.
    ///
    /// # Errors
    /// Fails if the predecessor does not send the state or uses another version.
    pub fn receive(channel: Channel) -> io::Result<(PendingSuccessor, HandoverState)> {
        channel.set_blocking(true)?;
        let handover = HandoverState::receive(&channel)?;
        Ok((PendingSuccessor { channel }, handover))
    }

    /// Reports that everything has arrived, and waits for the predecessor's answer. After that, the predecessor has
    /// stopped receiving.
    ///
    /// # Errors
    /// Fails if the predecessor is gone or continues without this process.
    pub fn request_start(&self, version: &str) -> io::Result<()> {
        let ready = Message::Ready { version: version.to_owned() };
        self.channel.send(&[&ready.to_bytes()], None)?;
        match receive_next(&self.channel, &mut [0; 256])? {
            (Message::Start, _) => Ok(()),
            _ => Err(other_error("the predecessor refused the handover")),
        }
    }

    /// Returns the channel for packets of the predecessor, which is now an older process.
    #[must_use]
    pub fn into_channel(self) -> Channel {
        self.channel
    }

    /// Reports to the predecessor why this process cannot start.
    pub fn report_failure(channel: &Channel, why: &str) {
        let failed = Message::Failed { why: why.to_owned() };
        // The predecessor notices the closed channel in any case.
        let _ = channel.send(&[&failed.to_bytes()], None);
    }
}

impl Channel {
    /// Receives the successor's report, if there is one: its version if it is ready, or the reason why it cannot start.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is no report yet. Other errors mean that the successor is
    /// gone.
    pub fn receive_report(&self) -> io::Result<Result<String, String>> {
        let mut buffer = vec![0; MAX_MESSAGE_LEN];
        let heard = match receive_next(self, &mut buffer) {
            // The successor ended without reading everything. The kernel reports this error first; earlier messages
            // follow.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                receive_next(self, &mut buffer)
            }
            heard => heard,
        };
        match heard?.0 {
            Message::Ready { version } => Ok(Ok(version)),
            Message::Failed { why } => Ok(Err(why)),
            _ => Err(other_error("unexpected message from the successor")),
        }
    }

    /// Lets the successor start.
    pub(crate) fn permit_start(&self) -> io::Result<()> {
        self.send(&[&Message::Start.to_bytes()], None)
    }
}
