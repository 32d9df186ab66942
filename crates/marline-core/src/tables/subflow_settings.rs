//! Cache of subflow settings. Subflows with equal settings share them, because those of an endpoint's connections
//! rarely differ.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::subflow::{SubflowConfig, SynRetries};
use crate::{Capabilities, ConnectionConfig, Limits};

/// Limit on cached settings: for a listener and a few kinds of connections, over IPv4 and IPv6, for first subflows
/// and joins.
const MAX_CACHED: usize = 16;

/// Recently created settings.
#[derive(Debug, Default)]
pub(crate) struct SubflowSettings {
    cached: VecDeque<CachedSettings>,
}

#[derive(Debug)]
struct CachedSettings {
    of: Arc<ConnectionConfig>,
    capabilities: Capabilities,
    settings: Arc<SubflowConfig>,
}

impl SubflowSettings {
    /// Settings of a subflow of a connection with this configuration.
    pub(crate) fn for_subflow(
        &mut self,
        connection: &Arc<ConnectionConfig>,
        capabilities: Capabilities,
        limits: &Limits,
        syn: SynRetries,
    ) -> Arc<SubflowConfig> {
        let alike = |made: &&CachedSettings| {
            Arc::ptr_eq(&made.of, connection)
                && made.capabilities == capabilities
                && made.settings.syn == syn
        };
        if let Some(made) = self.cached.iter().find(alike) {
            return Arc::clone(&made.settings);
        }
        let settings = Arc::new(SubflowConfig::new(connection, &capabilities, limits, syn));
        self.cached.truncate(MAX_CACHED - 1);
        let of = Arc::clone(connection);
        self.cached.push_front(CachedSettings {
            of,
            capabilities,
            settings: Arc::clone(&settings),
        });
        settings
    }

    /// Drops settings that no connection uses.
    pub(crate) fn forget_unused(&mut self) {
        self.cached.retain(|made| Arc::strong_count(&made.settings) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChecksumScope;

    #[test]
    fn connections_with_one_configuration_share_their_subflows_settings() {
        let config = || Arc::new(ConnectionConfig::new(marline_algos::default_policies()));
        let (one, other) = (config(), config());
        let capabilities = Capabilities {
            base_segment: 1_232,
            max_segment: 1_452,
            checksum: ChecksumScope::default(),
            flow_ids: true,
            ecn: false,
        };
        let limits = Limits::default();
        let mut settings = SubflowSettings::default();
        let mut of = |config: &_, syn: fn(&ConnectionConfig) -> SynRetries| {
            settings.for_subflow(config, capabilities, &limits, syn(config))
        };
        let (first, join): (fn(&_) -> _, fn(&_) -> _) = (SynRetries::first, SynRetries::join);
        let made = of(&one, first);
        assert!(Arc::ptr_eq(&made, &of(&one, first)));
        assert!(!Arc::ptr_eq(&made, &of(&one, join)) && !Arc::ptr_eq(&made, &of(&other, first)));
        assert_eq!(of(&one, join).syn, SynRetries { most: 2, linear: 0 });
        let others: Vec<_> = (0..100).map(|_| config()).collect();
        others.iter().for_each(|other| assert_eq!(of(other, first).syn.most, 6));
        assert!(settings.cached.len() <= MAX_CACHED);
        settings.forget_unused();
        assert!(settings.cached.is_empty());
    }
}
