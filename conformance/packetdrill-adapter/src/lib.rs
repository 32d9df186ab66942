//! Adapter with which an existing packetdrill program drives Marline's core in virtual time.
//!
//! packetdrill runs scripts of system calls and segments against a stack that it loads as a shared library
//! (`--so_filename`). That library exports one function, `packetdrill_interface_init`, which fills a table of 33
//! words: system calls, two functions for raw IP packets, and a clock. This crate is such a library around one
//! [`Endpoint`](marline_core::Endpoint). It contains no packetdrill code and shares only the layout of the table.
//!
//! ```text
//! packetdrill --so_filename=libpacketdrill_adapter.so --so_flags=local=192.168.0.1,... x.pkt
//!      |  socket, write, poll, ...          netdev_send, netdev_receive     usleep, gettimeofday
//!      v                                          v                              v
//!   [calls]: pointers to values ----------> [machine]: sockets, one Endpoint, packets, the clock
//! ```
//!
//! * `abi` is the table.
//! * `calls` contains its functions: the only place that accesses foreign pointers.
//! * `machine` is the simulated machine: it advances time, moves packets and wakes blocking calls.
//! * `sockets` and `options` implement the system calls.
//! * `mirror` reads settings of scripts from the network namespace (sysctls, `ip mptcp`), which are meant for the
//!   stack under test.
//! * `capture` writes packets to a pcapng file.
//! * `preload` answers `getsockopt` for packetdrill's checks outside the table.
//!
//! Unsafe code is allowed only in this crate, which is only for tests. Every block states why it is sound for
//! packetdrill's arguments.

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
