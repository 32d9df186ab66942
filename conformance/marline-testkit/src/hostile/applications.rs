//! Actions of the applications at both ends.

use marline_core::NetworkError;
use marline_policy::{AddressId, LocalAddress, PathAction};

use super::{Run, address, index, scheduler};
use crate::Side;

/// The byte that the application on `side` writes at a position.
const fn content(side: Side, position: u64) -> u8 {
    let mixed = position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    mixed as u8 ^ index(side) as u8
}

impl Run {
    pub(super) fn write(&mut self, side: Side, len: u16) {
        let now = self.pair.now();
        let app = &mut self.apps[index(side)];
        let Some(id) = app.id.filter(|_| !app.closing) else { return };
        let bytes: Vec<u8> = (0..u64::from(len)).map(|i| content(side, app.written + i)).collect();
        if let Ok(taken) = self.pair.endpoint(side).write(now, id, &bytes) {
            assert!(taken <= bytes.len(), "more bytes were read than written");
            app.written += taken as u64;
        }
    }

    pub(super) fn read(&mut self, side: Side) {
        let (now, from) = (self.pair.now(), side.other());
        let app = &mut self.apps[index(side)];
        let Some(id) = app.id else { return };
        let mut out = [0; 4_096];
        while let Ok(len @ 1..) = self.pair.endpoint(side).read(now, id, &mut out) {
            for &byte in &out[..len] {
                if self.outcome.forged == 0 {
                    assert_eq!(
                        byte,
                        content(from, app.read),
                        "wrong byte {} from {from:?}",
                        app.read
                    );
                    self.outcome.bytes_right += 1;
                }
                app.read += 1;
            }
        }
        if self.outcome.forged == 0 {
            let (read, written) = (self.apps[index(side)].read, self.apps[index(from)].written);
            assert!(read <= written, "{side:?} read {read} of {written} bytes");
        }
    }

    pub(super) fn close(&mut self, side: Side, how: u8) {
        let now = self.pair.now();
        let Some(id) = self.apps[index(side)].id else { return };
        let app = &mut self.apps[index(side)];
        app.closing = true;
        let endpoint = self.pair.endpoint(side);
        match how % 8 {
            0 => endpoint.abort(now, id),
            1 => endpoint.release(now, id),
            _ => endpoint.shutdown(now, id),
        }
    }

    /// Removes or adds a local address, or changes its priority.
    pub(super) fn toggle_address(&mut self, side: Side, how: u8) {
        let (now, net) = (self.pair.now(), how & 1);
        let changed = LocalAddress {
            backup: how & 2 != 0,
            signal: how & 4 != 0,
            up: how & 8 == 0,
            ..LocalAddress::new(AddressId(net), address(side, net, 0))
        };
        let Some(id) = self.apps[index(side)].id else { return };
        let endpoint = self.pair.endpoint(side);
        if how & 0x10 == 0 {
            endpoint.set_local_address(now, Some(id), changed);
        } else {
            endpoint.set_backup(now, id, AddressId(net), how & 2 != 0);
        }
    }

    /// Requests a subflow, which may be urgent or replace a dead one.
    pub(super) fn join(&mut self, side: Side, how: u8) {
        let (now, net) = (self.pair.now(), how & 1);
        let Some(id) = self.apps[index(side)].id else { return };
        let endpoint = self.pair.endpoint(side);
        if how & 2 != 0 {
            let dead = 1 - net;
            let (from, to) = (address(side, dead, 0).ip(), address(side.other(), 0, 80));
            let paths = endpoint.info(id).map(|info| info.subflows).unwrap_or_default();
            for path in paths.into_iter().map(|subflow| subflow.path) {
                if path.local.ip() == from && path.remote == to {
                    endpoint.send_failed(now, &path, 0, NetworkError::Unreachable);
                }
            }
        }
        let action = PathAction::OpenSubflow {
            local: AddressId(net),
            remote: AddressId(how >> 2 & 1),
            backup: how & 8 != 0,
            fast: how & 16 == 0,
        };
        endpoint.path_action(now, id, action);
    }

    /// Changes the scheduler.
    pub(super) fn change_scheduler(&mut self, side: Side, which: u8) {
        let now = self.pair.now();
        let Some(id) = self.apps[index(side)].id else { return };
        self.pair.endpoint(side).set_scheduler(now, id, scheduler(which));
    }
}
