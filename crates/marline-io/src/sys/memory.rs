//! Return of freed heap memory to the operating system.

/// Gives the pages on which nothing lives any more back to the system, from anywhere in the heap. `false`:
/// there were none, or this C library has no such call (musl gives pages back by itself, at once).
#[must_use]
pub(crate) fn release_free() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: it takes the allocator's own locks, may be called by any thread at any time, and
        // touches nothing that is allocated.
        unsafe { libc::malloc_trim(0) != 0 }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        false
    }
}
