//! Tests of streams over loopback and between machines in namespaces. They form one program, so that linking happens
//! once. Tests that need a separate process are separate programs.

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
