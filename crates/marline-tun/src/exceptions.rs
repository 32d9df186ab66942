//! Exceptions to the tunnel: destinations that are reached directly, and blocked ones.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use marline_proxy::rules::{BadCidr, Cidr};
use marline_proxy::target::{BadTarget, Host};

use crate::addresses::GatewayQueries;

/// Destination of an exception: a network, or a domain with all names below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A network.
    Network(Cidr),
    /// A domain, in lower case and without a dot at either end.
    Domain(String),
}

/// Text that is not a destination.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDestination {
    /// The text has a slash but is not a network.
    #[error("{0}")]
    Network(BadCidr),
    /// The text is neither an address nor a name.
    #[error("expected ADDRESS, ADDRESS/BITS or a domain: {0}")]
    Domain(BadTarget),
}

impl FromStr for Destination {
    type Err = BadDestination;

    fn from_str(text: &str) -> Result<Destination, BadDestination> {
        if text.contains('/') || text.parse::<IpAddr>().is_ok() {
            return text.parse().map(Destination::Network).map_err(BadDestination::Network);
        }
        let bare = text.strip_prefix("*.").or_else(|| text.strip_prefix('.')).unwrap_or(text);
        let name = bare.strip_suffix('.').unwrap_or(bare);
        Host::name(name).map_err(BadDestination::Domain)?;
        Ok(Destination::Domain(name.to_ascii_lowercase()))
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Network(network) => network.fmt(f),
            Destination::Domain(name) => f.write_str(name),
        }
    }
}

/// Treatment of traffic to a destination.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Traffic uses the tunnel.
    Tunneled,
    /// Traffic leaves as it would without a tunnel.
    Direct,
    /// Traffic is refused.
    Blocked,
}

/// Exceptions of an interface.
#[derive(Clone, Debug, Default)]
pub struct Exceptions {
    direct: Vec<Destination>,
    blocked: Vec<Destination>,
}

impl Exceptions {
    /// Creates exceptions with these direct and blocked destinations.
    #[must_use]
    pub const fn new(direct: Vec<Destination>, blocked: Vec<Destination>) -> Exceptions {
        Exceptions { direct, blocked }
    }

    /// Returns the networks that are reached directly.
    pub fn direct_networks(&self) -> impl Iterator<Item = Cidr> {
        self.direct.iter().filter_map(|destination| match destination {
            Destination::Network(network) => Some(*network),
            Destination::Domain(_) => None,
        })
    }

    /// Returns true if traffic to this address is refused. Direct traffic never reaches the interface.
    #[must_use]
    pub fn blocks(&self, address: IpAddr) -> bool {
        self.blocked.iter().any(
            |destination| matches!(destination, Destination::Network(network) if network.contains(address)),
        )
    }

    /// Returns true if there are exceptions for names, so that queries must be examined.
    #[must_use]
    pub fn has_domains(&self) -> bool {
        let is_domain = |destination: &Destination| matches!(destination, Destination::Domain(_));
        self.direct.iter().chain(&self.blocked).any(is_domain)
    }

    /// Returns the treatment of a name (lower case, without a trailing dot). The longest matching domain decides. If
    /// it is both direct and blocked, it is blocked.
    #[must_use]
    pub fn treatment_of_name(&self, name: &str) -> Treatment {
        let longest = |destinations: &[Destination]| {
            let holds = |destination: &Destination| match destination {
                Destination::Domain(domain) => is_within(name, domain).then_some(domain.len()),
                Destination::Network(_) => None,
            };
            destinations.iter().filter_map(holds).max()
        };
        match (longest(&self.direct), longest(&self.blocked)) {
            (None, None) => Treatment::Tunneled,
            (direct, blocked) if direct > blocked => Treatment::Direct,
            _ => Treatment::Blocked,
        }
    }
}

/// A gateway's settings for the destinations of packets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Destinations {
    pub(crate) exceptions: Arc<Exceptions>,
    /// Queries that the gateway answers.
    pub(crate) queries: GatewayQueries,
}

fn is_within(name: &str, domain: &str) -> bool {
    let rest = name.strip_suffix(domain);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(texts: &[&str]) -> Vec<Destination> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn networks_and_domains_are_distinguished() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("192.0.2.7", "192.0.2.7/32"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("*.Example.ORG.", "example.org"),
            (".fritz.box", "fritz.box"),
            ("intranet", "intranet"),
        ] {
            assert_eq!(text.parse::<Destination>().unwrap().to_string(), shown);
        }
        for wrong in ["", ".", "10.0.0.0/33", "10.0.0.1/8", "a b", "example.org/24"] {
            assert!(wrong.parse::<Destination>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_longest_domain_decides_and_parts_of_labels_do_not_count() {
        let exceptions = Exceptions::new(
            all(&["example.org", "ok.ads.example", "both.example"]),
            all(&["ads.example", "both.example", "192.0.2.0/24"]),
        );
        for (name, treatment) in [
            ("example.org", Treatment::Direct),
            ("a.b.example.org", Treatment::Direct),
            ("notexample.org", Treatment::Tunneled),
            ("org", Treatment::Tunneled),
            ("", Treatment::Tunneled),
            ("x.ads.example", Treatment::Blocked),
            ("x.ok.ads.example", Treatment::Direct),
            ("both.example", Treatment::Blocked),
        ] {
            assert_eq!(exceptions.treatment_of_name(name), treatment, "{name}");
        }
        assert!(exceptions.has_domains() && !Exceptions::default().has_domains());
        let networks = Exceptions::new(all(&["10.0.0.0/8"]), all(&["192.0.2.0/24"]));
        assert!(!networks.has_domains());
        assert!(exceptions.blocks("192.0.2.9".parse().unwrap()));
        assert!(!exceptions.blocks("192.0.3.9".parse().unwrap()));
        assert_eq!(exceptions.direct_networks().count(), 0);
    }
}
