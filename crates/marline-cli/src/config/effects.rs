//! Effect of changing a setting while the program runs: immediate, for new connections, or after a restart.
//!
//! Every setting of a configuration file appears once in the table of its command. A test compares the tables with
//! the flags, and docs/reference/configuration.md is generated from both.

use super::client::ClientOptions;
use super::machine::MachineOptions;
use super::program::ProgramOptions;
use super::serve::ServeOptions;
use super::server::ServerOptions;

/// Time at which a change of a setting takes effect.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Immediately, also for existing connections.
    AtOnce,
    /// For new connections, sessions and requests.
    New,
    /// After a restart of the program.
    Restart,
    /// When another command reads the setting. Never in the running program.
    OtherCommand,
}

impl Effect {
    /// Returns the text form in the documentation.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Effect::AtOnce => "at once",
            Effect::New => "new connections",
            Effect::Restart => "restart",
            Effect::OtherCommand => "another command",
        }
    }
}

use Effect::{AtOnce, New, OtherCommand, Restart};

/// Settings and their effects.
pub type Effects = &'static [(&'static str, Effect)];

/// Options whose settings have effects.
pub trait Reloadable {
    /// Settings that only this command has.
    const OWN: Effects;

    /// Returns the effect of changing this setting. A setting in no table needs a restart.
    #[must_use]
    fn effect(setting: &str) -> Effect {
        let known = Self::OWN.iter().chain(SHARED).find(|(name, _)| *name == setting);
        known.map_or(Restart, |(_, effect)| *effect)
    }
}

/// Settings of all commands.
pub const SHARED: Effects = &[
    ("mode", New),
    ("scheduler", New),
    ("congestion", New),
    ("recovery", New),
    ("path-health", Restart),
    ("linger", New),
    ("carrier", Restart),
    ("tun", Restart),
    ("memory", AtOnce),
    ("dss-checksum", New),
    ("drain", AtOnce),
    ("pcap", AtOnce),
    ("pcap-secrets", AtOnce),
    ("qlog", New),
    ("metrics", AtOnce),
    ("dashboard", AtOnce),
    ("dashboard-token-file", AtOnce),
    ("control", AtOnce),
    ("log-connections", AtOnce),
    ("log", AtOnce),
];

impl Reloadable for ClientOptions {
    const OWN: Effects = &[
        ("invite", New),
        ("invite-file", New),
        ("direct", Restart),
        ("fast-open", New),
        ("path", AtOnce),
        ("path-quota", AtOnce),
        ("socks5", AtOnce),
        ("local-forward", AtOnce),
        ("remote-forward", Restart),
        ("transparent", Restart),
        ("udp-forward", Restart),
        ("share", AtOnce),
        ("path-manager", New),
        ("datagram-policy", New),
        ("deadline", New),
        ("warm", AtOnce),
        ("max-connections", AtOnce),
        ("dns", OtherCommand),
        ("keepalive", Restart),
        ("busy-poll", Restart),
        ("receive-timer", New),
        ("lone-keepalive", New),
        ("wifi-signal", AtOnce),
        ("state-file", Restart),
        ("up", OtherCommand),
    ];
}

impl Reloadable for ServerOptions {
    const OWN: Effects = &[
        ("listen", Restart),
        ("advertise", Restart),
        ("public", OtherCommand),
        ("key-file", Restart),
        ("credentials-file", Restart),
        ("allow", New),
        ("deny", New),
        ("allow-remote", AtOnce),
        ("datagram-policy", New),
        ("udp-filter", New),
        ("deadline", New),
        ("shards", Restart),
        ("busy-poll", Restart),
        ("upgrade-limit", AtOnce),
        ("max-connections", New),
        ("max-sessions", New),
        ("quota", AtOnce),
        ("state-file", Restart),
    ];
}

impl Reloadable for ServeOptions {
    const OWN: Effects = &[
        ("listen", Restart),
        ("advertise", Restart),
        ("to", New),
        ("signal", Restart),
        ("fast-open", New),
        ("shards", Restart),
        ("no-offload", Restart),
        ("proxy-protocol", New),
        ("max-connections", New),
        ("max-per-source", New),
        ("idle-timeout", New),
        ("connect-timeout", New),
        ("upgrade-limit", AtOnce),
        ("keepalive", New),
    ];
}

/// Settings of a client, some of which have a different effect in `marline up`.
impl Reloadable for MachineOptions {
    const OWN: Effects = &of_led(OtherCommand, Restart);
}

/// Settings of a client, with their effects in `marline run`.
impl Reloadable for ProgramOptions {
    const OWN: Effects = &of_led(Restart, OtherCommand);
}

/// Effects of a client's settings if traffic arrives through the program's own interface.
const fn of_led(direct: Effect, up: Effect) -> [(&'static str, Effect); 25] {
    [
        ("invite", New),
        ("invite-file", New),
        ("direct", direct),
        ("path", AtOnce),
        ("path-quota", AtOnce),
        ("path-manager", New),
        ("datagram-policy", New),
        ("deadline", New),
        ("warm", AtOnce),
        ("receive-timer", New),
        ("lone-keepalive", New),
        ("wifi-signal", AtOnce),
        ("max-connections", Restart),
        ("dns", Restart),
        ("keepalive", Restart),
        ("busy-poll", Restart),
        ("state-file", Restart),
        ("up", up),
        ("socks5", OtherCommand),
        ("local-forward", OtherCommand),
        ("remote-forward", OtherCommand),
        ("transparent", OtherCommand),
        ("udp-forward", OtherCommand),
        ("share", OtherCommand),
        ("fast-open", OtherCommand),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the settings of a command's file: its flags and its tables.
    fn settings_of<O: clap::Args>(tables: &[&str]) -> Vec<String> {
        let command = O::augment_args(clap::Command::new("test"));
        let flags = command.get_arguments().filter_map(|a| a.get_long().map(str::to_owned));
        flags.chain(tables.iter().map(|table| (*table).to_owned())).collect()
    }

    /// Checks that every setting has an effect, and every effect belongs to a setting.
    fn assert_complete<O: clap::Args + Reloadable>(tables: &[&str]) {
        let settings = settings_of::<O>(tables);
        let known: Vec<&str> = O::OWN.iter().chain(SHARED).map(|(name, _)| *name).collect();
        for setting in &settings {
            let count = known.iter().filter(|name| *name == setting).count();
            assert_eq!(count, 1, "{setting} occurs {count} times in the tables");
        }
        for name in known {
            assert!(settings.iter().any(|setting| setting == name), "{name} is not a setting");
        }
    }

    #[test]
    fn every_setting_has_an_effect() {
        assert_complete::<ClientOptions>(&["up"]);
        assert_complete::<ServerOptions>(&[]);
        assert_complete::<ServeOptions>(&[]);
        // The configuration file is that of a client.
        let names = |effects: Effects| {
            effects.iter().map(|(name, _)| *name).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(names(MachineOptions::OWN), names(ClientOptions::OWN));
        assert_eq!(names(ProgramOptions::OWN), names(ClientOptions::OWN));
    }
}
