//! Configuration of a whole machine's tunnel: flags of `marline up`, and the table `up` of a client's file.

use anyhow::bail;
use marline_proxy::rules::Cidr;
use marline_tun::exceptions::{Destination, Exceptions};
use marline_tun::machine::routing::RoutingSettings;
use serde::{Deserialize, Serialize};

use super::Word;
use super::shared::Layer;

/// What of a machine's traffic goes through the tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct UpOptions {
    /// Reach this network, or the names of this domain, directly; may be repeated
    #[arg(long, value_name = "CIDR|DOMAIN")]
    #[serde(skip_serializing_if = "Layer::is_unset")]
    pub bypass: Vec<Word<Destination>>,
    /// Reach only this network through the tunnel, and all else (names, too) directly; may be repeated
    #[arg(long, value_name = "CIDR")]
    #[serde(skip_serializing_if = "Layer::is_unset")]
    pub only: Vec<Word<Cidr>>,
    /// Refuse connections to this network, or the names of this domain; may be repeated
    #[arg(long, value_name = "CIDR|DOMAIN")]
    #[serde(skip_serializing_if = "Layer::is_unset")]
    pub block: Vec<Word<Destination>>,
    /// Port of a service of this machine that is reached from beyond the local network; those in use when the tunnel
    /// begins are found; may be repeated
    #[arg(long, value_name = "PORT")]
    #[serde(skip_serializing_if = "Layer::is_unset")]
    pub reachable: Vec<u16>,
    /// Let nothing past the tunnel should this program be killed, until `marline down`
    #[arg(long)]
    #[serde(skip_serializing_if = "Layer::is_unset")]
    pub kill_switch: bool,
}

impl Layer for UpOptions {
    fn is_unset(&self) -> bool {
        *self == UpOptions::default()
    }

    fn over(self, lower: UpOptions) -> UpOptions {
        UpOptions {
            bypass: self.bypass.over(lower.bypass),
            only: self.only.over(lower.only),
            block: self.block.over(lower.block),
            reachable: self.reachable.over(lower.reachable),
            kill_switch: self.kill_switch.over(lower.kill_switch),
        }
    }
}

impl UpOptions {
    /// What is led where, and the exceptions.
    ///
    /// # Errors
    /// Contradictory options.
    pub fn plan(self) -> anyhow::Result<(RoutingSettings, Exceptions)> {
        if self.reachable.contains(&0) {
            bail!("--reachable 0: ports are 1 to 65535");
        }
        let words = |list: Vec<Word<Destination>>| -> Vec<Destination> {
            list.into_iter().map(|word| word.0).collect()
        };
        let is_domain = |destination: &Destination| matches!(destination, Destination::Domain(_));
        let (direct, blocked) = (words(self.bypass), words(self.block));
        if let Some(domain) =
            direct.iter().chain(&blocked).find(|destination| is_domain(destination))
            && !self.only.is_empty()
        {
            bail!("--only leaves names as they are, so nothing can be said of those of {domain}");
        }
        let exceptions = Exceptions::new(direct, blocked);
        let routing = RoutingSettings {
            direct: exceptions.direct_networks().collect(),
            only: self.only.into_iter().map(|word| word.0).collect(),
            reachable: self.reachable,
            kill_switch: self.kill_switch,
        };
        Ok((routing, exceptions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_need_names_that_go_through_the_tunnel() {
        let word = |text: &str| Word(text.parse().unwrap());
        let options = UpOptions {
            bypass: vec![word("10.0.0.0/8"), word("intranet.example")],
            ..UpOptions::default()
        };
        let (routing, _) = options.clone().plan().unwrap();
        assert_eq!(routing.direct.len(), 1);
        let only = UpOptions { only: vec![Word("192.0.2.0/24".parse().unwrap())], ..options };
        assert!(only.plan().unwrap_err().to_string().contains("intranet.example"));
    }

    #[test]
    fn flags_replace_the_files_lists_one_by_one() {
        let word = |text: &str| vec![Word(text.parse().unwrap())];
        let file = UpOptions {
            bypass: word("a.example"),
            block: word("b.example"),
            ..UpOptions::default()
        };
        let flags = UpOptions { bypass: word("c.example"), ..UpOptions::default() };
        let both = flags.over(file);
        assert_eq!((both.bypass, both.block), (word("c.example"), word("b.example")));
    }
}
