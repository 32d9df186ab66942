//! Fast Open through Linux's calls: `MSG_FASTOPEN`, `TCP_FASTOPEN_CONNECT`, `TCP_FASTOPEN` and related ones. The
//! sysctl `tcp_fastopen` enables it.

use std::net::SocketAddr;

use libc::c_int;
use marline_core::{FastOpen, FourTuple};

use super::{Kind, Socket, Writing};
use crate::machine::{Attempt, State};
use crate::mirror::Opening;
use crate::options::{
    SocketOptions, TCP_FASTOPEN, TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_KEY, TCP_FASTOPEN_NO_COOKIE,
};

/// Bits of the sysctl: enabled sides, sides without cookies, and use by listeners that did not request it.
const CLIENT: u64 = 1;
const SERVER: u64 = 2;
const CLIENT_WITHOUT_COOKIE: u64 = 4;
const SERVER_WITHOUT_COOKIE: u64 = 0x200;
const ENABLED_FOR_ALL_LISTENERS: u64 = 0x400;
/// Default limit on pending connections at a listener.
const DEFAULT_PENDING: u32 = 1_024;

/// A key and its predecessor.
type Keys = ([u8; 16], Option<[u8; 16]>);

fn mode() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_fastopen").unwrap_or_default();
    text.trim().parse().unwrap_or(CLIENT)
}

/// Configuration of a connection that is opened with data.
fn client_fast_open(options: &SocketOptions) -> FastOpen {
    let without_cookie =
        mode() & CLIENT_WITHOUT_COOKIE != 0 || options.is_on(libc::SOL_TCP, TCP_FASTOPEN_NO_COOKIE);
    FastOpen { without_cookie, ..FastOpen::default() }
}

/// Configuration of connections that a listener accepts.
pub(crate) fn listener_fast_open(options: &SocketOptions) -> Option<FastOpen> {
    let mode = mode();
    let asked = options.stored_value(libc::SOL_TCP, TCP_FASTOPEN);
    let pending = match u32::try_from(asked) {
        Ok(0) if mode & ENABLED_FOR_ALL_LISTENERS != 0 => DEFAULT_PENDING,
        Ok(asked) => asked,
        Err(_) => 0,
    };
    let without_cookie =
        mode & SERVER_WITHOUT_COOKIE != 0 || options.is_on(libc::SOL_TCP, TCP_FASTOPEN_NO_COOKIE);
    (mode & SERVER != 0 && pending > 0).then(|| FastOpen {
        without_cookie,
        pending,
        ..FastOpen::default()
    })
}

/// Keys of the namespace: up to two, each of four words.
fn keys_by_sysctl() -> Option<Keys> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_fastopen_key").ok()?;
    let mut keys = text.trim().split(',').map(key_from_words);
    Some((keys.next()??, keys.next().flatten()))
}

fn key_from_words(text: &str) -> Option<[u8; 16]> {
    let mut key = [0; 16];
    let mut words = text.trim().split('-');
    for place in key.chunks_exact_mut(4) {
        let word = u32::from_str_radix(words.next()?, 16).ok()?;
        place.copy_from_slice(&word.to_le_bytes());
    }
    Some(key)
}

/// Parses the keys in a `TCP_FASTOPEN_KEY`: one or two of 16 bytes.
fn parse_keys(bytes: &[u8]) -> Option<Keys> {
    let (first, rest) = bytes.split_first_chunk::<16>()?;
    match rest.len() {
        0 => Some((*first, None)),
        16 => Some((*first, rest.first_chunk().copied())),
        _ => None,
    }
}

impl State {
    /// Uses a listener's keys for the cookies that it creates and accepts.
    pub(crate) fn use_cookie_keys(&mut self, local: SocketAddr) {
        let own = self.sockets.listener(local).and_then(|listener| {
            let bytes = listener.options.fast_open_key.as_ref()?;
            parse_keys(bytes)
        });
        if let Some((primary, backup)) = own.or_else(keys_by_sysctl) {
            self.endpoint.set_fast_open_keys(primary, backup);
        }
    }

    /// `TCP_FASTOPEN_KEY`.
    pub(crate) fn set_fast_open_key(&mut self, fd: c_int, bytes: &[u8]) -> Result<(), c_int> {
        let socket = self.sockets.get(fd)?;
        parse_keys(bytes).ok_or(libc::EINVAL)?;
        socket.options.fast_open_key = Some(bytes.to_vec());
        Ok(())
    }

    /// The bytes that `TCP_FASTOPEN_KEY` returns.
    pub(crate) fn fast_open_key(&mut self, fd: c_int) -> Result<Vec<u8>, c_int> {
        let own = self.sockets.get(fd)?.options.fast_open_key.clone();
        Ok(own.unwrap_or_else(|| {
            let (primary, backup) = keys_by_sysctl().unwrap_or_default();
            [primary.to_vec(), backup.map(Vec::from).unwrap_or_default()].concat()
        }))
    }

    /// Checks that an option of Fast Open may be set on a socket in its current state.
    pub(crate) fn may_set_fast_open(socket: &Socket, name: c_int) -> Result<(), c_int> {
        let listens = matches!(socket.kind, Kind::Listener(_));
        let fresh =
            matches!(socket.kind, Kind::Unconnected) && socket.deferred_destination.is_none();
        match name {
            TCP_FASTOPEN_CONNECT if mode() & CLIENT == 0 => Err(libc::EOPNOTSUPP),
            TCP_FASTOPEN_CONNECT if !fresh => Err(libc::EINVAL),
            TCP_FASTOPEN | TCP_FASTOPEN_NO_COOKIE | TCP_FASTOPEN_KEY if !fresh && !listens => {
                Err(libc::EINVAL)
            }
            _ => Ok(()),
        }
    }

