//! The lab: scenarios in network namespaces over emulated links, and Marline measured beside the
//! kernel's own TCP and MPTCP.

pub mod emulation;
pub mod net;
pub mod scenario;
