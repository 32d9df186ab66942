//! Egress of a shard, from the core to the sockets: batches, control frames, and send errors.

use std::io;

use marline_core::{Ecn, FourTuple, NetworkError as CoreError, Transmit};
use marline_time::{Duration, Instant};

use super::carrier::Carrier;
use super::observers::{Direction, ObservedSegments};
use super::outgoing::SendError;
use super::outgoing::{Outgoing, Sender};
use super::socket::Kind;
use super::stalled::Stalled;
use super::state::State;
use crate::carrier::{Framed, Outer, SHORT_HEADER};
use crate::links::DataDirection;
use crate::sys::error_queue::NetworkError;

/// Bytes sent under one lock before others get their turn: 16 of the largest batches.
const BYTES_PER_TURN: usize = 1 << 20;
/// Minimum number of bytes that a batch counts as.
const MIN_COUNTED_BYTES: usize = BYTES_PER_TURN / 64;
/// Length of the largest batch that is copied to be sent with others, in bytes. Longer ones are worth their own
/// system call.
const MAX_GATHERED_BYTES: usize = 4 << 10;
/// Delay before a batch for which the kernel had no room is sent again. Writability would be more precise, but a
/// send buffer of megabytes takes longer than this to drain.
const STALL_RETRY: Duration = Duration::from_micros(500);

impl State {
    /// Sends what the core and the carrier have to send. Returns true if there is more.
    pub(super) fn transmit(&mut self, now: Instant) -> bool {
        self.retry_stalled(now);
        let (mut more, mut bytes) = (true, 0);
        while more && bytes < BYTES_PER_TURN {
            match self.endpoint.poll_transmit(now, &mut self.out) {
                Some(batch) => {
                    bytes += self.out.bytes().len().max(MIN_COUNTED_BYTES);
                    self.send_batch(now, &batch);
                }
                None => more = false,
            }
        }
        self.send_gathered(now);
        while let Carrier::Udp(carrier) = &mut self.carrier
            && let Some((outer, frame)) = carrier.poll_control()
        {
            let (bytes, sender) = (frame.as_bytes(), Sender::Carrier);
            self.send(now, &Outgoing { outer, ecn: Ecn::NotEct, stride: 0, bytes, sender });
        }
        more
    }

    fn send_batch(&mut self, now: Instant, batch: &Transmit) {
        let mut out = core::mem::replace(&mut self.out, self.spare.take());
        let observed = ObservedSegments::out(now, batch, out.bytes(), &self.carrier);
        self.observers.observe(&observed);
        if self.rerouting.routes.compares() {
            let (ends, flow) =
                ((batch.path.local.ip(), batch.path.remote), (batch.local_flow, DataDirection::Up));
            self.rerouting.routes.on_segments(now, ends, flow, observed.segments());
        }
        let framed = match &mut self.carrier {
            Carrier::Udp(carrier) => carrier.frame(now, batch, out.bytes_mut()),
            Carrier::Native(carrier) => {
                carrier.frame(batch, out.bytes_mut());
                self.native_outer(&batch.path).map(Framed::Ready)
            }
        };
        match framed {
            Some(Framed::Ready(outer)) => {
                let (ecn, stride, bytes) = (batch.ecn, batch.stride, out.bytes());
                let sender = Sender::Subflow(batch.path, batch.local_flow);
                self.gather(now, &Outgoing { outer, ecn, stride, bytes, sender });
            }
            Some(Framed::Handshake { outer, header }) => {
                self.send_gathered(now);
                for datagram in out.bytes().chunks(batch.stride.max(1)) {
                    let segment = datagram.get(SHORT_HEADER..).unwrap_or_default();
                    self.send_handshake(now, &outer, batch, header.as_bytes(), segment);
                }
            }
            None => {}
        }
        self.spare.give_back(core::mem::replace(&mut self.out, out));
    }

    /// Finds the socket for native packets of a path.
    fn native_outer(&self, path: &FourTuple) -> Option<Outer> {
        let fits = |entry: &Option<super::state::SocketEntry>| {
            let socket = &entry.as_ref()?.socket;
            if matches!(socket.kind, Kind::Gateway { .. }) {
                return Some(());
            }
            let local = socket.local.ip();
            let family = local.is_unspecified() && local.is_ipv6() == path.local.is_ipv6();
            (family || local == path.local.ip()).then_some(())
        };
        let socket = self.sockets.iter().position(|entry| fits(entry).is_some())?;
        Some(Outer { socket: socket as u16, local: path.local.ip(), remote: path.remote })
    }