    /// Number of bytes that may be sent with the SYN of an unconnected socket.
    fn syn_payload_limit(&mut self, fd: c_int, remote: SocketAddr) -> Option<usize> {
        self.apply_metrics_flush();
        let socket = self.sockets.by_fd.get(&fd)?;
        let mut config =
            self.mirror.connection_config(Opening::Active, socket.mptcp, &socket.options);
        config.fast_open = Some(client_fast_open(&socket.options));
        let ip = self.local_ip(fd, remote)?;
        let path = FourTuple { local: SocketAddr::new(ip, 0), remote };
        self.endpoint.fast_open_room(self.now, &config, &path)
    }

    /// Handles `connect` on a socket with `TCP_FASTOPEN_CONNECT`: the SYN waits for data, if it may carry any. `None`:
    /// the SYN is sent immediately.
    pub(super) fn defer_connecting(
        &mut self,
        fd: c_int,
        remote: SocketAddr,
    ) -> Option<Result<(), c_int>> {
        let socket = self.sockets.by_fd.get(&fd)?;
        if socket.deferred_destination.is_some() {
            return Some(Err(libc::EISCONN));
        }
        let fresh = matches!(socket.kind, Kind::Unconnected);
        if !fresh || !socket.options.is_on(libc::SOL_TCP, TCP_FASTOPEN_CONNECT) {
            return None;
        }
        self.syn_payload_limit(fd, remote)?;
        self.sockets.get(fd).ok()?.deferred_destination = Some(remote);
        Some(Ok(()))
    }

    /// Fast Open configuration of a connection that a socket opens.
    pub(super) fn socket_fast_open(&self, fd: c_int, with_data: bool) -> Option<FastOpen> {
        let socket = self.sockets.by_fd.get(&fd)?;
        let asked = with_data || socket.options.is_on(libc::SOL_TCP, TCP_FASTOPEN_CONNECT);
        asked.then(|| client_fast_open(&socket.options))
    }

    /// Makes the first attempt of a write that may open the connection: with `MSG_FASTOPEN`, or after a `connect` that
    /// waits for data. `None` for an ordinary write.
    pub(super) fn write_first(
        &mut self,
        fd: c_int,
        writing: &mut Writing<'_>,
    ) -> Option<Attempt<usize>> {
        let asked = writing.flags & libc::MSG_FASTOPEN != 0;
        let to = core::mem::take(&mut writing.to);
        let socket = self.sockets.get(fd).ok()?;
        let nonblocking = socket.nonblocking || writing.flags & libc::MSG_DONTWAIT != 0;
        if let Kind::Stream(id) = socket.kind {
            let waits =
                |state: &State| state.sockets.connections.get(&id).is_some_and(|l| l.is_blocking());
            let again = asked && !writing.is_started && waits(self);
            writing.is_started = true;
            return again.then_some(Attempt::Done(Err(libc::EALREADY)));
        }
        let deferred_destination = socket.deferred_destination.take();
        if !matches!(socket.kind, Kind::Unconnected) || !asked && deferred_destination.is_none() {
            return None;
        }
        if deferred_destination.is_none() && mode() & CLIENT == 0 {
            return Some(Attempt::Done(Err(libc::EOPNOTSUPP)));
        }
        let Some(remote) = deferred_destination.or(to.flatten()) else {
            return Some(Attempt::Done(Err(libc::EOPNOTSUPP)));
        };
        writing.is_started = true;
        Some(self.open_with(fd, remote, writing, nonblocking))
    }

    /// Opens a connection and writes the data that its SYN may carry. A blocking caller then continues the write.
    fn open_with(
        &mut self,
        fd: c_int,
        remote: SocketAddr,
        writing: &mut Writing<'_>,
        nonblocking: bool,
    ) -> Attempt<usize> {
        let room = self.syn_payload_limit(fd, remote).unwrap_or(0);
        let mut deadline = None;
        let started = self.start_connecting(fd, remote, &mut deadline, true);
        let id = match started.and_then(|_| self.sockets.stream(fd)) {
            Ok(id) => id,
            Err(errno) => return Attempt::Done(Err(errno)),
        };
        let with_syn = room.min(writing.bytes.len());
        if with_syn > 0
            && let Ok(len) = self.endpoint.write(self.now, id, &writing.bytes[..with_syn])
        {
            writing.done = len;
        }
        if !nonblocking {
            return Attempt::Wait(deadline);
        }
        match writing.done {
            0 => Attempt::Done(Err(libc::EINPROGRESS)),
            _ => self.on_written(fd, id, writing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_in_both_forms() {
        let words = key_from_words("00000001-a1a2a3a4-0-ffffffff").expect("a key");
        assert_eq!(words, [1, 0, 0, 0, 0xa4, 0xa3, 0xa2, 0xa1, 0, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(key_from_words("1-2-3"), None);
        assert_eq!(parse_keys(&[7; 16]), Some(([7; 16], None)));
        assert_eq!(parse_keys(&[7; 32]), Some(([7; 16], Some([7; 16]))));
        assert_eq!(parse_keys(&[7; 20]), None);
    }
}
