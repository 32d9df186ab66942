//! Buffer level queries with `ioctl`.

use libc::{c_int, c_ulong};

use super::Kind;
use crate::machine::State;

/// `SIOCOUTQNSD`.
const UNSENT: c_ulong = 0x894b;
/// `SIOCATMARK`.
const SIOCATMARK_REQUEST: c_ulong = 0x8905;

impl State {
    /// Answers a request.
    pub(crate) fn ask(&mut self, fd: c_int, request: c_ulong) -> Result<c_int, c_int> {
        let socket = self.sockets.get(fd)?;
        let id = match socket.kind {
            Kind::Stream(id) => Some(id),
            Kind::Listener(_) if request != SIOCATMARK_REQUEST => return Err(libc::EINVAL),
            _ => None,
        };
        let info = id.and_then(|id| self.endpoint.info(id));
        let bytes = match request {
            libc::FIONREAD => info.map_or(0, |info| info.readable),
            libc::TIOCOUTQ => info.map_or(0, |info| info.bytes_written - info.bytes_acked),
            UNSENT => info.map_or(0, |info| info.unsent),
            SIOCATMARK_REQUEST => 0,
            _ => return Err(libc::ENOTTY),
        };
        Ok(c_int::try_from(bytes).unwrap_or(c_int::MAX))
    }
}
