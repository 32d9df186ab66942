//! Silent paths of lanes: answers are shared between the lanes and connections of a shard.

use std::collections::BTreeSet;

use marline_core::PathAddresses;
use marline_datagram::PathId;

use super::{Entry, Lanes};

impl Lanes {
    /// Marks the silent paths of a lane that are already probed for connections of the shard.
    pub(in super::super) fn note_probed(
        &mut self,
        id: u64,
        is_probed: impl Fn(PathAddresses) -> bool,
    ) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        for (path, addresses) in &entry.silent {
            entry.lane.set_path_probed(*path, is_probed(*addresses));
        }
    }

    /// Handles an answer between these addresses: lanes with an unreachable path there probe at once.
    pub(in super::super) fn on_path_answer(&mut self, addresses: PathAddresses) {
        let waiting = self.silent.range((addresses, 0)..=(addresses, u64::MAX));
        let waiting: Vec<u64> = waiting.map(|(_, id)| *id).collect();
        for id in waiting {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            for (path, _) in entry.silent.iter().filter(|(_, there)| *there == addresses) {
                entry.lane.on_path_answer(*path);
            }
            self.touch(id);
        }
    }

    /// Takes the addresses of silent paths that have been answered since the last call.
    pub(in super::super) fn take_answered(&mut self) -> BTreeSet<PathAddresses> {
        core::mem::take(&mut self.answered)
    }

    /// Updates the set of silent paths after a lane was served.
    pub(super) fn note_silence(&mut self, id: u64) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let silent = entry.current_silent_paths();
        if silent != entry.silent {
            let before = core::mem::replace(&mut entry.silent, silent);
            let known = |path: &PathId| entry.paths.iter().any(|known| known.id == *path);
            for (path, addresses) in &before {
                self.silent.remove(&(*addresses, id));
                let is_silent = entry.silent.iter().any(|(silent, _)| silent == path);
                if !is_silent && known(path) {
                    self.answered.insert(*addresses);
                }
            }
            self.silent.extend(entry.silent.iter().map(|(_, addresses)| (*addresses, id)));
        }
    }
}

impl Entry {
    /// Silent paths of the lane, with their addresses.
    fn current_silent_paths(&self) -> Vec<(PathId, PathAddresses)> {
        let with_addresses = |id: PathId| {
            let path = self.paths.iter().find(|path| path.id == id)?;
            let known = self.addresses.iter().find(|(flow, _)| *flow == path.flow)?;
            Some((id, known.1))
        };
        self.lane.unreachable_paths().filter_map(with_addresses).collect()
    }
}
