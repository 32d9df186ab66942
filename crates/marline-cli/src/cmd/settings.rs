//! Configuration of a running program, and its reload on SIGHUP.
//!
//! A reload repeats all checks of a start; on any error nothing changes. Settings that cannot
//! change in a running program (its ports, its carrier, its key) are named in the log and keep
//! their values.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use marline_proxy::secret::hide;
use marline_proxy::shutdown::Reload;

use crate::config::client::{ClientOptions, ClientPlan};
use crate::config::serve::{ServeOptions, ServePlan};
use crate::config::server::{ServerOptions, ServerPlan};
use crate::config::shared::RuntimeOptions;
use crate::{log, service};

/// Options of a program that runs on.
pub(super) trait Options {
    /// What it runs with.
    type Plan;
    /// The keys whose change a running program takes over.
    const LIVE: &'static [&'static str];

    /// These flags above the file: what to run with, and all that is in force, key by key.
    fn read(&self, file: Option<&Path>) -> anyhow::Result<(Self::Plan, toml::Table)>;

    /// How it is watched and ended.
    fn runtime(plan: &Self::Plan) -> &RuntimeOptions;
}

impl Options for ClientOptions {
    type Plan = ClientPlan;
    const LIVE: &'static [&'static str] =
        &["invite", "invite-file", "warm", "max-connections", "drain", "log"];

    fn read(&self, file: Option<&Path>) -> anyhow::Result<(ClientPlan, toml::Table)> {
        let options = self.clone().with_file(file)?;
        let in_force = toml::Table::try_from(options.clone().effective())?;
        Ok((options.plan()?, in_force))
    }

    fn runtime(plan: &ClientPlan) -> &RuntimeOptions {
        &plan.runtime
    }
}

impl Options for ServerOptions {
    type Plan = ServerPlan;
    const LIVE: &'static [&'static str] =
        &["allow", "deny", "allow-remote", "max-connections", "drain", "log"];

    fn read(&self, file: Option<&Path>) -> anyhow::Result<(ServerPlan, toml::Table)> {
        let file = file.unwrap_or(Path::new(""));
        let options = self.clone().over(ServerOptions::from_file(file)?);
        let in_force = toml::Table::try_from(options.clone().effective(file))?;
        Ok((options.plan(file)?, in_force))
    }

    fn runtime(plan: &ServerPlan) -> &RuntimeOptions {
        &plan.runtime
    }
}

impl Options for ServeOptions {
    type Plan = ServePlan;
    const LIVE: &'static [&'static str] = &[
        "to",
        "proxy-protocol",
        "max-connections",
        "max-per-source",
        "idle-timeout",
        "connect-timeout",
        "drain",
        "log",
    ];

    fn read(&self, file: Option<&Path>) -> anyhow::Result<(ServePlan, toml::Table)> {
        let options = self.clone().with_file(file)?;
        let in_force = toml::Table::try_from(options.clone().effective())?;
        Ok((options.plan()?, in_force))
    }

    fn runtime(plan: &ServePlan) -> &RuntimeOptions {
        &plan.runtime
    }
}

/// A running program that signals may have read its configuration again; `apply` brings into force what
/// can change.
pub(super) struct Live<O, F> {
    pub(super) settings: Settings<O>,
    pub(super) apply: F,
}

impl<O: Options, F: FnMut(&O::Plan) -> anyhow::Result<()>> Reload for Live<O, F> {
    fn reload(&mut self) {
        service::reloading();
        self.settings.reread(&mut self.apply);
        service::ready();
    }

    /// Asked once, when the end begins.
    fn patience(&self) -> Duration {
        service::stopping();
        self.settings.drain
    }
}

/// Where a running program's configuration comes from, and what of it is in force.
#[derive(Clone, Debug)]
pub(super) struct Settings<O> {
    flags: O,
    file: Option<PathBuf>,
    in_force: toml::Table,
    drain: Duration,
}

