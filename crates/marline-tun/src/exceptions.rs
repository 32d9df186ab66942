//! Exceptions from the tunnel: destinations that are reached directly, and those that are not reached at all.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use marline_proxy::rules::{BadCidr, Cidr};
use marline_proxy::target::{BadTarget, Host};

use crate::addresses::TakenQueries;

/// A destination of an exception: a network, or a domain with all names below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Addresses.
    Network(Cidr),
    /// Names, in lower case and without a dot at either end.
    Domain(String),
}

/// Text that is no destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadDestination {
    /// It has a slash, and is no network.
    Network(BadCidr),
    /// It is no name either.
    Domain(BadTarget),
}

impl fmt::Display for BadDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadDestination::Network(error) => error.fmt(f),
            BadDestination::Domain(error) => {
                write!(f, "expected ADDRESS, ADDRESS/BITS or a domain: {error}")
            }
        }
    }
}

impl std::error::Error for BadDestination {}

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

/// What becomes of traffic to a destination.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It goes through the tunnel.
    Tunnelled,
    /// It leaves as it would without a tunnel.
    Direct,
    /// It is refused.
    Blocked,
}

/// The exceptions of an interface.
#[derive(Clone, Debug, Default)]
pub struct Exceptions {
    direct: Vec<Destination>,
    blocked: Vec<Destination>,
}

impl Exceptions {
    /// These are reached directly, those not at all.
    #[must_use]
    pub const fn new(direct: Vec<Destination>, blocked: Vec<Destination>) -> Exceptions {
        Exceptions { direct, blocked }
    }

    /// Networks that are reached directly.
    pub fn direct_networks(&self) -> impl Iterator<Item = Cidr> {
        self.direct.iter().filter_map(|destination| match destination {
            Destination::Network(network) => Some(*network),
            Destination::Domain(_) => None,
        })
    }

    /// Whether traffic to this address is refused. What is direct does not come here.
    #[must_use]
    pub fn blocks(&self, address: IpAddr) -> bool {
        self.blocked.iter().any(
            |destination| matches!(destination, Destination::Network(network) if network.contains(address)),
        )
    }

    /// Whether anything is said of names, so that queries must be sorted by them.
    #[must_use]
    pub fn has_domains(&self) -> bool {
        let is_domain = |destination: &Destination| matches!(destination, Destination::Domain(_));
        self.direct.iter().chain(&self.blocked).any(is_domain)
    }

    /// What becomes of traffic to a name (lower case, no dot at its end): what the longest domain says that holds it;
    /// of two that are the same, the one that blocks.
    #[must_use]
    pub fn of_name(&self, name: &str) -> Treatment {
        let longest = |destinations: &[Destination]| {
            let holds = |destination: &Destination| match destination {
                Destination::Domain(domain) => is_within(name, domain).then_some(domain.len()),
                Destination::Network(_) => None,
            };
            destinations.iter().filter_map(holds).max()
        };
        match (longest(&self.direct), longest(&self.blocked)) {
            (None, None) => Treatment::Tunnelled,
            (direct, blocked) if direct > blocked => Treatment::Direct,
            _ => Treatment::Blocked,
        }
    }
}

/// What a gateway knows of the packets' destinations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Destinations {
    pub(crate) exceptions: Arc<Exceptions>,
    /// Queries that are the gateway's.
    pub(crate) queries: TakenQueries,
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
    fn networks_and_domains_are_told_apart() {
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
            ("notexample.org", Treatment::Tunnelled),
            ("org", Treatment::Tunnelled),
            ("", Treatment::Tunnelled),
            ("x.ads.example", Treatment::Blocked),
            ("x.ok.ads.example", Treatment::Direct),
            ("both.example", Treatment::Blocked),
        ] {
            assert_eq!(exceptions.of_name(name), treatment, "{name}");
        }
        assert!(exceptions.has_domains() && !Exceptions::default().has_domains());
        let networks = Exceptions::new(all(&["10.0.0.0/8"]), all(&["192.0.2.0/24"]));
        assert!(!networks.has_domains());
        assert!(exceptions.blocks("192.0.2.9".parse().unwrap()));
        assert!(!exceptions.blocks("192.0.3.9".parse().unwrap()));
        assert_eq!(exceptions.direct_networks().count(), 0);
    }
}
