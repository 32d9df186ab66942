//! Entry of the path table: a path's specification, current local addresses, and restrictions.

use std::collections::BTreeMap;

use marline_io::{
    Contact, LocalEnd, LocalSpec, PathSpec, Prefix64, RadioKind, has_battery, is_mobile_interface,
};
use marline_policy::PathCost;

use super::PathRestriction;

/// Path as specified, with its current state.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) spec: PathSpec,
    pub(super) ends: Vec<LocalEnd>,
    pub(super) is_disabled: bool,
    pub(super) backup: bool,
    pub(super) metered: bool,
    /// True if traffic counts against an allowance, false if not; `None` if the user has not specified it.
    pub(super) limited: Option<bool>,
    /// True if traffic appears to count against an allowance, judged by the kind of interface or reported by the
    /// system's network manager.
    pub(super) looks_limited: bool,
    /// True if the interface appears to be a cellular radio of a machine with a battery.
    drains_battery: bool,
    pub(super) reported_limited: bool,
    pub(super) fading: bool,
    pub(super) restriction: PathRestriction,
    pub(super) error: Option<String>,
    /// True if the interface or address does not exist; the path is used when it appears.
    pub(super) absent: bool,
}

impl Entry {
    pub(super) fn new(spec: PathSpec) -> Self {
        let (backup, metered, limited) = (spec.backup, spec.metered, spec.limited);
        let (ends, restriction) = (Vec::new(), PathRestriction::None);
        Entry {
            spec,
            ends,
            is_disabled: false,
            backup,
            metered,
            limited,
            looks_limited: false,
            drains_battery: false,
            reported_limited: false,
            fading: false,
            restriction,
            error: None,
            absent: false,
        }
    }

    /// Sets the local addresses that the lookup found.
    pub(super) fn set_ends(&mut self, ends: Vec<LocalEnd>) {
        self.set_ends_on(ends, has_battery);
    }

    pub(super) fn set_ends_on(&mut self, ends: Vec<LocalEnd>, has_battery: impl FnOnce() -> bool) {
        self.looks_limited = ends.first().is_some_and(|end| is_mobile_interface(&end.interface.0));
        self.drains_battery = self.looks_limited && has_battery();
        (self.ends, self.error) = (ends, None);
    }

    /// Sets the result of a lookup, and logs when the path appears or disappears.
    pub(super) fn set_lookup_result(&mut self, found: Result<Vec<LocalEnd>, String>) {
        let was_absent = std::mem::replace(&mut self.absent, found.is_err());
        match found {
            Ok(ends) => {
                self.set_ends(ends);
                if was_absent {
                    let addresses: Vec<_> =
                        self.ends.iter().map(|end| end.address.to_string()).collect();
                    tracing::info!(
                        "path {}: available, at {}",
                        self.display_name(),
                        addresses.join(", ")
                    );
                }
            }
            Err(reason) => {
                if !was_absent {
                    tracing::warn!("path {}: {reason}; waiting for it", self.display_name());
                }
                (self.ends, self.error) = (Vec::new(), Some(reason));
            }
        }
    }

    /// Returns the reason why no connection can use this path, with the path's name; `None` if no reason is known.
    pub(super) fn unusable_reason(&self) -> Option<String> {
        self.current_obstacle().map(|reason| format!("path {}: {reason}", self.display_name()))
    }

    /// Returns the reason why connections cannot start on this path, if any.
    pub(super) fn current_obstacle(&self) -> Option<String> {
        let by_hand = || self.is_disabled.then(|| "disabled by hand".to_owned());
        let restricted = || match &self.restriction {
            PathRestriction::Unusable(why) => Some(why.clone()),
            _ => None,
        };
        self.error.clone().or_else(restricted).or_else(by_hand)
    }

    pub(super) const fn is_up(&self) -> bool {
        !self.ends.is_empty() && self.may_be_used()
    }

    /// Returns true unless the path is disabled by hand or restricted as unusable.
    pub(super) const fn may_be_used(&self) -> bool {
        !self.is_disabled && !matches!(self.restriction, PathRestriction::Unusable(_))
    }

