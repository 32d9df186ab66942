//! Datagram policies: the path of each datagram, and the path of its copy, if any.

mod auto;
mod candidates;
mod duplicate;
mod min_rtt;
mod one_path;
#[cfg(test)]
mod testing;

pub use auto::{Auto, AutoConfig};
pub use duplicate::Duplicate;
pub use min_rtt::MinRtt;
pub use one_path::SinglePath;