impl<O: Options> Settings<O> {
    /// Reads it for the first time.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub(super) fn read(flags: O, file: Option<PathBuf>) -> anyhow::Result<(Self, O::Plan)> {
        let (plan, in_force) = flags.read(file.as_deref())?;
        let runtime = O::runtime(&plan);
        log::set_level(runtime.log);
        log::tell_connections(runtime.log_connections);
        let drain = runtime.drain;
        Ok((Settings { flags, file, in_force, drain }, plan))
    }

    /// Reads it again and has it applied. If anything is wrong, nothing is.
    fn reread(&mut self, apply: impl FnOnce(&O::Plan) -> anyhow::Result<()>) {
        let read = self.flags.read(self.file.as_deref());
        match read.and_then(|(plan, wanted)| apply(&plan).map(|()| (plan, wanted))) {
            Ok((plan, wanted)) => {
                let runtime = O::runtime(&plan);
                log::set_level(runtime.log);
                log::tell_connections(runtime.log_connections);
                self.drain = runtime.drain;
                self.take_over(wanted);
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!("SIGHUP: what was in force stays: {}", hide(&error));
            }
        }
    }

    /// Notes what is in force now and tells what is not.
    fn take_over(&mut self, mut wanted: toml::Table) {
        let (live, later) = differences(&self.in_force, &wanted, O::LIVE);
        for key in &live {
            match wanted.remove(key) {
                Some(value) => self.in_force.insert(key.clone(), value),
                None => self.in_force.remove(key),
            };
        }
        match live.is_empty() {
            true => tracing::info!("SIGHUP: configuration read again"),
            false => tracing::info!("SIGHUP: configuration read again, new: {}", live.join(", ")),
        }
        if !later.is_empty() {
            let later = later.join(", ");
            tracing::warn!("SIGHUP: these changed too, and need a restart: {later}");
        }
    }
}

/// The keys whose values differ: those that can change in a running program, and the others.
fn differences(old: &toml::Table, new: &toml::Table, live: &[&str]) -> (Vec<String>, Vec<String>) {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let changed = keys.into_iter().filter(|key| old.get(*key) != new.get(*key));
    changed.cloned().partition(|key| live.contains(&key.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_come_go_or_change_are_told_apart_by_whether_they_can() {
        let table = |text: &str| text.parse::<toml::Table>().unwrap();
        let old = table("allow = ['10.0.0.0/8']\ndrain = '5s'\nshards = 1\npcap = 'x'");
        let new = table("deny = ['10.0.0.0/8']\ndrain = '5s'\nshards = 2");
        let (live, later) = differences(&old, &new, ServerOptions::LIVE);
        assert_eq!((live.join(" "), later.join(" ")), ("allow deny".into(), "pcap shards".into()));
    }

    /// Every key that is said to be live is one.
    #[test]
    fn live_keys_exist() {
        fn keys_of<O: clap::Args>() -> Vec<String> {
            let command = O::augment_args(clap::Command::new("test"));
            command.get_arguments().filter_map(|a| a.get_long().map(str::to_owned)).collect()
        }
        for (keys, live) in [
            (keys_of::<ClientOptions>(), ClientOptions::LIVE),
            (keys_of::<ServerOptions>(), ServerOptions::LIVE),
            (keys_of::<ServeOptions>(), ServeOptions::LIVE),
        ] {
            for key in live {
                assert!(keys.iter().any(|known| known == key), "{key} is none of {keys:?}");
            }
        }
    }

    #[test]
    fn what_is_wrong_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("serve.toml");
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        write("listen = ['127.0.0.1:1']\nto = '127.0.0.1:2'\ndrain = '7s'");
        let (mut settings, plan) =
            Settings::read(ServeOptions::default(), Some(file.clone())).unwrap();
        assert_eq!(
            (settings.drain.as_secs(), plan.backend.to_string().as_str()),
            (7, "127.0.0.1:2")
        );
        for bad in ["listen = [", "listen = ['127.0.0.1:1']", "nonsense = 1"] {
            write(bad);
            settings.reread(|_| panic!("applied"));
            assert_eq!(settings.drain.as_secs(), 7);
        }
        write("listen = ['127.0.0.1:9']\nto = '127.0.0.1:3'\ndrain = '8s'");
        let mut to = String::new();
        settings.reread(|plan| {
            to = plan.backend.to_string();
            Ok(())
        });
        assert_eq!((settings.drain.as_secs(), to.as_str()), (8, "127.0.0.1:3"));
        // What needs a restart is told again each time: it is still not in force.
        assert_eq!(settings.in_force["listen"][0].as_str(), Some("127.0.0.1:1"));
    }
}
