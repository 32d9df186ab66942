//! An experiment as a TOML file: a scenario, what is done, who does it, and what goes wrong.
//!
//! docs/lab.md teaches it. Whatever is wrong with a file is said with its line, what there is
//! instead, and what was probably meant; everything that can be found is found at once.

mod check;
mod complaint;
mod sweep;
#[cfg(test)]
mod tests;
mod values;

use std::path::{Path as FilePath, PathBuf};

use anyhow::{Context, bail, ensure};
use marline::BufferTuning;
use serde::Deserialize;

use self::complaint::{Complaint, Place, told};
use self::values::{Bytes, Span, Time};
use super::{Experiment, Stack, Variant};
use crate::scenario::{Event, Host, Path, Scenario};

pub use self::sweep::Point;

/// A file that has been read and checked.
#[derive(Clone, Debug)]
pub struct ExperimentFile {
    /// What it is about, in a few words.
    pub title: String,
    /// Links, what is done, what happens.
    pub experiment: Experiment,
    /// Who does it.
    pub contestants: Vec<Contestant>,
    name: String,
    text: String,
    axes: Vec<sweep::Axis>,
}

/// A variant and where it takes part.
#[derive(Clone, Debug, PartialEq)]
pub struct Contestant {
    /// Policies, paths, buffers.
    pub variant: Variant,
    /// On which stacks.
    pub stacks: Vec<Stack>,
}

/// One line of the results: a variant on a stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    /// Whose TCP.
    pub stack: Stack,
    /// With what. Kernel TCP has one path.
    pub variant: Variant,
}

/// The file as serde sees it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    title: Option<String>,
    seed: Option<u64>,
    warm_up: Option<Time>,
    patience: Option<Time>,
    #[serde(default, rename = "path")]
    paths: Vec<Path>,
    #[serde(default)]
    client: Host,
    #[serde(default)]
    server: Host,
    #[serde(default, rename = "event")]
    events: Vec<Event>,
    #[serde(default, rename = "fault")]
    faults: Vec<RawFault>,
    workload: RawWorkload,
    #[serde(default, rename = "variant")]
    variants: Vec<RawVariant>,
    /// Read by itself.
    #[serde(default, rename = "sweep")]
    _sweep: toml::Table,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWorkload {
    kind: String,
    bytes: Option<Span<Bytes>>,
    request: Option<Bytes>,
    answer: Option<Bytes>,
    pieces: Option<Span<Bytes>>,
    unanswered: Option<Bytes>,
    gap: Option<Span<Time>>,
    count: Option<u32>,
    lasts: Option<Time>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFault {
    path: String,
    #[serde(default = "down")]
    command: String,
    /// In this burst ...
    burst: Option<usize>,
    /// ... so long after its beginning.
    after: Option<Span<Time>>,
    /// Somewhere between the beginning of this burst and the next's.
    around_burst: Option<usize>,
    /// Between these times after the start.
    between: Option<Span<Time>>,
    lasts: Option<Time>,
}

fn down() -> String {
    "down".to_owned()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawVariant {
    name: String,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    backup: Vec<String>,
    #[serde(default)]
    plain: bool,
    scheduler: Option<String>,
    path_manager: Option<String>,
    congestion: Option<String>,
    recovery: Option<String>,
    send_buffer: Option<Bytes>,
    receive_buffer: Option<Bytes>,
    buffer_tuning: Option<RawTuning>,
    #[serde(default)]
    unpaced: bool,
    mode: Option<String>,
    receive_timer: Option<String>,
    lone_keepalive: Option<String>,
    #[serde(default)]
    repair: bool,
    stacks: Option<Vec<Stack>>,
}

/// Words of [`BufferTuning`].
#[derive(Copy, Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RawTuning {
    Fixed,
    Windows,
    Rates,
}

impl From<RawTuning> for BufferTuning {
    fn from(raw: RawTuning) -> Self {
        match raw {
            RawTuning::Fixed => BufferTuning::Fixed,
            RawTuning::Windows => BufferTuning::Windows,
            RawTuning::Rates => BufferTuning::Rates,
        }
    }
}

/// The hosts of a scenario file, or of an experiment: it is one with more in it.
///
/// # Errors
/// What is wrong and where.
pub fn hosts(file: &FilePath) -> anyhow::Result<Scenario> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(|| name.clone())?;
    match text.parse::<toml::Table>() {
        Ok(table) if table.contains_key("workload") => {
            Ok(ExperimentFile::from_toml(&name, &text)?.experiment.hosts())
        }
        _ => check::scenario(&text).map_err(|wrong| anyhow::anyhow!(told(&name, &text, &wrong))),
    }
}

