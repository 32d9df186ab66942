//! Path specs, the textual form of paths: `wlan0`, `192.0.2.7`, `wwan0,backup`, `127.0.0.1=127.0.0.1:7001`,
//! `usb0,name=phone`.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::str::FromStr;

use marline_wire::Prefix64;

use crate::path_radio::RadioKind;

/// Maximum length of an interface name on Linux, in bytes (IFNAMSIZ minus the terminating zero).
const MAX_INTERFACE_NAME: usize = 15;

/// Maximum length of a path's name.
const MAX_NAME_LEN: usize = 20;

/// Local end of a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LocalSpec {
    /// Interface name; the path uses its current addresses.
    Interface(String),
    /// Local address: packets use the interface that has it.
    Address(IpAddr),
}

/// Path of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PathSpec {
    /// Local end.
    pub local: LocalSpec,
    /// Address of the server on this path, if it differs between paths.
    pub remote: Option<SocketAddr>,
    /// True for a backup path, which carries data only if no other path can.
    pub backup: bool,
    /// True if traffic is charged: little is duplicated on the path, and new data uses it only if no other path
    /// delivers in time.
    pub metered: bool,
    /// True if traffic counts against an allowance, so that idle capacity is not used for copies; false if traffic is
    /// free. `None` decides by the kind of interface: mobile data is limited.
    pub limited: Option<bool>,
    /// Radio technology. A configured cellular radio is kept asleep while other paths suffice. If `None`, the radio is
    /// guessed from the interface's name, only for energy estimates.
    pub radio: Option<RadioKind>,
    /// NAT64 prefix of an IPv6-only network; `None` to discover it.
    pub nat64: Option<Prefix64>,
    /// Name for display, if the interface or address is not clear enough.
    pub name: Option<String>,
}

impl PathSpec {
    /// Creates a regular path without a separate server address; other properties are detected.
    #[must_use]
    pub const fn new(local: LocalSpec) -> Self {
        PathSpec {
            local,
            remote: None,
            backup: false,
            metered: false,
            limited: None,
            radio: None,
            nat64: None,
            name: None,
        }
    }
}

/// Error in a path spec.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathSpecError {
    text: String,
    problem: &'static str,
}

impl fmt::Display for PathSpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "path `{}`: {} (write LOCAL[=ADDRESS:PORT][,backup][,metered][,limited][,unmetered][,radio=lte]\
             [,nat64=PREFIX] \
             [,name=NAME], \
             where LOCAL is an interface or address)",
            self.text, self.problem
        )
    }
}

impl core::error::Error for PathSpecError {}

impl fmt::Display for LocalSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocalSpec::Interface(name) => f.write_str(name),
            LocalSpec::Address(address) => address.fmt(f),
        }
    }
}

impl fmt::Display for PathSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.local.fmt(f)?;
        if let Some(remote) = self.remote {
            write!(f, "={remote}")?;
        }
        f.write_str(if self.backup { ",backup" } else { "" })?;
        f.write_str(if self.metered { ",metered" } else { "" })?;
        f.write_str(match self.limited {
            None => "",
            Some(true) => ",limited",
            Some(false) => ",unmetered",
        })?;
        self.radio.map_or(Ok(()), |radio| write!(f, ",radio={radio}"))?;
        self.nat64.map_or(Ok(()), |prefix| write!(f, ",nat64={prefix}"))?;
        self.name.as_ref().map_or(Ok(()), |name| write!(f, ",name={name}"))
    }
}

impl PathSpec {
    /// Returns the name of the path, or else the interface or address.
    #[must_use]
    pub fn short_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.local.to_string())
    }
}

impl FromStr for PathSpec {
    type Err = PathSpecError;

