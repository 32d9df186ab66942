//! Datagram policies: which path a datagram goes on, and which path, if any, has a copy.

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
