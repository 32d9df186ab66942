//! Comparison of the kernel's TCP on each path, the kernel's Multipath TCP, and Marline, with the same workloads
//! over the same emulated links.
//! The measures matter to interactive users and are poor with stock Multipath TCP: echoes under loss, blocks of a
//! stream that needs both paths, bursts during which a path dies, a window that is too small for the slower path, and
//! a handover to a backup path. Both ends of a run are separate processes in namespaces ([`crate::net`]); Marline's
//! processes send native TCP through raw sockets. A run with late emulated links is repeated. Every run writes a file,
//! so that an interrupted table can be resumed. `marline-lab paper kernel`; docs/research/papers/kernel.md.

mod contestant;
mod row;
mod session;
mod statistics;
mod table;

pub use contestant::Contestant;
pub use row::{Extent, Measure, Row, rows};
pub use session::{Bench, CompletedRun, Sample};
pub use table::{Claim, Pool, Pools, Report, read_pools, report};
