//! Return of freed heap memory to the operating system.

/// Returns unused pages anywhere in the heap to the system. Returns false if there were none, or if this C library
/// has no such call (musl returns pages by itself, at once).
#[must_use]
pub(crate) fn release_free() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: malloc_trim takes the allocator's own locks, may be called by any thread at any time, and touches
        // nothing that is allocated.
        unsafe { libc::malloc_trim(0) != 0 }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        false
    }
}
