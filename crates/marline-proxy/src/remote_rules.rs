//! Rules of remote forwards: server addresses at which each client may listen.
//!
//! Visitors of an address at which a client listens take the client for the server. Therefore every address needs a
//! rule that allows it. A rule for `127.0.0.1` does not cover `0.0.0.0`, which stands for every address of the machine.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// `[CLIENT@]ADDRESS:PORTS`: this client, or any client, may listen at this address on these ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRule {
    client: Option<String>,
    address: IpAddr,
    first: u16,
    last: u16,
}

/// Error in the text of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rule {text:?}: {problem} (write [CLIENT@]ADDRESS:PORT or [CLIENT@]ADDRESS:FIRST-LAST, IPv6 in brackets)"
)]
pub struct BadRemoteRule {
    text: String,
    problem: &'static str,
}

impl RemoteRule {
    /// Returns the lowest port that the rule allows. 0 lets the system choose a port.
    #[must_use]
    pub const fn first_port(&self) -> u16 {
        if self.first == 0 && self.last > 0 { 1 } else { self.first }
    }

    fn allows(&self, client: &str, wanted: SocketAddr) -> bool {
        self.client.as_deref().is_none_or(|name| name == client)
            && self.address == wanted.ip()
            && (self.first..=self.last).contains(&wanted.port())
    }
}

/// Returns true if a client may listen at an address.
#[must_use]
pub fn is_allowed(rules: &[RemoteRule], client: &str, wanted: SocketAddr) -> bool {
    rules.iter().any(|rule| rule.allows(client, wanted))
}

impl FromStr for RemoteRule {
    type Err = BadRemoteRule;

    fn from_str(text: &str) -> Result<RemoteRule, BadRemoteRule> {
        let wrong = |why| BadRemoteRule { text: text.to_owned(), problem: why };
        let (client, rest) = match text.split_once('@') {
            Some(("", _)) => return Err(wrong("the client's name is empty")),
            Some((client, rest)) => (Some(client.to_owned()), rest),
            None => (None, text),
        };
        let (address, ports) = rest.rsplit_once(':').ok_or_else(|| wrong("the port is missing"))?;
        let bare = address.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let address: IpAddr =
            bare.unwrap_or(address).parse().map_err(|_| wrong("not a valid address"))?;
        if address.is_ipv6() != bare.is_some() {
            return Err(wrong("use brackets for IPv6 addresses, and only for these"));
        }
        let port = |text: &str| text.parse::<u16>().map_err(|_| wrong("not a valid port"));
        let (first, last) = match ports.split_once('-') {
            Some((first, last)) => (port(first)?, port(last)?),
            None => (port(ports)?, port(ports)?),
        };
        if first > last {
            return Err(wrong("the first port is above the last"));
        }
        Ok(RemoteRule { client, address, first, last })
    }
}

impl fmt::Display for RemoteRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(client) = &self.client {
            write!(f, "{client}@")?;
        }
        SocketAddr::new(self.address, self.first).fmt(f)?;
        if self.last != self.first {
            write!(f, "-{}", self.last)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> Vec<RemoteRule> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn text_forms() {
        for text in ["127.0.0.1:8080", "[::1]:22-30", "laptop@0.0.0.0:0-65535", "a.b-c@[::]:80"] {
            assert_eq!(text.parse::<RemoteRule>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "8080",
            "localhost:80",
            "127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:9-8",
            "::1:80",
            "@[::1]:80",
            "[127.0.0.1]:80",
            "127.0.0.1:65536",
            "127.0.0.0/8:80",
            "127.0.0.1:1-2-3",
        ] {
            assert!(text.parse::<RemoteRule>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_remote_rule_allows_exactly_its_addresses() {
        let rules = rules(&["127.0.0.1:8000-8010", "laptop@[::1]:22"]);
        for (client, wanted, allowed) in [
            ("phone", "127.0.0.1:8000", true),
            ("phone", "127.0.0.1:8010", true),
            ("phone", "127.0.0.1:8011", false),
            ("phone", "127.0.0.1:0", false),
            ("phone", "0.0.0.0:8000", false),
            ("phone", "[::ffff:127.0.0.1]:8000", false),
            ("phone", "[::1]:22", false),
            ("laptop", "[::1]:22", true),
            ("laptop2", "[::1]:22", false),
        ] {
            assert_eq!(
                is_allowed(&rules, client, wanted.parse().unwrap()),
                allowed,
                "{client} {wanted}"
            );
        }
        assert!(!is_allowed(&[], "laptop", "127.0.0.1:8000".parse().unwrap()));
    }
}
