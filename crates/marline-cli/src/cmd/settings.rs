//! Configuration of a running program, and its reload on SIGHUP or through the control socket.
//!
//! A reload repeats all checks of a start, and changes nothing on any error. Settings that cannot change in a
//! running program (its ports, its carrier, its key) are named in the log and in the answer, and keep their values.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};
use std::time::Duration;

use marline_proxy::secret::hide_invites;
use marline_proxy::shutdown::Reload;

use crate::config::client::{ClientOptions, ClientPlan};
use crate::config::effects::{Effect, Reloadable};
use crate::config::machine::{MachineOptions, MachinePlan};
use crate::config::program::ProgramOptions;
use crate::config::serve::{ServeOptions, ServePlan};
use crate::config::server::{ServerOptions, ServerPlan};
use crate::config::shared::RuntimeOptions;
use crate::control::protocol::{PendingSetting, Reloaded};
use crate::reload::{Reloads, ReplySender};
use crate::{log, service};

/// Longest displayed value of a setting, in characters.
const MAX_VALUE_CHARS: usize = 120;

/// Options of a long-running program.
pub(super) trait Options: Reloadable {
    /// Complete configuration that results from the options.
    type Plan;

    /// Merges these flags with the file. Returns the plan, and all effective settings as a table.
    fn read(&self, file: Option<&Path>) -> anyhow::Result<(Self::Plan, toml::Table)>;

    /// Returns the monitoring and shutdown options of a plan.
    fn runtime(plan: &Self::Plan) -> &RuntimeOptions;
}

/// Implements [`Options`] for options that merge flags and file themselves. `runtime` names the field of the plan.
macro_rules! options {
    ($options:ty, $plan:ty, $($runtime:ident).+) => {
        impl Options for $options {
            type Plan = $plan;

            fn read(&self, file: Option<&Path>) -> anyhow::Result<($plan, toml::Table)> {
                let options = self.clone().with_file(file)?;
                let in_force = toml::Table::try_from(options.clone().into_effective())?;
                Ok((options.plan()?, in_force))
            }

            fn runtime(plan: &$plan) -> &RuntimeOptions {
                &plan.$($runtime).+
            }
        }
    };
}

options!(ClientOptions, ClientPlan, runtime);
options!(ServeOptions, ServePlan, runtime);
options!(MachineOptions, MachinePlan, client.runtime);
options!(ProgramOptions, ClientPlan, runtime);

impl Options for ServerOptions {
    type Plan = ServerPlan;

    fn read(&self, file: Option<&Path>) -> anyhow::Result<(ServerPlan, toml::Table)> {
        let file = file.unwrap_or(Path::new(""));
        let options = self.clone().with_defaults(ServerOptions::from_file(file)?);
        let in_force = toml::Table::try_from(options.clone().into_effective(file))?;
        Ok((options.plan(file)?, in_force))
    }

    fn runtime(plan: &ServerPlan) -> &RuntimeOptions {
        &plan.runtime
    }
}

/// A running program whose configuration can be reloaded. `apply` applies the settings that can change, or fails
/// without a change.
pub(super) struct LiveSettings<O, F> {
    settings: Settings<O>,
    apply: F,
    reloads: Reloads,
    /// The requester of the next reload; `None` for a signal.
    requester: Option<ReplySender>,
    /// True if the program notifies the service manager, if there is one.
    is_service: bool,
}

impl<O: Options, F: FnMut(&O::Plan) -> anyhow::Result<()>> LiveSettings<O, F> {
    pub(super) fn new(settings: Settings<O>, reloads: Reloads, apply: F) -> Self {
        LiveSettings { settings, apply, reloads, requester: None, is_service: true }
    }

    /// Disables notifications of the service manager, for a program that is not itself the service.
    pub(super) fn without_service_notices(self) -> Self {
        LiveSettings { is_service: false, ..self }
    }
}

impl<O: Options, F: FnMut(&O::Plan) -> anyhow::Result<()>> Reload for LiveSettings<O, F> {
    fn poll_reload_request(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.reloads.poll_next(cx).map(|asker| self.requester = Some(asker))
    }

    fn reload(&mut self) {
        if self.is_service {
            service::reloading();
        }
        let asker = self.requester.take();
        let by = if asker.is_some() { "reload" } else { "SIGHUP" };
        let outcome = self.settings.reload_plan(by, &mut self.apply);
        if let Some(asker) = asker {
            // The requester may have disconnected.
            let _ = asker.send(outcome);
        }
        if self.is_service {
            service::notify_ready();
        }
    }

    /// Returns the drain time. Called once, when the shutdown begins.
    fn patience(&self) -> Duration {
        service::notify_stopping();
        self.settings.drain
    }
}

/// Source of a running program's configuration, and the settings in force.
#[derive(Clone, Debug)]
pub(super) struct Settings<O> {
    flags: O,
    file: Option<PathBuf>,
    in_force: toml::Table,
    drain: Duration,
}

impl<O: Options> Settings<O> {
    /// Reads the configuration for the first time.
    ///
    /// # Errors
    /// The error in the configuration, and its location.
    pub(super) fn read(flags: O, file: Option<PathBuf>) -> anyhow::Result<(Self, O::Plan)> {
        let (plan, in_force) = flags.read(file.as_deref())?;
        let runtime = O::runtime(&plan);
        log::set_level(runtime.log);
        log::set_connection_logging(runtime.log_connections);
        let drain = runtime.drain;
        Ok((Settings { flags, file, in_force, drain }, plan))
    }

