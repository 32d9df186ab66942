//! Evidence from a cell, and its verdict.

use std::path::PathBuf;

use marline_lab::net::Net;
use marline_lab::scenario::Side;
use serde::{Deserialize, Serialize};

use crate::exchange::{Outcome, Plan};

/// Result of a cell.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CellResult {
    /// Violated requirements. Empty if the cell passed.
    pub(crate) problems: Vec<String>,
    pub(crate) seconds: f64,
    /// Kernel counters that are not zero.
    pub(crate) counters: Vec<(String, u64)>,
    /// Summary of the captures.
    pub(crate) capture: String,
    /// Reasons why the links' timing may be unreliable. No check depends on it.
    pub(crate) doubts: Vec<String>,
}

/// Evidence for the judge.
#[derive(Debug)]
pub(crate) struct Evidence<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) client: Vec<Outcome>,
    pub(crate) server: Vec<Outcome>,
    pub(crate) net: &'a Net,
    pub(crate) captures: Vec<PathBuf>,
    pub(crate) kernel_messages: Vec<String>,
}

impl Evidence<'_> {
    /// Connections for which an end reports a fallback to plain TCP.
    pub(crate) fn fallbacks(&self) -> Vec<(Side, usize, String)> {
        let ends = [(Side::Client, &self.client), (Side::Server, &self.server)];
        let named = |(side, outcomes): (Side, &Vec<Outcome>)| {
            let numbered = outcomes.iter().enumerate();
            let fallen = numbered.filter_map(move |(n, o)| Some((side, n, o.fallback.clone()?)));
            fallen.collect::<Vec<_>>()
        };
        ends.into_iter().flat_map(named).collect()
    }
}
