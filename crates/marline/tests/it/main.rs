//! Tests of streams over loopback and between machines in namespaces: one program, so that it is linked once.
//! What must be alone in its process stands beside it.

mod adapters;
mod attacks;
mod busy_poll;
mod coding;
mod datagrams;
mod faults;
mod handover;
mod interfaces;
mod links;
mod native_kernel;
mod native_tun;
mod readme;
mod support;
mod transfer;
