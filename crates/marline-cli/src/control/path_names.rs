//! Names of the paths that connections use, for texts about decisions.
//!
//! A client's path has the name that `marline path` shows. A server's path is named after the peer's address, because
//! the server's own address is the same on all paths.

use std::collections::BTreeMap;

use marline::monitor::{MonitorEvent, MonitorKind};
use marline::policy::SubflowId;

use super::Handle;
use super::protocol::{Path, Subflow};

/// Names by connection number and subflow. A missing name causes a lookup of all names, so the table holds at most the
/// existing subflows and those that were not found since then.
#[derive(Debug, Default)]
pub(crate) struct PathNames {
    known: BTreeMap<(u64, u8), String>,
}

impl PathNames {
    /// Handles an event of this connection. A reused subflow slot belongs to another path.
    pub(crate) fn on_event(&mut self, connection: u64, event: &MonitorEvent) {
        match event.kind {
            MonitorKind::SubflowEstablished { id, .. } | MonitorKind::SubflowClosed { id, .. } => {
                self.known.remove(&(connection, id.0));
            }
            MonitorKind::Closed(_) => self.known.retain(|(of, _), _| *of != connection),
            _ => {}
        }
    }

    /// Returns the name of a subflow's path, if it is known without a lookup.
    pub(crate) fn known_name(&self, connection: u64, id: SubflowId) -> Option<&str> {
        self.known.get(&(connection, id.0)).map(String::as_str)
    }

    /// Returns the name of a subflow's path.
    pub(crate) fn name(&mut self, connection: u64, id: SubflowId, handle: &dyn Handle) -> String {
        if !self.known.contains_key(&(connection, id.0)) {
            self.look_up(handle);
        }
        let unknown = || format!("subflow {}", id.0);
        self.known.entry((connection, id.0)).or_insert_with(unknown).clone()
    }

    fn look_up(&mut self, handle: &dyn Handle) {
        let paths = if handle.role() == "client" { Some(handle.paths()) } else { None };
        self.known.clear();
        for connection in handle.connections() {
            let named = |subflow: &Subflow| name_of(subflow, paths.as_deref());
            for subflow in &connection.subflows {
                let name = named(subflow);
                let alike = connection.subflows.iter().filter(|other| named(other) == name).count();
                let name = match alike {
                    1 => name,
                    _ => format!("{name} (subflow {})", subflow.subflow),
                };
                let slot = u8::try_from(subflow.subflow).unwrap_or(u8::MAX);
                self.known.insert((connection.connection, slot), name);
            }
        }
    }
}

/// Returns the path with the subflow's local address. Returns the peer's address if there is no list of paths.
fn name_of(subflow: &Subflow, paths: Option<&[Path]>) -> String {
    let Some(paths) = paths else { return ip(&subflow.remote) };
    let local = ip(&subflow.local);
    let has_it = |path: &&Path| {
        path.remote.as_ref().is_none_or(|remote| *remote == subflow.remote)
            && path.local.as_deref().is_some_and(|all| all.split(' ').any(|one| one == local))
    };
    paths.iter().find(has_it).map_or_else(|| local.clone(), |path| path.name.clone())
}

/// Returns an endpoint without its port.
fn ip(end: &str) -> String {
    let parsed = end.parse::<std::net::SocketAddr>();
    parsed.map_or_else(|_| end.to_owned(), |end| end.ip().to_string())
}
