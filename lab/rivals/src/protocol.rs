//! Ports of the neutral server, and the first byte of each kind of stream or datagram.

/// Port of plain TCP, and of UDP.
pub const PORT: u16 = 9000;
/// Port whose connections use BBR.
pub const PORT_BBR: u16 = 9001;
/// Port of the kernel's Multipath TCP.
pub const PORT_MULTIPATH: u16 = 9002;
/// UDP port of Marline's library.
pub const PORT_LIBRARY: u16 = 9003;

/// Bytes of a page's request; the first four hold the answer's length.
pub const REQUEST: usize = 500;

/// Kinds of streams, the first byte of each.
pub const ECHO: u8 = b'e';
/// The server sends.
pub const DOWN: u8 = b'd';
/// The server receives, and reports the number of bytes.
pub const UP: u8 = b'u';
/// Objects of a page.
pub const PAGE: u8 = b'p';
/// A call.
pub const CALL: u8 = b'c';