impl ExperimentFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// What is wrong, where, and what would be right.
    pub fn open(file: &FilePath) -> anyhow::Result<ExperimentFile> {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).with_context(|| name.clone())?;
        ExperimentFile::from_toml(&name, &text)
    }

    /// The same from its text.
    ///
    /// # Errors
    /// What is wrong, where, and what would be right.
    pub fn from_toml(name: &str, text: &str) -> anyhow::Result<ExperimentFile> {
        let read = || -> Result<ExperimentFile, Vec<Complaint>> {
            let raw: Raw = toml::from_str(text).map_err(|error| vec![error.into()])?;
            let mut file = check::checked(raw, text)?;
            name.clone_into(&mut file.name);
            text.clone_into(&mut file.text);
            file.axes = sweep::axes(text)?;
            // Values that are wrong are wrong now, not after an hour.
            for axis in &file.axes {
                for value in &axis.values {
                    let swept = sweep::applied(text, &[(axis, value)]);
                    swept.map_err(|what| {
                        let place = Place::top("sweep").key(&axis.key);
                        vec![Complaint::new(text, &place, what)]
                    })?;
                }
            }
            Ok(file)
        };
        read().map_err(|complaints| anyhow::anyhow!(told(name, text, &complaints)))
    }

    /// Where traces are that its links name.
    #[must_use]
    pub fn with_traces(mut self, directory: Option<PathBuf>) -> ExperimentFile {
        self.experiment.trace_dir = directory;
        self
    }

    /// Every combination of the values of `[sweep]`, the last key changing fastest; without one, the
    /// file itself.
    ///
    /// # Errors
    /// A combination makes no experiment.
    pub fn points(&self) -> anyhow::Result<Vec<Point>> {
        sweep::points(&self.name, &self.text, &self.axes, self.experiment.trace_dir.as_ref())
    }

    /// Who runs on these stacks, in the order of the file. Where no variant names a stack of the
    /// kernel, the kernel takes part as it is.
    ///
    /// # Errors
    /// Nobody does; or the kernel's buffers would have to be guessed.
    pub fn lanes(&self, stacks: &[Stack]) -> anyhow::Result<Vec<Lane>> {
        let mut lanes = Vec::new();
        for (number, stack) in stacks.iter().enumerate() {
            if stacks[..number].contains(stack) {
                continue;
            }
            let mut mine: Vec<Variant> = self
                .contestants
                .iter()
                .filter(|contestant| contestant.stacks.contains(stack))
                .map(|contestant| contestant.variant.clone())
                .collect();
            if mine.is_empty() && !stack.is_marline() {
                mine.push(self.kernel_as_it_is(*stack)?);
            }
            ensure!(!mine.is_empty(), "{}: no [[variant]] runs on stack `{stack}`", self.name);
            for variant in mine {
                if *stack == Stack::Tcp {
                    lanes.extend(self.alone(&variant)?);
                } else {
                    lanes.push(Lane { stack: *stack, variant });
                }
            }
        }
        Ok(lanes)
    }

    /// The kernel with the paths of the first variant and its own buffers.
    fn kernel_as_it_is(&self, stack: Stack) -> anyhow::Result<Variant> {
        let bounded = |contestant: &&Contestant| {
            contestant.variant.send_buffer.is_some() || contestant.variant.receive_buffer.is_some()
        };
        if let Some(other) = self.contestants.iter().find(bounded) {
            bail!(
                "{}: variant `{}` has buffers of its own; say which the kernel gets: add\n\n    \
                 [[variant]]\n    name = \"kernel\"\n    stacks = [\"{stack}\"]\n    send_buffer = \
                 \"100kB\"    # SO_SNDBUF; the kernel doubles it for its own needs",
                self.name,
                other.variant.name
            );
        }
        let first = self.contestants.first().map(|contestant| &contestant.variant);
        let (paths, backup) =
            first.map(|first| (first.paths.clone(), first.backup.clone())).unwrap_or_default();
        Ok(Variant { paths, backup, ..Variant::new("kernel") })
    }

    /// A single path's TCP on each of the variant's paths.
    fn alone(&self, variant: &Variant) -> anyhow::Result<Vec<Lane>> {
        let lane = |path: &Path| {
            let name = format!("{} {}", variant.name, path.name);
            let (paths, backup) = (vec![path.name.clone()], Vec::new());
            Lane { stack: Stack::Tcp, variant: Variant { name, paths, backup, ..variant.clone() } }
        };
        Ok(self.experiment.used(variant)?.into_iter().map(lane).collect())
    }
}
