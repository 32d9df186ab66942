//! Values passed to or from the operating system. The system calls themselves are in `linux`, with substitutes in
//! `portable`; the rest of the crate uses the right one as `sys`.

pub(crate) mod capabilities;
pub(crate) mod descriptor;
pub(crate) mod interface;
pub(crate) mod network_error;
pub(crate) mod outlet;
pub(crate) mod raw_packet;
pub(crate) mod socket_spec;
pub(crate) mod tcp;
pub(crate) mod virtio;
