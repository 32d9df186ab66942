//! Experiment file in TOML: scenario, workload, variants and faults.
//!
//! docs/research/lab.md describes it. Every error in a file is reported with its line, the allowed values, and the
//! likely correction. All detectable errors are reported together.

mod check;
mod diagnostic;
mod document;
mod parameter;
mod raw;
mod sweep;
#[cfg(test)]
mod tests;
mod values;

use std::path::{Path as FilePath, PathBuf};

use anyhow::{Context, bail, ensure};

use self::diagnostic::{Diagnostic, KeyPath, format_diagnostics};
use self::raw::RawFile;
use super::{Stack, Variant};
use crate::scenario::{Path, Scenario};

pub use self::document::{Contestant, ExperimentFile, Lane};
pub use self::sweep::Point;

/// Reads the hosts of a scenario file or of an experiment file, which contains a scenario.
///
/// # Errors
/// The file is invalid; the error lists the mistakes with their positions.
pub fn hosts(file: &FilePath) -> anyhow::Result<Scenario> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(|| name.clone())?;
    match text.parse::<toml::Table>() {
        Ok(table) if table.contains_key("workload") => {
            Ok(ExperimentFile::from_toml(&name, &text)?.experiment.hosts())
        }
        _ => check::scenario(&text)
            .map_err(|wrong| anyhow::anyhow!(format_diagnostics(&name, &text, &wrong))),
    }
}

impl ExperimentFile {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The file is invalid; the error lists the mistakes with their positions and corrections.
    pub fn open(file: &FilePath) -> anyhow::Result<ExperimentFile> {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).with_context(|| name.clone())?;
        ExperimentFile::from_toml(&name, &text)
    }

    /// Reads and checks the text of a file.
    ///
    /// # Errors
    /// The file is invalid; the error lists the mistakes with their positions and corrections.
    pub fn from_toml(name: &str, text: &str) -> anyhow::Result<ExperimentFile> {
        let read = || -> Result<ExperimentFile, Vec<Diagnostic>> {
            let raw: RawFile = toml::from_str(text).map_err(|error| vec![error.into()])?;
            let mut file = check::check(raw, text)?;
            name.clone_into(&mut file.name);
            text.clone_into(&mut file.text);
            file.axes = sweep::axes(text)?;
            // Report invalid values of a sweep now, not after an hour of runs.
            for axis in &file.axes {
                for value in &axis.values {
                    let swept = sweep::apply_values(text, &[(axis, value)]);
                    swept.map_err(|what| {
                        let key_path = KeyPath::top_level("sweep").key(&axis.key);
                        vec![Diagnostic::new(text, &key_path, what)]
                    })?;
                }
            }
            Ok(file)
        };
        read().map_err(|diagnostics| anyhow::anyhow!(format_diagnostics(name, text, &diagnostics)))
    }

    /// Sets the directory of the links' traces.
    #[must_use]
    pub fn with_traces(mut self, directory: Option<PathBuf>) -> ExperimentFile {
        self.experiment.trace_dir = directory;
        self
    }

    /// Every combination of the values of `[sweep]`, with the last key changing fastest. Without `[sweep]`, the file
    /// itself.
    ///
    /// # Errors
    /// A combination is not a valid experiment.
    pub fn points(&self) -> anyhow::Result<Vec<Point>> {
        sweep::points(&self.name, &self.text, &self.axes, self.experiment.trace_dir.as_ref())
    }

    /// Variants that run on these stacks, in the order of the file. If no variant names a stack of the kernel, the
    /// kernel runs there with its default settings.
    ///
    /// # Errors
    /// No variant runs on a stack, or the kernel's buffers are not specified.
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
                mine.push(self.default_kernel_variant(*stack)?);
            }
            ensure!(!mine.is_empty(), "{}: no [[variant]] runs on stack `{stack}`", self.name);
            for variant in mine {
                if *stack == Stack::Tcp {
                    lanes.extend(self.single_path_lanes(&variant)?);
                } else {
                    lanes.push(Lane { stack: *stack, variant });
                }
            }
        }
        Ok(lanes)
    }

    /// The kernel with the paths of the first variant and its own buffers.
    fn default_kernel_variant(&self, stack: Stack) -> anyhow::Result<Variant> {
        let bounded = |contestant: &&Contestant| {
            contestant.variant.send_buffer.is_some() || contestant.variant.receive_buffer.is_some()
        };
        if let Some(other) = self.contestants.iter().find(bounded) {
            bail!(
                "{}: variant `{}` has its own buffers; give the kernel's: add\n\n    \
                 [[variant]]\n    name = \"kernel\"\n    stacks = [\"{stack}\"]\n    send_buffer = \
                 \"100kB\"    # SO_SNDBUF; the kernel doubles it for its overhead",
                self.name,
                other.variant.name
            );
        }
        let first = self.contestants.first().map(|contestant| &contestant.variant);
        let (paths, backup) =
            first.map(|first| (first.paths.clone(), first.backup.clone())).unwrap_or_default();
        Ok(Variant { paths, backup, ..Variant::new("kernel") })
    }

    /// Returns one lane of plain TCP per path of the variant.
    fn single_path_lanes(&self, variant: &Variant) -> anyhow::Result<Vec<Lane>> {
        let lane = |path: &Path| {
            let name = format!("{} {}", variant.name, path.name);
            let (paths, backup) = (vec![path.name.clone()], Vec::new());
            Lane { stack: Stack::Tcp, variant: Variant { name, paths, backup, ..variant.clone() } }
        };
        Ok(self.experiment.used_paths(variant)?.into_iter().map(lane).collect())
    }
}
