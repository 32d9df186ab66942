//! Values that a scheduler keeps per subflow.

use marline_policy::SubflowId;

/// One value per subflow, which has its default until it is set.
#[derive(Clone, Debug, Default)]
pub(super) struct PerSubflow<T>(Vec<T>);

impl<T: Clone + Default> PerSubflow<T> {
    /// Creates an empty list.
    pub(super) const fn new() -> Self {
        PerSubflow(Vec::new())
    }

    /// Value of a subflow.
    pub(super) fn get(&self, id: SubflowId) -> T {
        self.0.get(usize::from(id.0)).cloned().unwrap_or_default()
    }

    /// Mutable value of a subflow.
    pub(super) fn value_mut(&mut self, id: SubflowId) -> &mut T {
        let at = usize::from(id.0);
        if self.0.len() <= at {
            self.0.reserve_exact(at + 1 - self.0.len());
            self.0.resize(at + 1, T::default());
        }
        &mut self.0[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subflow_has_its_own_value_or_the_default() {
        let mut values = PerSubflow::new();
        *values.value_mut(SubflowId(2)) = 7;
        assert_eq!([0, 1, 2, 31].map(|id| values.get(SubflowId(id))), [0, 0, 7, 0]);
        assert_eq!(values.0.capacity(), 3);
    }
}
