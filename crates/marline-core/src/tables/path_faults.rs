//! Path faults passed between an endpoint and its path health monitor: timeouts to report, and
//! verdicts.

use std::collections::BTreeMap;

use marline_policy::AddressPairFault;

use crate::path_health::PathTrouble;
use crate::{FourTuple, PathAddresses};

/// Limit on address pairs with unreported timeouts.
const MAX_TROUBLES: usize = 64;
/// Reports from an endpoint's connections to the path health monitor, and the monitor's verdicts.
#[derive(Debug, Default)]
pub(crate) struct PathFaults {
    /// True if there is a path health monitor.
    present: bool,
    /// Timeouts since the last visit, by addresses: the most serious timeout of each address pair.
    troubles: BTreeMap<PathAddresses, (FourTuple, PathTrouble)>,
    /// Degraded address pairs, by addresses.
    degraded: BTreeMap<PathAddresses, AddressPairFault>,
}

impl PathFaults {
    /// Records a timeout on a subflow.
    pub(crate) fn report(&mut self, path: FourTuple, trouble: PathTrouble) {
        if let Some((_, before)) = self.troubles.get_mut(&path.addresses()) {
            *before = before.worst(trouble);
        } else if self.present && self.troubles.len() < MAX_TROUBLES {
            self.troubles.insert(path.addresses(), (path, trouble));
        }
    }

    /// Fault of the path; `None` if there is none.
    pub(crate) fn fault(&self, path: &FourTuple) -> Option<AddressPairFault> {
        self.degraded.get(&path.addresses()).copied()
    }

    /// Starts with a new path health monitor; earlier verdicts are dropped.
    pub(crate) fn reset(&mut self) {
        *self = PathFaults { present: true, ..PathFaults::default() };
    }

    pub(crate) fn has_troubles(&self) -> bool {
        !self.troubles.is_empty()
    }

    pub(crate) fn take_troubles(&mut self) -> Vec<(FourTuple, PathTrouble)> {
        core::mem::take(&mut self.troubles).into_values().collect()
    }

    /// Sets changed verdicts.
    pub(crate) fn set_degraded(&mut self, degraded: BTreeMap<PathAddresses, AddressPairFault>) {
        self.degraded = degraded;
    }
}