    /// Returns true if the network is IPv6-only and no server address is configured.
    pub(super) fn has_only_ipv6(&self) -> bool {
        let ipv6 = |end: &LocalEnd| end.address.is_ipv6() && !end.loopback && !end.behind_tun;
        !self.ends.is_empty() && self.ends.iter().all(ipv6) && self.spec.remote.is_none()
    }

    /// Returns the NAT64 prefix: the configured one, or else that of the interface.
    pub(super) fn nat64(&self, known: &BTreeMap<u32, Prefix64>) -> Option<Prefix64> {
        let end = self.ends.first().filter(|_| self.has_only_ipv6())?;
        self.spec.nat64.or_else(|| known.get(&end.interface.1).copied())
    }

    pub(super) fn is_metered(&self) -> bool {
        self.metered || self.restriction == PathRestriction::Metered
    }

    /// Returns true if traffic counts against an allowance: the user's setting decides, then a configured radio, and
    /// finally the detected kind of interface.
    pub(super) fn is_limited(&self) -> bool {
        let by_radio = self.spec.radio.map(|radio| radio != RadioKind::Wifi);
        let appears = self.reported_limited || by_radio.unwrap_or(self.looks_limited);
        self.limited.unwrap_or(appears)
    }

    /// Takes over runtime changes of `other`, except for settings in which the specification differs.
    pub(super) fn inherit_changes(&mut self, other: &Entry) {
        (self.is_disabled, self.fading) = (other.is_disabled, other.fading);
        self.restriction = other.restriction.clone();
        if self.spec.backup == other.spec.backup {
            self.backup = other.backup;
        }
        if self.spec.metered == other.spec.metered {
            self.metered = other.metered;
        }
        if self.spec.limited == other.spec.limited {
            self.limited = other.limited;
        }
        self.reported_limited = other.reported_limited;
    }

    /// Returns the index of the interface whose radio or line this path uses; 0 for a path configured by address or
    /// with a separate server address, which shares its line with no other path.
    pub(super) fn link(&self, end: &LocalEnd) -> u32 {
        let by_interface = matches!(self.spec.local, LocalSpec::Interface(_));
        let is_shared = by_interface && self.spec.remote.is_none() && !end.loopback;
        if is_shared { end.interface.1 } else { 0 }
    }

    /// Returns true if the path was changed at runtime.
    pub(super) fn is_changed(&self) -> bool {
        let (backup, metered) = (self.spec.backup, self.spec.metered);
        let flags =
            self.is_disabled || self.fading || self.backup != backup || self.metered != metered;
        let flags = flags || self.limited != self.spec.limited;
        flags || self.restriction != PathRestriction::None
    }

    /// Returns the cost of using the path.
    pub(super) fn cost(&self) -> PathCost {
        PathCost {
            metered: self.is_metered(),
            limited: self.is_limited(),
            fading: self.fading,
            tail_ms: self.radio().map_or(0, RadioKind::tail_ms),
        }
    }

    /// Returns the configured radio. A cellular interface of a machine with a battery counts as LTE.
    fn radio(&self) -> Option<RadioKind> {
        self.spec.radio.or(self.drains_battery.then_some(RadioKind::Lte))
    }

    /// Returns true if the path is used only when others do not work: a backup, or a radio that should sleep.
    pub(super) fn is_reserve(&self) -> bool {
        self.backup || self.cost().has_radio()
    }

    /// Returns the contacts that belong to this path.
    pub(super) fn contacts<'a>(&self, all: &'a [Contact]) -> Vec<&'a Contact> {
        let here = |contact: &&Contact| {
            let pinned = self.spec.remote.is_none_or(|remote| remote == contact.remote);
            pinned && self.ends.iter().any(|end| end.address == contact.local)
        };
        all.iter().filter(here).collect()
    }

    /// Returns the name in messages: the configured name, or else the whole specification.
    pub(super) fn display_name(&self) -> String {
        self.spec.name.clone().unwrap_or_else(|| self.spec.to_string())
    }

    /// Returns the interface of the path, if known.
    pub(super) fn interface(&self) -> Option<&str> {
        self.ends.first().map(|end| end.interface.0.as_str())
    }
}
