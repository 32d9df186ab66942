//! Measurement lab: scenarios in network namespaces over emulated links, comparison of Marline with the kernel's
//! own TCP and MPTCP, and figures of the results.

pub mod bound;
pub mod compare;
pub mod datagrams;
pub mod emulation;
pub mod estimate;
pub mod experiment;
pub mod figure;
pub mod generated_part;
pub mod import;
pub mod kernel;
pub mod net;
pub mod parallel;
pub mod policies;
pub mod provenance;
pub mod results;
pub mod runs;
pub mod scenario;
pub mod scenes;
mod stream_places;
pub mod what_if;
pub mod wifi_mobility;
pub mod workload;
