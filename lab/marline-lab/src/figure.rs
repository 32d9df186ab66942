//! Figures as SVG: the few kinds that network measurements need.
//!
//! | kind | for |
//! |---|---|
//! | [`Plot`] | curves: distributions ([`cdf`], [`density`]), something over something, points with intervals |
//! | [`Bars`] | values of several contestants in several cases, with intervals |
//! | [`Boxes`] | distributions of several contestants: quartiles and tails |
//! | [`HeatMap`] | a number for every pair of two lists |
//! | [`SequencePlot`] | which bytes of the stream went over which subflow, when, and which of them again |
//! | [`TimingDiagram`] | which segment went over which path, when, and whether it came ([`SegmentLog`]) |
//!
//! The same data is the same text, byte by byte. Colours are those of Okabe and Ito, which the
//! colour-blind tell apart, and series also differ by dashes and marks; where the reader's system is
//! dark, so is the drawing. Nothing outside of the text is needed to show it.

mod axis;
mod bars;
mod boxes;
mod chart;
mod curve;
mod drawing;
mod heat_map;
mod label;
mod plot;
mod segment_log;
mod sequence;
mod sheet;
mod timing;

pub use bars::Bars;
pub use boxes::{Boxes, FiveNumbers};
pub use curve::{cdf, density, mean_interval};
pub use drawing::Figure;
pub use heat_map::HeatMap;
pub use label::{escape, number};
pub use plot::{Plot, Point};
pub use segment_log::{Fate, Segment, SegmentLog};
pub use sequence::SequencePlot;
pub use timing::TimingDiagram;

#[cfg(test)]
mod tests;
