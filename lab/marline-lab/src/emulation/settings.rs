//! Current and scheduled settings of a link. `set` names only the properties that change.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use marline_emulator::LinkCommand;
use marline_link::{DuplexConfig, DuplexSpec};
use marline_time::SeedTree;

use super::script::{self, ParsedCommand};
use super::traces;

/// The descriptions of one link in order of the time at which each takes effect.
#[derive(Clone, Debug)]
pub struct Settings {
    specs: Vec<(Duration, DuplexSpec)>,
    trace_dir: Option<PathBuf>,
    seeds: SeedTree,
}

impl Settings {
    /// Creates the settings of a link with this initial description.
    #[must_use]
    pub fn new(spec: DuplexSpec, trace_dir: Option<&Path>, seeds: SeedTree) -> Settings {
        let specs = vec![(Duration::ZERO, spec)];
        Settings { specs, trace_dir: trace_dir.map(Path::to_path_buf), seeds }
    }

    /// Seeds of the link's random numbers.
    #[must_use]
    pub const fn seeds(&self) -> SeedTree {
        self.seeds
    }

    /// Initial settings of the link.
    ///
    /// # Errors
    /// A trace is missing.
    pub fn first(&self) -> anyhow::Result<DuplexConfig> {
        let (_, spec) = self.specs.first().context("the link has no description")?;
        self.resolve(spec)
    }

    /// Converts timed commands to the link's changes. Each `set` amends the result of the commands before it.
    ///
    /// # Errors
    /// A command cannot be scheduled, or a description cannot be parsed.
    pub fn schedule(
        &mut self,
        mut orders: Vec<(Duration, ParsedCommand)>,
    ) -> anyhow::Result<Vec<(Duration, LinkCommand)>> {
        orders.sort_by_key(|(at, _)| *at);
        let mut commands = Vec::new();
        for (at, order) in orders {
            commands.push((at, self.translate(at, &order)?));
        }
        Ok(commands)
    }

    /// Converts a command at a time since the link's start. A `set` amends the settings in force at that time,
    /// including earlier scheduled changes.
    ///
    /// # Errors
    /// The command is not for a link, or a description cannot be parsed.
    pub fn command(&mut self, now: Duration, order: &ParsedCommand) -> anyhow::Result<LinkCommand> {
        let command = self.translate(now, order)?;
        // Earlier settings are no longer needed.
        let past = self.specs.partition_point(|(at, _)| *at <= now);
        self.specs.drain(..past.saturating_sub(1));
        Ok(command)
    }

    fn translate(&mut self, at: Duration, order: &ParsedCommand) -> anyhow::Result<LinkCommand> {
        Ok(match order {
            ParsedCommand::Break(side) => LinkCommand::Break(*side),
            ParsedCommand::Restore(side) => LinkCommand::Restore(*side),
            ParsedCommand::Rebind => LinkCommand::Rebind,
            ParsedCommand::Set(items) => {
                let past = self.specs.partition_point(|(from, _)| *from <= at);
                let (_, current) =
                    self.specs[..past].last().context("the time is before the link's start")?;
                let spec = script::amend(current, items)?;
                let config = self.resolve(&spec)?;
                self.specs.insert(past, (at, spec));
                LinkCommand::Set(Box::new(config))
            }
            ParsedCommand::Stats | ParsedCommand::Quit => {
                bail!("this command does not apply to a single link")
            }
        })
    }

    fn resolve(&self, spec: &DuplexSpec) -> anyhow::Result<DuplexConfig> {
        traces::resolve(spec, self.trace_dir.as_deref(), &self.seeds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn set(items: &str) -> ParsedCommand {
        ParsedCommand::Set(items.to_owned())
    }

    /// Base delays in milliseconds, up and down, after a command.
    fn delays(command: &LinkCommand) -> (u128, u128) {
        let LinkCommand::Set(config) = command else { panic!("{command:?}") };
        (config.up.delay.base.as_millis(), config.down.delay.base.as_millis())
    }

    #[test]
    fn each_change_builds_on_the_settings_at_its_time() {
        let spec = "delay=1ms".parse().expect("spec");
        let mut settings = Settings::new(spec, None, SeedTree::new(1));
        let orders = vec![(4 * SECOND, set("up.delay=4ms")), (2 * SECOND, set("down.delay=2ms"))];
        let commands = settings.schedule(orders).expect("schedule");
        assert_eq!(commands.iter().map(|(at, _)| at.as_secs()).collect::<Vec<_>>(), [2, 4]);
        assert_eq!((delays(&commands[0].1), delays(&commands[1].1)), ((1, 2), (4, 2)));
        let first = settings.first().expect("first");
        assert_eq!(first.down.delay.base.as_millis(), 1);
        let by_hand = settings.command(3 * SECOND, &set("up.delay=9ms")).expect("command");
        assert_eq!(delays(&by_hand), (9, 2));
        let later = settings.command(5 * SECOND, &set("down.delay=7ms")).expect("command");
        assert_eq!(delays(&later), (4, 7));
        settings.command(6 * SECOND, &set("speed=9")).expect_err("no such item");
        settings
            .command(6 * SECOND, &ParsedCommand::Quit)
            .expect_err("does not apply to a single link");
    }
}
