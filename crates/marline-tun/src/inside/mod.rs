//! Namespaces in which a program has only the interface, created without root if the system permits it.
//!
//! The process splits into two ([`split`]) while it has one thread. One half keeps the process id, enters its own
//! namespaces, creates the interface there, passes it to the other half and becomes the program, so signals, job
//! control and the exit status are the program's own. The other half stays outside as a separate process without a
//! parent that waits for it, carries the traffic of the interface, and ends with the program. A namespace ends with its
//! last process, and the interface with its descriptor. So nothing is left over however either half ends, and no
//! traffic bypasses the tunnel.

mod diagnosis;
mod namespace;
mod processes;
mod running;
mod split;

pub(crate) use namespace::read_host_resolv_conf;
pub use namespace::{Names, enter};
pub use running::RunningProgram;
pub use split::{OuterProcess, ProcessRole, Program, ProgramInterface, split};
