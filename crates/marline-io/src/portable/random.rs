//! Randomness of the operating system, from getentropy(3).

use std::io;

/// Fills the seed of a generator.
pub(crate) fn fill(seed: &mut [u8; 32]) -> io::Result<()> {
    // SAFETY: pointer and length describe a live array; up to 256 bytes may be requested.
    if unsafe { libc::getentropy(seed.as_mut_ptr().cast(), seed.len()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
