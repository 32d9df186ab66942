//! Ports of the neutral server, and the first byte of each kind of stream or datagram.

/// Port for plain TCP and UDP.
pub const PORT: u16 = 9000;
/// Port for plain TCP with BBR.
pub const PORT_BBR: u16 = 9001;
/// Port of the kernel's Multipath TCP.
pub const PORT_MULTIPATH: u16 = 9002;
/// UDP port of Marline's library.
pub const PORT_LIBRARY: u16 = 9003;

/// Size of a page request in bytes; the first four hold the answer's length.
pub const REQUEST: usize = 500;

/// Kinds of streams, the first byte of each.
pub const ECHO: u8 = b'e';
/// Download: the server sends.
pub const DOWN: u8 = b'd';
/// Upload: the server receives, and reports the number of bytes.
pub const UP: u8 = b'u';
/// An object of a page.
pub const PAGE: u8 = b'p';
/// A call.
pub const CALL: u8 = b'c';
