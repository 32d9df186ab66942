//! Contents of an experiment file after validation.

use std::time::Duration;

use toml::Value;

use crate::experiment::{Check, Experiment, Stack, Variant};

/// A file that has been read and checked.
#[derive(Clone, Debug)]
pub struct ExperimentFile {
    /// Short title.
    pub title: String,
    /// Paths, workload and faults.
    pub experiment: Experiment,
    /// Interval of subflow samples in time lines. `None`: no time lines. Runs do not depend on this value.
    pub timelines: Option<Duration>,
    /// True if traces of simulated runs are written.
    pub qlog: bool,
    /// Variants with their stacks.
    pub contestants: Vec<Contestant>,
    /// Checks of the results.
    pub checks: Vec<Check>,
    pub(super) name: String,
    pub(super) text: String,
    pub(super) axes: Vec<Axis>,
}

/// A variant and its stacks.
#[derive(Clone, Debug, PartialEq)]
pub struct Contestant {
    /// Policies, paths, buffers.
    pub variant: Variant,
    /// Stacks on which the variant runs.
    pub stacks: Vec<Stack>,
}

/// A variant on one stack, which is one line of the results.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    /// TCP stack.
    pub stack: Stack,
    /// Variant. On the kernel's TCP it has one path.
    pub variant: Variant,
}

/// A key and its values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    pub(super) key: String,
    pub(super) values: Vec<Value>,
}
