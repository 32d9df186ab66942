//! Path faults passed between an endpoint and its path health monitor: timeouts to report, and
//! verdicts.

use core::net::IpAddr;
use std::collections::BTreeMap;

use marline_policy::AddressPairFault;

use crate::FourTuple;
use crate::path_health::Trouble;

/// Address pairs whose troubles are remembered until the visit that follows.
const MAX_TROUBLES: usize = 64;
/// What the connections of an endpoint tell the path health monitor, and what it says of their paths.
#[derive(Debug, Default)]
pub(crate) struct PathFaults {
    /// There is one.
    present: bool,
    /// What timed out since the last visit, by addresses: of one address pair the worst.
    troubles: BTreeMap<(IpAddr, IpAddr), (FourTuple, Trouble)>,
    /// The bad address pairs, by addresses.
    bad: BTreeMap<(IpAddr, IpAddr), AddressPairFault>,
}

impl PathFaults {
    /// Something timed out on a subflow.
    pub(crate) fn report(&mut self, path: FourTuple, trouble: Trouble) {
        let key = (path.local.ip(), path.remote.ip());
        if let Some((_, before)) = self.troubles.get_mut(&key) {
            *before = before.or_worse(trouble);
        } else if self.present && self.troubles.len() < MAX_TROUBLES {
            self.troubles.insert(key, (path, trouble));
        }
    }

    /// Why the path is bad; `None` if it is not.
    pub(crate) fn fault(&self, path: &FourTuple) -> Option<AddressPairFault> {
        self.bad.get(&(path.local.ip(), path.remote.ip())).copied()
    }

    /// There is a path health monitor from now on; what the last one said is forgotten.
    pub(crate) fn begin(&mut self) {
        *self = PathFaults { present: true, ..PathFaults::default() };
    }

    pub(crate) fn has_troubles(&self) -> bool {
        !self.troubles.is_empty()
    }

    pub(crate) fn take_troubles(&mut self) -> Vec<(FourTuple, Trouble)> {
        core::mem::take(&mut self.troubles).into_values().collect()
    }

    /// Verdicts changed.
    pub(crate) fn set_bad(&mut self, bad: BTreeMap<(IpAddr, IpAddr), AddressPairFault>) {
        self.bad = bad;
    }
}