    fn send_handshake(
        &mut self,
        now: Instant,
        outer: &Outer,
        batch: &Transmit,
        header: &[u8],
        segment: &[u8],
    ) {
        let mut bytes = core::mem::take(&mut self.scratch);
        bytes.clear();
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(segment);
        let (outer, ecn) = (*outer, batch.ecn);
        let sender = Sender::Subflow(batch.path, batch.local_flow);
        self.send(now, &Outgoing { outer, ecn, stride: 0, bytes: &bytes, sender });
        self.scratch = bytes;
        // An error from this machine is already queued, so there is no need to wait for the retransmission.
        self.drain_errors(now, usize::from(outer.socket));
    }

    /// Hands segments to the kernel: at once, or together with following ones, at the latest in
    /// [`send_gathered`](Self::send_gathered).
    pub(super) fn gather(&mut self, now: Instant, out: &Outgoing<'_>) {
        if !self.gathered.takes(out) {
            self.send_gathered(now);
        }
        if out.bytes.len() > MAX_GATHERED_BYTES || !self.sends_runs(&out.outer) {
            self.send_gathered(now);
            self.send(now, out);
        } else if self.may_send_datagram(now, out) {
            self.gathered.push(out);
        }
    }

    /// Returns true for a UDP socket on which the kernel takes several datagrams in one call.
    fn sends_runs(&self, outer: &Outer) -> bool {
        let entry = self.sockets.get(usize::from(outer.socket)).and_then(Option::as_ref);
        !outer.is_link() && entry.is_some_and(|entry| entry.socket.sends_runs())
    }

    /// Hands the gathered segments to the kernel.
    pub(super) fn send_gathered(&mut self, now: Instant) {
        let mut gathered = core::mem::take(&mut self.gathered);
        match gathered.together() {
            Some((out, 1)) => self.hand_over(now, &out),
            // Sending each batch alone shows which one failed.
            Some((out, _)) if self.try_send(now, &out).is_err() => {
                gathered.each().for_each(|out| self.hand_over(now, &out));
            }
            _ => {}
        }
        gathered.clear();
        self.gathered = gathered;
    }

    /// Hands bytes to the kernel.
    pub(super) fn send(&mut self, now: Instant, out: &Outgoing<'_>) {
        if !matches!(out.sender, Sender::Subflow(..)) {
            self.observers.frames(Direction::Out, &out.outer, out.bytes.len(), out.stride);
        }
        if out.outer.is_link() {
            self.send_by_link(now, out);
            return;
        }
        if self.may_send_datagram(now, out) {
            self.hand_over(now, out);
        }
    }

    /// Hands bytes to the kernel. If the kernel has no room, they wait.
    fn try_send(&mut self, now: Instant, out: &Outgoing<'_>) -> Result<(), SendError> {
        let index = usize::from(out.outer.socket);
        let Some(Some(entry)) = self.sockets.get_mut(index) else { return Ok(()) };
        let result = if !entry.stalled.holds(out.outer.local) {
            entry.socket.send(now, &out.outer, out.ecn, out.stride, out.bytes)
        } else {
            Err(io::Error::from(io::ErrorKind::WouldBlock).into())
        };
        let Err(failed) = result else { return Ok(()) };
        if !failed.would_block() {
            return Err(failed);
        }
        let bytes = out.bytes.get(failed.sent..).unwrap_or_default().to_vec();
        let (outer, ecn, stride) = (out.outer, out.ecn, out.stride);
        entry.stalled.push(Stalled { outer, ecn, stride, bytes });
        self.stall_retry_at = Some(now + STALL_RETRY);
        Ok(())
    }

