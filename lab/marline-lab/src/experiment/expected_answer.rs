//! Right answers to the question of an experiment: bounds of its measures.

/// Measured quantity of a check.
#[derive(Clone, Debug, PartialEq)]
pub enum Measure {
    /// Quantile of the latencies, ms; missing messages are infinitely late.
    Latency(f64),
    /// Number of missing messages.
    Missing,
    /// Rate at which the application read, Mbit/s.
    Goodput,
    /// Time until several messages in a row took at most this long (ms), s.
    Settled(f64),
    /// A measure of films, pages or deadlines.
    Named(&'static str),
}

/// An end of a check's time span.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Edge {
    /// Time after the start of the workloads, ms.
    At(f64),
    /// The first fault.
    Fault,
    /// The end of the first fault.
    Return,
}

/// Right answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// The question, in words.
    pub asks: String,
    /// Measure, and its unit as in tables.
    pub measure: (Measure, &'static str),
    /// Number of the variant.
    pub variant: usize,
    /// Number of the workload.
    pub workload: usize,
    /// Only messages that were sent from here on count.
    pub from: Option<Edge>,
    /// Only messages that were sent earlier count.
    pub until: Option<Edge>,
    /// Bound of the right answer.
    pub bound: f64,
    /// The bound is the smallest right answer, not the largest.
    pub is_least: bool,
    /// The bound is a multiple of this variant's value.
    pub of: Option<usize>,
}
