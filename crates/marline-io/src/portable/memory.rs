//! Does not return freed heap memory to the operating system: this is left to the allocator.

/// Returns false: there is no such call.
#[must_use]
pub(crate) const fn release_free() -> bool {
    false
}
