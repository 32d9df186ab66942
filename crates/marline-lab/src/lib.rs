//! The lab: scenarios in network namespaces over emulated links, and Marline measured beside the
//! kernel's own TCP and MPTCP; drawings of what came out.

pub mod bound;
pub mod compare;
pub mod emulation;
pub mod experiment;
pub mod figure;
pub mod keep;
pub mod kernel;
pub mod net;
pub mod parallel;
pub mod policies;
pub mod runs;
pub mod scenario;
pub mod wifi_mobility;
pub mod workload;