    /// Hands datagrams of one sender to the kernel and reports to the sender if they were not sent.
    fn hand_over(&mut self, now: Instant, out: &Outgoing<'_>) {
        let Err(failed) = self.try_send(now, out) else { return };
        let index = usize::from(out.outer.socket);
        let rest = out.bytes.get(failed.sent..).unwrap_or_default();
        let mut error = failed.error;
        // A pending error may belong to an earlier datagram, but it also stopped this one.
        if self.drain_errors(now, index)
            && let Some(Some(entry)) = self.sockets.get_mut(index)
        {
            match entry.socket.send(now, &out.outer, out.ecn, out.stride, rest) {
                Err(again) if !again.would_block() => error = again.error,
                // The kernel has no room now: the datagram is lost, as in any queue.
                _ => return,
            }
        }
        match out.sender {
            Sender::Carrier => {}
            Sender::Subflow(path, flow) => {
                self.on_send_error(now, &out.outer, (path, flow), &error);
            }
            Sender::Lane(lane, path) => {
                self.on_frame_not_sent(now, &out.outer, (lane, path), &error);
            }
        }
    }

    fn on_send_error(
        &mut self,
        now: Instant,
        outer: &Outer,
        (path, local_flow): (FourTuple, u64),
        error: &io::Error,
    ) {
        let what = if error.raw_os_error() == Some(libc::EMSGSIZE) {
            let Some(Some(entry)) = self.sockets.get(usize::from(outer.socket)) else { return };
            let mtu = entry.socket.route_mtu(outer.remote, outer.local);
            CoreError::TooBig { max_segment: self.carrier.segment_of_mtu(mtu, &path) }
        } else {
            tracing::debug!(remote = %outer.remote, %error, "datagram not sent");

            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            self.observers.contacts.record_send_refusal(now, &path, errno);
            // EPERM and EACCES come from a packet filter of this machine.
            let filtered = matches!(errno, libc::EPERM | libc::EACCES);
            let ends = (outer.local, outer.remote);
            if filtered && self.rerouting.routes.refused(now, ends) {
                return;
            }
            CoreError::Unreachable
        };
        self.endpoint.send_failed(now, &path, local_flow, what);
    }

    /// Handles the errors that ICMP caused on a socket. Returns true if there were any.
    pub(super) fn drain_errors(&mut self, now: Instant, index: usize) -> bool {
        /// Errors handled in one call: a flood of them must not hold the lock.
        const AT_ONCE: usize = 64;
        let mut any = false;
        for _ in 0..AT_ONCE {
            let Some(Some(entry)) = self.sockets.get(index) else { return any };
            let Some(error) = entry.socket.next_error() else { return any };
            any = true;
            self.on_network_error(now, &error);
        }
        any
    }

    /// Accepts ICMP errors only if they quote the id of a flow to that address, which an off-path attacker does not
    /// know. Errors of this machine are ignored here: the send call reports them, too.
    fn on_network_error(&mut self, now: Instant, error: &NetworkError) {
        let Carrier::Udp(carrier) = &self.carrier else {
            self.on_native_error(now, error);
            return;
        };
        let quoted = carrier.quoted_flow(error.remote, &error.quoted);
        if quoted.is_none() && self.on_frame_error(now, error) {
            return;
        }
        let Some((flow, path)) = quoted.filter(|_| !error.ours) else { return };
        let what = match error.mtu {
            Some(mtu) => {
                CoreError::TooBig { max_segment: self.carrier.trusted_segment_len(mtu, &path) }
            }
            // Without the size, the error adds nothing that probing does not find.
            None if error.errno == libc::EMSGSIZE => return,
            None => CoreError::Unreachable,
        };
        if what == CoreError::Unreachable {
            let ends = (path.local.ip(), error.remote);
            // A late error about datagrams does not concern a server that is reached by TCP.
            if !self.rerouting.routes.is_by_link(&ends) {
                let (local, remote) = (path.local.ip(), path.remote);
                self.observers.contacts.record_icmp_error(now, local, remote, error);
            }
            if self.rerouting.routes.refused(now, ends) {
                return;
            }
        }
        self.endpoint.flow_error(now, flow, what);
    }

    fn retry_stalled(&mut self, now: Instant) {
        if self.stall_retry_at.is_none_or(|at| at > now) {
            return;
        }
        let mut still = false;
        for entry in self.sockets.iter_mut().flatten() {
            still |= entry.stalled.retry(now, &entry.socket);
        }
        self.stall_retry_at = still.then_some(now + STALL_RETRY);
    }
}

#[cfg(test)]
mod tests;