    fn from_str(text: &str) -> Result<Self, PathSpecError> {
        let fail = |why| PathSpecError { text: text.to_owned(), problem: why };
        let mut parts = text.split(',');
        let ends = parts.next().unwrap_or_default();
        let (mut backup, mut metered, mut limited, mut radio) = (false, false, None, None);
        let (mut nat64, mut name) = (None, None);
        for flag in parts {
            match flag.split_once('=').unwrap_or((flag, "")) {
                ("backup", "") => backup = true,
                ("metered", "") => metered = true,
                ("limited", "") => limited = Some(true),
                ("unmetered", "") => limited = Some(false),
                ("radio", kind) => radio = Some(kind.parse().map_err(fail)?),
                ("nat64", prefix) => {
                    let wrong =
                        |_| fail("invalid `nat64=`; expected an IPv6 prefix, such as 64:ff9b::/96");
                    nat64 = Some(prefix.parse().map_err(wrong)?);
                }
                ("name", given) => name = Some(parse_name(given).map_err(fail)?),
                _ => {
                    return Err(fail(
                        "invalid flag; flags are `backup`, `metered`, `limited`, `unmetered`, `radio=`, \
                         `nat64=` and `name=`",
                    ));
                }
            }
        }
        let (local, remote) = match ends.split_once('=') {
            None => (ends, None),
            Some((local, remote)) => {
                let remote: SocketAddr =
                    remote.parse().map_err(|_| fail("expected ADDRESS:PORT after `=`"))?;
                if remote.port() == 0 || remote.ip().is_unspecified() {
                    return Err(fail("the remote address or port is zero"));
                }
                (local, Some(remote))
            }
        };
        let local = parse_local(local).map_err(fail)?;
        if let (LocalSpec::Address(address), Some(remote)) = (&local, remote)
            && address.is_ipv4() != remote.is_ipv4()
        {
            return Err(fail("the local and remote address belong to different families"));
        }
        if metered && limited == Some(false) {
            return Err(fail("`metered` and `unmetered` cannot be combined"));
        }
        Ok(PathSpec { local, remote, backup, metered, limited, radio, nat64, name })
    }
}

fn parse_name(text: &str) -> Result<String, &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !(1..=MAX_NAME_LEN).contains(&text.len()) || !text.bytes().all(fits) {
        return Err("invalid name; a name must be 1 to 20 letters, digits, `-`, `_` or `.`");
    }
    Ok(text.to_owned())
}

fn parse_local(text: &str) -> Result<LocalSpec, &'static str> {
    if text.is_empty() {
        return Err("the local interface or address is missing");
    }
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        if address.is_unspecified() || address.is_multicast() {
            return Err(
                "the local address must be this machine's own, not unspecified or multicast",
            );
        }
        return Ok(LocalSpec::Address(address));
    }
    let dotted = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if dotted || text.contains(':') {
        return Err("LOCAL is neither an address nor an interface name");
    }
    if text.len() > MAX_INTERFACE_NAME {
        return Err("the interface name is longer than 15 bytes");
    }
    if text.bytes().any(|b| b == b'/' || b.is_ascii_whitespace() || b == 0) {
        return Err("the interface name contains a slash or a space");
    }
    Ok(LocalSpec::Interface(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_the_documentation_is_read_and_printed_back() {
        for text in [
            "wlan0",
            "192.0.2.7",
            "wwan0,backup",
            "127.0.0.1=127.0.0.1:7001,backup",
            "2001:db8::1=[2001:db8::2]:443",
            "usb0,backup,radio=lte",
            "wwan0,metered",
            "usb0,limited",
            "wwan0,unmetered,radio=lte",
            "usb0,backup,metered,radio=lte",
            "127.0.0.1=127.0.0.1:7001,radio=lte,name=the-phone_2",
            "wwan0,backup,nat64=2001:db8:64::/96,name=phone",
        ] {
            let spec: PathSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
        }
        let spec: PathSpec = "[::1],backup".parse().unwrap();
        assert_eq!(spec.local, LocalSpec::Address(IpAddr::V6(core::net::Ipv6Addr::LOCALHOST)));
        assert!(spec.backup);
    }

    #[test]
    fn an_invalid_path_is_refused_with_the_reason() {
        for (text, word) in [
            ("", "missing"),
            ("=1.2.3.4:5", "missing"),
            ("wlan0,fast", "backup"),
            ("wlan0,metered,unmetered", "cannot be combined"),
            ("wlan0,radio=5g", "unknown radio"),
            ("wlan0,name=", "a name must be"),
            ("wlan0,name=<b>", "a name must be"),
            ("wlan0,backup=x", "flags are"),
            ("wlan0,nat64=64:ff9b::1/96", "an IPv6 prefix"),
            ("wlan0=nowhere", "ADDRESS:PORT"),
            ("wlan0=1.2.3.4:0", "zero"),
            ("0.0.0.0", "own"),
            ("300.1.2.3", "neither"),
            ("127.0.0.1=[::1]:7", "families"),
            ("averylonginterfacename", "15"),
            ("a b", "a slash or a space"),
        ] {
            let error = text.parse::<PathSpec>().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
