//! Textual forms of configuration values.

use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use marline::config::{ServerAddress, TunPath};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use marline_proxy::deadlines::{self, DeadlineRule};
use marline_proxy::invite::{BadInvite, Invite};
use marline_proxy::quota::{BadQuota, ByteQuota, PerClient, exact_bytes, parse_bytes};
use marline_proxy::target::{BadTarget, Target};
use marline_tun::resolver::{self, BadResolver};

/// A value with the same string form in TOML and on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StringValue<T>(pub T);

impl<T: FromStr> FromStr for StringValue<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        text.parse().map(StringValue)
    }
}

impl<'de, T> Deserialize<'de> for StringValue<T>
where
    T: FromStr,
    T::Err: Display,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(StringValue).map_err(serde::de::Error::custom)
    }
}

impl<T: Display> Serialize for StringValue<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// A duration of at most ten years (so that sums do not overflow): `500ms`, `20s`, `10m`, `1h`, `2d`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DurationValue(pub Duration);

/// Longest duration: ten years.
const MAX_DURATION_MS: u64 = 3_650 * 86_400_000;
/// Units, of which the last that divides the value is printed. Minutes have two names, because links and experiments
/// use `min`.
const UNITS: [(&str, u64); 6] =
    [("ms", 1), ("s", 1_000), ("min", 60_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl FromStr for DurationValue {
    type Err = String;

    fn from_str(text: &str) -> Result<DurationValue, String> {
        let wrong = || {
            format!(
                "{text:?} is not a valid duration (write 500ms, 20s, 10m, 1h or 2d; ten years at most)"
            )
        };
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let factor = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1;
        let millis = number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor));
        let millis = millis.filter(|millis| *millis <= MAX_DURATION_MS);
        millis.map(|millis| DurationValue(Duration::from_millis(millis))).ok_or_else(wrong)
    }
}

impl Display for DurationValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis() as u64;
        if millis == 0 {
            return f.write_str("0s");
        }
        let fits = |(_, factor): &&(&str, u64)| millis.is_multiple_of(*factor);
        let (name, factor) = UNITS.iter().rev().find(fits).unwrap_or(&UNITS[0]);
        write!(f, "{}{name}", millis / factor)
    }
}

/// Address of a resolver. The default port is 53.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Resolver(pub SocketAddr);

impl FromStr for Resolver {
    type Err = BadResolver;

    fn from_str(text: &str) -> Result<Resolver, BadResolver> {
        resolver::parse(text).map(Resolver)
    }
}

impl Display for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Parameters of a feature, or `off`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ValueOrOff<T>(pub Option<T>);

impl<T: FromStr> FromStr for ValueOrOff<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == "off" {
            Ok(ValueOrOff(None))
        } else {
            text.parse().map(|some| ValueOrOff(Some(some)))
        }
    }
}

impl<T: Display> Display for ValueOrOff<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(some) => some.fmt(f),
            None => f.write_str("off"),
        }
    }
}

/// An invite, printed as its server's address without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InviteWord(pub Invite);

impl FromStr for InviteWord {
    type Err = BadInvite;

    fn from_str(text: &str) -> Result<Self, BadInvite> {
        text.parse().map(InviteWord)
    }
}

impl Display for InviteWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.servers.iter().map(Target::to_string).collect();
        write!(f, "(hidden: leads to {})", names.join(" "))
    }
}

/// `[ADDRESS:]PORT:HOST:PORT`, like ssh's -L.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Listening address.
    pub listen: SocketAddr,
    /// Target of the forward.
    pub target: Target,
}

impl FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Forward, String> {
        let wrong = |why: String| {
            format!("forward {text:?}: {why} (write [ADDRESS:]PORT:HOST:PORT, IPv6 in brackets)")
        };
        let parts = split_outside_brackets(text);
        let (address, port, target) = match parts[..] {
            [port, host, target_port] => ("127.0.0.1", port, (host, target_port)),
            [address, port, host, target_port] => (address, port, (host, target_port)),
            _ => return Err(wrong(format!("expected 3 or 4 parts, not {}", parts.len()))),
        };
        let port: u16 = port.parse().map_err(|_| wrong(format!("{port:?} is not a valid port")))?;
        let address = match address {
            "localhost" => Ipv4Addr::LOCALHOST.into(),
            "*" => Ipv4Addr::UNSPECIFIED.into(),
            other => {
                let bare = other.trim_start_matches('[').trim_end_matches(']');
                bare.parse().map_err(|_| wrong(format!("{other:?} is not a valid address")))?
            }
        };
        let target = format!("{}:{}", target.0, target.1);
        let target = target.parse().map_err(|error: BadTarget| wrong(error.to_string()))?;
        Ok(Forward { listen: SocketAddr::new(address, port), target })
    }
}

impl Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.listen, self.target)
    }
}

/// `ADDRESS[:PORT][=PUBLIC[:PORT]][,backup]`: an address that a server announces to clients.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SignalAddress(pub ServerAddress);

impl FromStr for SignalAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<SignalAddress, String> {
        let wrong = |why: &str| {
            format!(
                "signal {text:?}: {why} (write ADDRESS[:PORT][=PUBLIC[:PORT]][,backup], IPv6 with a \
                 port in brackets)"
            )
        };
        let (ends, backup) = match text.split_once(',') {
            None => (text, false),
            Some((ends, "backup")) => (ends, true),
            Some((_, other)) => return Err(wrong(&format!("expected `backup`, not {other:?}"))),
        };
        let (local, public) = match ends.split_once('=') {
            None => (ends, None),
            Some((local, public)) => (local, Some(public)),
        };
        let address = |text: &str| {
            let found = address_and_port(text)
                .ok_or_else(|| wrong(&format!("{text:?} is not a valid address")))?;
            match found.ip().is_unspecified() || found.ip().is_multicast() {
                true => Err(wrong(&format!("{} is not a unicast address", found.ip()))),
                false => Ok(found),
            }
        };
        let (local, advertised) = (address(local)?, public.map(address).transpose()?);
        if advertised.is_some_and(|public| public.is_ipv4() != local.is_ipv4()) {
            return Err(wrong("both must be IPv4 or both IPv6"));
        }
        let mut address = ServerAddress::new(local);
        (address.backup, address.advertised) = (backup, advertised);
        Ok(SignalAddress(address))
    }
}

