//! The far end of the proxy: authenticates clients and connects to their targets.

pub mod dial;
pub mod gate;
