//! The interoperability matrix: Marline against the kernel's Multipath TCP, in both roles.

fn main() {}
