//! Bounds on connections that have not shown a credential yet.
//!
//! Until a connection is authenticated it is somebody's whim: a TLS handshake's worth of memory and
//! time. Few per source and a bounded number in all are let in; a source is an IPv4 address or an
//! IPv6 /64 (one host owns that many addresses). The multipath handshake below has shown that the
//! source answers at its address, so a source's share cannot be spent by forging it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// The bounds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct GateLimits {
    /// Unauthenticated connections per source.
    pub per_source: usize,
    /// Unauthenticated connections in all.
    pub total: usize,
}

impl Default for GateLimits {
    fn default() -> Self {
        GateLimits { per_source: 16, total: 512 }
    }
}

/// Counts who is inside.
#[derive(Clone, Debug)]
pub struct Gate {
    limits: GateLimits,
    inside: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
}

/// Leave to be unauthenticated; dropped when the connection is authenticated or ends.
#[derive(Debug)]
pub struct Ticket {
    source: IpAddr,
    inside: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
}

impl Gate {
    /// A gate with these bounds.
    #[must_use]
    pub fn new(limits: GateLimits) -> Gate {
        Gate { limits, inside: Arc::default() }
    }

    /// Lets one in, or says why not.
    ///
    /// # Errors
    /// Which bound is reached.
    pub fn enter(&self, address: IpAddr) -> Result<Ticket, &'static str> {
        let source = source_of(address);
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if inside.values().sum::<usize>() >= self.limits.total {
            return Err("too many unauthenticated connections");
        }
        let count = inside.entry(source).or_default();
        if *count >= self.limits.per_source {
            return Err("too many unauthenticated connections from this source");
        }
        *count += 1;
        Ok(Ticket { source, inside: Arc::clone(&self.inside) })
    }

    /// How many are inside.
    #[must_use]
    pub fn count(&self) -> usize {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = inside.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                inside.remove(&self.source);
            }
        }
    }
}

fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_bounds_hold_and_leaving_makes_room() {
        let gate = Gate::new(GateLimits { per_source: 2, total: 3 });
        let enter = |address: &str| gate.enter(address.parse().unwrap());
        let first = enter("192.0.2.1").unwrap();
        let _second = enter("::ffff:192.0.2.1").unwrap();
        assert!(enter("192.0.2.1").unwrap_err().contains("this source"));
        let _third = enter("2001:db8::1").unwrap();
        assert!(!enter("192.0.2.2").unwrap_err().contains("this source"));
        drop(first);
        let _fourth = enter("2001:db8::ffff").unwrap();
        assert_eq!(gate.count(), 3);
        assert!(enter("192.0.2.2").is_err());
    }

    #[test]
    fn one_ipv6_network_is_one_source_and_nothing_is_left_behind() {
        let gate = Gate::new(GateLimits { per_source: 1, total: 9 });
        let ticket = gate.enter("2001:db8:0:1::1".parse().unwrap()).unwrap();
        assert!(gate.enter("2001:db8:0:1:ffff::2".parse().unwrap()).is_err());
        let other = gate.enter("2001:db8:0:2::1".parse().unwrap()).unwrap();
        drop((ticket, other));
        assert_eq!(gate.count(), 0);
        assert!(gate.inside.lock().unwrap().is_empty());
    }
}
