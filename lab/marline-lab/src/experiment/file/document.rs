//! Contents of an experiment file after validation.

use std::time::Duration;

use toml::Value;

use crate::experiment::{Experiment, Stack, Variant};

/// A file that has been read and checked.
#[derive(Clone, Debug)]
pub struct ExperimentFile {
    /// What it is about, in a few words.
    pub title: String,
    /// Links, what is done, what happens.
    pub experiment: Experiment,
    /// Time lines are written, with a sample of the subflows so often; `None`: none are. Not a part of
    /// the experiment: nothing in a run depends on it.
    pub timelines: Option<Duration>,
    /// Traces of its simulated runs are wanted.
    pub qlog: bool,
    /// Who does it.
    pub contestants: Vec<Contestant>,
    pub(super) name: String,
    pub(super) text: String,
    pub(super) axes: Vec<Axis>,
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

/// A key and its values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    pub(super) key: String,
    pub(super) values: Vec<Value>,
}
