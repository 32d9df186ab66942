//! Values that cross the edge to the operating system in either direction. The system calls themselves are in `linux`,
//! with substitutes in `portable`; the rest of the crate knows the one for its system as `sys`.

pub(crate) mod capabilities;
pub(crate) mod descriptor;
pub(crate) mod interface;
pub(crate) mod network_error;
pub(crate) mod outlet;
pub(crate) mod raw_packet;
pub(crate) mod socket_spec;
pub(crate) mod tcp;
pub(crate) mod virtio;
