//! Tests of streams over loopback and between machines in namespaces. They are one program, so that it is linked
//! once. Tests that must be alone in their process are separate programs.

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
