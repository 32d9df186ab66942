//! Adapter with which an existing packetdrill program drives Marline's core in virtual time.
//!
//! packetdrill runs scripts of system calls and segments against a stack that it loads as a shared
//! library (`--so_filename`). That library exports one function, `packetdrill_interface_init`, which fills
//! a table of 33 words: system calls, two functions that carry raw IP packets, and a clock. This
//! crate is such a library around one [`Endpoint`](marline_core::Endpoint). None of packetdrill's code is
//! here; the table's form is all that is shared.
//!
//! ```text
//! packetdrill --so_filename=libpacketdrill_adapter.so --so_flags=local=192.168.0.1,... x.pkt
//!      |  socket, write, poll, ...          netdev_send, netdev_receive     usleep, gettimeofday
//!      v                                          v                              v
//!   [calls]: pointers to values ----------> [machine]: sockets, one Endpoint, packets, the clock
//! ```
//!
//! * `abi` is the table.
//! * `calls` are the functions in it: the only place that reads and writes through foreign pointers.
//! * `machine` is the whole of it: it advances time, moves packets and wakes calls that block.
//! * `sockets` and `options` are what system calls mean.
//! * `mirror` reads from the network namespace what scripts set there (sysctls, `ip mptcp`), since they
//!   mean us.
//! * `capture` writes what passed to a pcapng file.
//! * `preload` answers `getsockopt` for the checks that packetdrill makes past the table.
//!
//! Unsafe code is allowed in this crate alone, and it is for tests only: every block says why it is
//! sound given what packetdrill passes.

mod abi;
mod calls;
mod capture;
mod machine;
mod mirror;
mod options;
mod preload;
mod quiet;
mod sockets;
mod tcp_info;