impl Display for SignalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |address: SocketAddr| match address.port() {
            0 => address.ip().to_string(),
            _ => address.to_string(),
        };
        f.write_str(&show(self.0.address))?;
        if let Some(public) = self.0.advertised {
            write!(f, "={}", show(public))?;
        }
        f.write_str(if self.0.backup { ",backup" } else { "" })
    }
}

/// Bytes with a unit, such as `300MB`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        parse_bytes(text).map(Bytes).ok_or_else(|| {
            format!(
                "{text:?} is not a valid size (write a number above 0 and B, kB, MB, GB or TB, for \
                example 300MB)"
            )
        })
    }
}

impl Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&exact_bytes(self.0))
    }
}

/// `[CLIENT@]BYTES[,soft=PERCENT][,day=DAY]`: quota of clients.
pub type ClientQuota = PerClient<ByteQuota>;

/// `[CLIENT@]COUNT`: session limit of clients.
pub type SessionLimit = PerClient<usize>;

/// `PATH=BYTES[,soft=PERCENT][,day=DAY]`: quota of a path, named as in `marline path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathQuota {
    /// Name of the path.
    pub path: String,
    /// Quota of the path.
    pub quota: ByteQuota,
}

impl FromStr for PathQuota {
    type Err = String;

    fn from_str(text: &str) -> Result<PathQuota, String> {
        // The quota also contains `=`, but an IPv6 address does not.
        let (path, quota) = match text.split_once('=') {
            Some((path, quota)) if !path.is_empty() => (path.to_owned(), quota),
            _ => {
                return Err(format!(
                    "path quota {text:?}: PATH is missing (write PATH=BYTES, for example lte=10GB,day=15)"
                ));
            }
        };
        Ok(PathQuota { path, quota: quota.parse().map_err(|error: BadQuota| error.to_string())? })
    }
}

impl Display for PathQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.path, self.quota)
    }
}

/// `PORT[-PORT]=TIME`: latency requirement of applications by the port of their target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortDeadline(pub DeadlineRule);

impl PortDeadline {
    /// Returns the rules in this list.
    ///
    /// # Errors
    /// Two rules name the same port.
    pub fn rules(list: &[StringValue<PortDeadline>]) -> anyhow::Result<Vec<DeadlineRule>> {
        let rules: Vec<DeadlineRule> = list.iter().map(|word| word.0.0.clone()).collect();
        if let Some((one, other)) = DeadlineRule::conflict(&rules) {
            let [one, other] = [one, other].map(|rule| PortDeadline(rule.clone()));
            anyhow::bail!("--deadline: {one} and {other} overlap");
        }
        Ok(rules)
    }
}

impl FromStr for PortDeadline {
    type Err = String;

    fn from_str(text: &str) -> Result<PortDeadline, String> {
        let wrong = |why: &str| {
            format!(
                "deadline {text:?}: {why} (write PORT=TIME or FIRST-LAST=TIME, for example 22=80ms)"
            )
        };
        let (ports, within) = text.split_once('=').ok_or_else(|| wrong("the time is missing"))?;
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
        let ports = port(first).zip(port(last)).filter(|(first, last)| first <= last);
        let (first, last) = ports.ok_or_else(|| wrong("ports must be 1 to 65535"))?;
        let DurationValue(within) = within.parse().map_err(|why: String| wrong(&why))?;
        let (least, most) = deadlines::RANGE;
        if within < least || within > most {
            return Err(wrong("the deadline must be between 1ms and 10s"));
        }
        Ok(PortDeadline(DeadlineRule { first, last, within }))
    }
}

impl Display for PortDeadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeadlineRule { first, last, within } = self.0;
        match first == last {
            true => write!(f, "{first}={}", DurationValue(within)),
            false => write!(f, "{first}-{last}={}", DurationValue(within)),
        }
    }
}

/// `INTERFACE=ADDRESS`: a TUN interface and the address of the host behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tun(pub TunPath);

impl FromStr for Tun {
    type Err = String;

    fn from_str(text: &str) -> Result<Tun, String> {
        let wrong = || format!("tun {text:?}: write INTERFACE=ADDRESS");
        let (interface, address) = text.split_once('=').ok_or_else(wrong)?;
        // Linux: IFNAMSIZ, including the terminating zero.
        if interface.is_empty() || interface.len() > 15 || interface.contains('/') {
            return Err(format!("tun {text:?}: {interface:?} is not a valid interface name"));
        }
        let address = address.parse().map_err(|_| wrong())?;
        Ok(Tun(TunPath::new(interface.to_owned(), address)))
    }
}

impl Display for Tun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.0.interface, self.0.address)
    }
}

/// Returns an address with a port, or without (port 0).
fn address_and_port(text: &str) -> Option<SocketAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let alone = bare.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 0));
    alone.or_else(|| text.parse().ok())
}

fn split_outside_brackets(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.split(|c| {
        inside = (inside || c == '[') && c != ']';
        c == ':' && !inside
    })
    .collect()
}
