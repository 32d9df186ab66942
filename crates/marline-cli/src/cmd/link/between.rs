//! Links between two network namespaces.

use std::time::Duration;

use anyhow::{Context, bail};
use marline_lab::net::{LinkOptions, Links, Scheduled};

use super::Args;
use crate::cmd::conduct::{Answer, Conducted, Stats};
use crate::emulation::script::{Line, line_at};

/// Running links.
#[derive(Debug)]
pub(super) struct Between(Links);

impl Between {
    pub(super) fn start(args: &Args) -> anyhow::Result<Between> {
        let [client, server] = &args.between[..] else { bail!("--between takes two namespaces") };
        let options = LinkOptions {
            seed: args.seed,
            trace_dir: args.trace_dir.clone(),
            spin: Duration::from_micros(args.conduct.spin_us),
        };
        let scheduled = |text: &String| {
            let (at, path, order) = line_at(text)?;
            Ok(Scheduled { at, path, order })
        };
        let schedule = args.at.iter().map(scheduled).collect::<anyhow::Result<Vec<_>>>();
        let schedule = schedule.context("--at")?;
        let links = Links::join([client, server], &args.path, schedule, &options)?;
        links.set_up()?;
        Ok(Between(links))
    }

    /// The paths, for people.
    pub(super) fn names(&self) -> String {
        let names: Vec<&str> = self.0.paths().iter().map(|path| path.name.as_str()).collect();
        names.join(", ")
    }
}

impl Conducted for Between {
    fn obey(&self, line: &str) -> anyhow::Result<Answer> {
        match line.parse()? {
            Line::Path(path, order) => self.0.order(&path, &order)?,
            Line::Stats => return self.stats().map(Answer::Stats),
            Line::Quit => return Ok(Answer::Quit),
        }
        Ok(Answer::Done)
    }

    fn stats(&self) -> anyhow::Result<Stats> {
        self.0.report().map(Stats::Many)
    }
}
