//! Namespaces in which a program has nothing but the interface, made without root where the system allows it.
//!
//! The process splits in two ([`split`]) while it has one thread. One half, which keeps the process id, enters
//! namespaces of its own, makes the interface there, hands it to the other half and becomes the program: signals,
//! job control and the exit status are the program's own. The other half stays outside as a process of its own that is
//! nobody's child, carries what the interface brings, and ends with the program. A namespace ends with its last
//! process, the interface with the descriptor: however either half ends, nothing is left behind, and nothing goes
//! around the tunnel.

mod diagnosis;
mod namespace;
mod processes;
mod running;
mod split;

pub(crate) use namespace::host_resolv_conf;
pub use namespace::{Names, enter};
pub use running::RunningProgram;
pub use split::{Half, Outside, Program, ProgramInterface, split};
