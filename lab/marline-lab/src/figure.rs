//! Figures as SVG: the chart types that network measurements need.
//!
//! | kind | for |
//! |---|---|
//! | [`Plot`] | curves: distributions ([`cdf`], [`density`]), one quantity over another, points with intervals |
//! | [`Bars`] | values of several variants in several cases, with intervals |
//! | [`BoxPlot`] | distributions of several variants: quartiles and tails |
//! | [`HeatMap`] | a number for every pair of two lists |
//! | [`SequencePlot`] | bytes of the stream over time, by subflow, with retransmissions |
//! | [`TimingDiagram`] | segments by path and time, with their fate ([`SegmentLog`]) |
//!
//! The same data always gives the same bytes. Colors are those of Okabe and Ito, which color-blind readers can
//! distinguish, and series also differ by dashes and marks. The drawing follows the reader's dark mode and needs no
//! external resources.

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
pub use boxes::{BoxPlot, FiveNumbers};
pub use curve::{cdf, density, mean_interval};
pub use drawing::Figure;
pub use heat_map::HeatMap;
pub use label::{escape, number};
pub use plot::{Plot, Point};
pub use segment_log::{Delivery, Segment, SegmentLog};
pub use sequence::SequencePlot;
pub use timing::TimingDiagram;

#[cfg(test)]
mod tests;
