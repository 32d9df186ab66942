//! Returns freed heap memory to the operating system.

/// Returns unused pages anywhere in the heap to the operating system. Returns false if there were none.
#[cfg(target_env = "gnu")]
#[must_use]
pub(crate) fn release_free() -> bool {
    // SAFETY: malloc_trim takes the allocator's own locks, may be called by any thread at any time, and does not touch
    // allocated memory.
    unsafe { libc::malloc_trim(0) != 0 }
}

/// Returns false: musl immediately returns unused pages itself.
#[cfg(not(target_env = "gnu"))]
#[must_use]
pub(crate) const fn release_free() -> bool {
    false
}
