//! Configuration of a whole machine's tunnel: flags of `marline up`, and the table `up` in a client's file.

use std::str::FromStr;

use anyhow::bail;
use marline_proxy::rules::Cidr;
use marline_tun::exceptions::{Destination, Exceptions};
use marline_tun::machine::routing::{BadService, RoutingSettings, Service};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::StringValue;
use super::shared::Layer;

/// A service, written as a word or, in a file, as its port number.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ServiceWord(pub Service);

impl FromStr for ServiceWord {
    type Err = BadService;

    fn from_str(text: &str) -> Result<ServiceWord, BadService> {
        text.parse().map(ServiceWord)
    }
}

impl<'de> Deserialize<'de> for ServiceWord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ServiceWord, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected PORT, \"PORT/tcp\" or \"PORT/udp\"")]
        enum Written {
            Port(u16),
            Word(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Port(port) => port.to_string(),
            Written::Word(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for ServiceWord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Service { port, transport: None } => serializer.serialize_u16(port),
            service => serializer.collect_str(&service),
        }
    }
}

/// Selection of a machine's traffic that goes through the tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct UpOptions {
    /// Network or domain to reach directly, outside the tunnel; may be repeated
    #[arg(long, value_name = "CIDR|DOMAIN")]
    #[serde(skip_serializing_if = "Layer::is_unset")]
    pub bypass: Vec<StringValue<Destination>>,
    /// Network to reach through the tunnel, with everything else, including DNS, outside it; may be repeated
    #[arg(long, value_name = "CIDR")]
    #[serde(skip_serializing_if = "Layer::is_unset")]
    pub only: Vec<StringValue<Cidr>>,
    /// Network or domain to which connections are refused; may be repeated
    #[arg(long, value_name = "CIDR|DOMAIN")]
    #[serde(skip_serializing_if = "Layer::is_unset")]
    pub block: Vec<StringValue<Destination>>,
    /// Port of a service of this machine that stays reachable from other networks, over TCP and UDP or only one
    /// protocol (22/tcp); connections that are open when the tunnel starts continue outside it; may be repeated
    #[arg(long, value_name = "PORT[/tcp|/udp]")]
    #[serde(skip_serializing_if = "Layer::is_unset")]
    pub reachable: Vec<ServiceWord>,
    /// Block all traffic outside the tunnel, even after a crash, until this program is stopped or `marline down`
    #[arg(long)]
    #[serde(skip_serializing_if = "Layer::is_unset")]
    pub kill_switch: bool,
    /// Like --kill-switch, but also before the server is reached and after this program stops, until `marline down`
    #[arg(long)]
    #[serde(skip_serializing_if = "Layer::is_unset")]
    pub lockdown: bool,
}

impl Layer for UpOptions {
    fn is_unset(&self) -> bool {
        *self == UpOptions::default()
    }

    fn with_defaults(self, lower: UpOptions) -> UpOptions {
        UpOptions {
            bypass: self.bypass.with_defaults(lower.bypass),
            only: self.only.with_defaults(lower.only),
            block: self.block.with_defaults(lower.block),
            reachable: self.reachable.with_defaults(lower.reachable),
            kill_switch: self.kill_switch.with_defaults(lower.kill_switch),
            lockdown: self.lockdown.with_defaults(lower.lockdown),
        }
    }
}

impl UpOptions {
    /// Returns the routing of traffic, and the exceptions.
    ///
    /// # Errors
    /// Contradictory options.
    pub fn plan(self) -> anyhow::Result<(RoutingSettings, Exceptions)> {
        let words = |list: Vec<StringValue<Destination>>| -> Vec<Destination> {
            list.into_iter().map(|word| word.0).collect()
        };
        let is_domain = |destination: &Destination| matches!(destination, Destination::Domain(_));
        let (direct, blocked) = (words(self.bypass), words(self.block));
        if let Some(domain) =
            direct.iter().chain(&blocked).find(|destination| is_domain(destination))
            && !self.only.is_empty()
        {
            bail!(
                "--only does not tunnel DNS, so rules for names cannot apply: remove the rule for {domain}"
            );
        }
        let exceptions = Exceptions::new(direct, blocked);
        let routing = RoutingSettings {
            direct: exceptions.direct_networks().collect(),
            has_domain_exceptions: exceptions.has_domains(),
            only: self.only.into_iter().map(|word| word.0).collect(),
            reachable: self.reachable.into_iter().map(|word| word.0).collect(),
            kill_switch: self.kill_switch || self.lockdown,
            lockdown: self.lockdown,
        };
        Ok((routing, exceptions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_need_names_that_go_through_the_tunnel() {
        let word = |text: &str| StringValue(text.parse().unwrap());
        let options = UpOptions {
            bypass: vec![word("10.0.0.0/8"), word("intranet.example")],
            ..UpOptions::default()
        };
        let (routing, _) = options.clone().plan().unwrap();
        assert_eq!(routing.direct.len(), 1);
        let only =
            UpOptions { only: vec![StringValue("192.0.2.0/24".parse().unwrap())], ..options };
        assert!(only.plan().unwrap_err().to_string().contains("intranet.example"));
    }

    #[test]
    fn a_service_word_is_a_port_with_an_optional_protocol() {
        let options: UpOptions =
            toml::from_str("reachable = [22, '22/tcp', '53/udp']\nlockdown = true").unwrap();
        let (routing, _) = options.clone().plan().unwrap();
        let shown: Vec<String> = routing.reachable.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["22", "22/tcp", "53/udp"]);
        assert!(routing.kill_switch && routing.lockdown);
        let written = toml::to_string(&options).unwrap();
        assert_eq!(toml::from_str::<UpOptions>(&written).unwrap(), options);
        for wrong in ["0", "'22/sctp'", "'/tcp'", "65536", "'ssh'", "-1"] {
            assert!(
                toml::from_str::<UpOptions>(&format!("reachable = [{wrong}]")).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn flags_replace_the_files_lists_one_by_one() {
        let word = |text: &str| vec![StringValue(text.parse().unwrap())];
        let file = UpOptions {
            bypass: word("a.example"),
            block: word("b.example"),
            ..UpOptions::default()
        };
        let flags = UpOptions { bypass: word("c.example"), ..UpOptions::default() };
        let both = flags.with_defaults(file);
        assert_eq!((both.bypass, both.block), (word("c.example"), word("b.example")));
    }
}
