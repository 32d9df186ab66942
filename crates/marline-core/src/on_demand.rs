//! Rarely used parts of a connection, which are allocated on first use.

use core::fmt;
use core::ops::{Deref, DerefMut};

/// A part with a known state before its first use.
pub(crate) trait UnusedState: Default + 'static {
    /// State made by [`Default`].
    const UNUSED: &'static Self;
}

/// A part that is allocated when it is first changed. Reading it allocates nothing.
pub(crate) struct OnDemand<T: UnusedState>(Option<Box<T>>);

impl<T: UnusedState> OnDemand<T> {
    /// Creates an unused part, without an allocation.
    pub(crate) const fn new() -> Self {
        OnDemand(None)
    }

    /// The part if it was used. An unused part holds no data.
    pub(crate) fn get_used(&self) -> Option<&T> {
        self.0.as_deref()
    }

    /// Mutable access if the part was used, for changes that an unused part does not need.
    pub(crate) fn if_used(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Frees the part, which returns to the unused state.
    pub(crate) fn retire(&mut self) {
        if self.0.is_some() {
            self.drop_part();
        }
    }

    // Separate functions, because both are rare and would otherwise be inlined at each use.
    #[cold]
    fn make(&mut self) -> &mut T {
        self.0.insert(Box::default())
    }

    #[cold]
    fn drop_part(&mut self) {
        self.0 = None;
    }
}

impl<T: UnusedState> Default for OnDemand<T> {
    fn default() -> Self {
        OnDemand::new()
    }
}

impl<T: UnusedState> Deref for OnDemand<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::UNUSED)
    }
}

impl<T: UnusedState> DerefMut for OnDemand<T> {
    fn deref_mut(&mut self) -> &mut T {
        match self.0 {
            Some(ref mut part) => part,
            None => self.make(),
        }
    }
}

impl<T: UnusedState + fmt::Debug> fmt::Debug for OnDemand<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: 'static> UnusedState for Vec<T> {
    const UNUSED: &'static Self = &Vec::new();
}

impl<T: Ord + 'static> UnusedState for std::collections::BinaryHeap<T> {
    const UNUSED: &'static Self = &std::collections::BinaryHeap::new();
}

impl<T: 'static> UnusedState for std::collections::VecDeque<T> {
    const UNUSED: &'static Self = &std::collections::VecDeque::new();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_takes_memory() {
        let mut list: OnDemand<Vec<u64>> = OnDemand::new();
        assert!(list.is_empty() && list.iter().next().is_none() && list.if_used().is_none());
        assert_eq!(size_of_val(&list), size_of::<usize>());
        list.push(7);
        assert_eq!(list.if_used().map(|list| list.len()), Some(1));
        list.retire();
        assert!(list.is_empty() && list.if_used().is_none());
    }
}
