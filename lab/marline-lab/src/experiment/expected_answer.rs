//! Correct answers to an experiment's question, as bounds on its measures.

/// Measured quantity of a check.
#[derive(Clone, Debug, PartialEq)]
pub enum Measure {
    /// Quantile of the latencies in ms. Missing messages are infinitely late.
    Latency(f64),
    /// Number of missing messages.
    Missing,
    /// Rate at which the application read, in Mbit/s.
    Goodput,
    /// Time in seconds until several messages in a row took at most this long (ms).
    Settled(f64),
    /// Energy drawn by traffic of cellular radios, in J.
    CellularEnergy,
    /// A measure of videos, pages or deadlines.
    Named(&'static str),
}

/// One end of a check's time span.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Edge {
    /// Time after the start of the workloads in ms.
    At(f64),
    /// The first fault.
    Fault,
    /// The end of the first fault.
    Return,
}

/// Correct answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Text of the question.
    pub asks: String,
    /// Measure, and its unit as in tables.
    pub measure: (Measure, &'static str),
    /// Index of the variant.
    pub variant: usize,
    /// Index of the workload.
    pub workload: usize,
    /// Only messages sent at this time or later count.
    pub from: Option<Edge>,
    /// Only messages sent before this time count.
    pub until: Option<Edge>,
    /// Bound on the correct answer.
    pub bound: f64,
    /// True if the bound is the smallest correct answer instead of the largest.
    pub is_minimum: bool,
    /// If set, the bound is a multiple of this variant's value.
    pub of: Option<usize>,
}