    /// Reads the configuration again and applies it. On any error nothing changes. `by` is the source of the request,
    /// for the log.
    fn reload_plan(
        &mut self,
        by: &str,
        apply: impl FnOnce(&O::Plan) -> anyhow::Result<()>,
    ) -> Result<Reloaded, String> {
        let read = self.flags.read(self.file.as_deref());
        match read.and_then(|(plan, wanted)| apply(&plan).map(|()| (plan, wanted))) {
            Ok((plan, wanted)) => {
                let runtime = O::runtime(&plan);
                log::set_level(runtime.log);
                log::set_connection_logging(runtime.log_connections);
                self.drain = runtime.drain;
                Ok(self.take_over(by, wanted))
            }
            Err(error) => {
                let error = format!("{error:#}");
                let error = hide_invites(&error);
                tracing::error!("{by}: reload failed; keeping current configuration: {error}");
                Err(error)
            }
        }
    }

    /// Records the settings in force and reports those that need a restart.
    fn take_over(&mut self, by: &str, mut wanted: toml::Table) -> Reloaded {
        let reloaded = differences::<O>(&self.in_force, &wanted);
        let taken = [&reloaded.at_once, &reloaded.for_new, &reloaded.elsewhere];
        for setting in taken.into_iter().flatten() {
            match wanted.remove(setting) {
                Some(value) => self.in_force.insert(setting.clone(), value),
                None => self.in_force.remove(setting),
            };
        }
        let mut new = [&reloaded.at_once[..], &reloaded.for_new[..]].concat();
        new.sort();
        match new.is_empty() {
            true => tracing::info!("{by}: configuration reloaded"),
            false => tracing::info!("{by}: configuration reloaded; changed: {}", new.join(", ")),
        }
        if !reloaded.restart.is_empty() {
            let each: Vec<String> = reloaded.restart.iter().map(PendingSetting::text).collect();
            tracing::warn!("{by}: changed settings that need a restart: {}", each.join("; "));
        }
        reloaded
    }
}

/// Returns settings whose values differ, grouped by when the new values take effect.
fn differences<O: Reloadable>(old: &toml::Table, new: &toml::Table) -> Reloaded {
    let settings: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let mut reloaded = Reloaded::default();
    for setting in settings.into_iter().filter(|key| old.get(*key) != new.get(*key)) {
        match O::effect(setting) {
            Effect::AtOnce => reloaded.at_once.push(setting.clone()),
            Effect::New => reloaded.for_new.push(setting.clone()),
            Effect::OtherCommand => reloaded.elsewhere.push(setting.clone()),
            Effect::Restart => reloaded.restart.push(PendingSetting {
                setting: setting.clone(),
                in_force: old.get(setting).map(display_value),
                wanted: new.get(setting).map(display_value),
            }),
        }
    }
    reloaded
}

/// Returns a value for display, without secrets: an invite is printed without its token.
fn display_value(value: &toml::Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_VALUE_CHARS) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_settings_are_sorted_by_whether_they_can_reload() {
        let table = |text: &str| text.parse::<toml::Table>().unwrap();
        let old = table("allow = ['10.0.0.0/8']\ndrain = '5s'\nshards = 1\ncarrier = 'x'");
        let new = table("deny = ['10.0.0.0/8']\ndrain = '6s'\nshards = 2\npublic = ['a:1']");
        let told = differences::<ServerOptions>(&old, &new);
        assert_eq!(told.for_new.join(" "), "allow deny");
        assert_eq!(told.at_once.join(" "), "drain");
        assert_eq!(told.elsewhere.join(" "), "public");
        let restart: Vec<String> = told.restart.iter().map(PendingSetting::text).collect();
        assert_eq!(
            restart,
            ["carrier (running: \"x\", configured: nothing)", "shards (running: 1, configured: 2)"]
        );
    }

    #[test]
    fn long_values_are_truncated() {
        let long = toml::Value::String("ä".repeat(500));
        assert_eq!(display_value(&long).chars().count(), MAX_VALUE_CHARS + 3);
    }

    #[test]
    fn an_invalid_file_changes_no_setting() {
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
        for (bad, says) in [
            ("listen = [", "line 1"),
            ("listen = ['127.0.0.1:1']", "no service"),
            ("nonsense = 1", "nonsense"),
        ] {
            write(bad);
            let error = settings.reload_plan("test", |_| panic!("applied")).unwrap_err();
            assert!(error.contains(says), "{error}");
            assert_eq!(settings.drain.as_secs(), 7);
        }
        write("listen = ['127.0.0.1:9']\nto = '127.0.0.1:3'\ndrain = '8s'");
        let refused = settings.reload_plan("test", |_| anyhow::bail!("not now"));
        assert_eq!((refused.unwrap_err().as_str(), settings.drain.as_secs()), ("not now", 7));
        let mut to = String::new();
        let told = settings.reload_plan("test", |plan| {
            to = plan.backend.to_string();
            Ok(())
        });
        assert_eq!((settings.drain.as_secs(), to.as_str()), (8, "127.0.0.1:3"));
        // A setting that needs a restart is reported at every reload until then.
        assert_eq!(told.unwrap().restart[0].setting, "listen");
        assert_eq!(settings.in_force["listen"][0].as_str(), Some("127.0.0.1:1"));
        let again = settings.reload_plan("test", |_| Ok(())).unwrap();
        assert_eq!((again.restart.len(), again.at_once.len() + again.for_new.len()), (1, 0));
    }
}
