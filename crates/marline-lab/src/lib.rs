//! The lab: scenarios in network namespaces over emulated links, and Marline measured beside the
//! kernel's own TCP and MPTCP.

pub mod compare;
pub mod emulation;
pub mod experiment;
pub mod keep;
pub mod kernel;
pub mod net;
pub mod scenario;
pub mod workload;
