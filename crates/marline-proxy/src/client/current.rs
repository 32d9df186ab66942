//! Replaceable way to targets: new connections take the new one, existing ones continue.

use std::sync::{Arc, PoisonError, RwLock};

use super::open::{Open, OpenError};
use crate::target::Target;

/// The current way to targets.
#[derive(Debug)]
pub struct Current<O>(RwLock<Arc<O>>);

impl<O> Current<O> {
    /// Starts with this `way`.
    #[must_use]
    pub const fn new(way: Arc<O>) -> Current<O> {
        Current(RwLock::new(way))
    }

    /// The current way to targets.
    #[must_use]
    pub fn now(&self) -> Arc<O> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the way; returns the old one.
    pub fn replace(&self, way: Arc<O>) -> Arc<O> {
        let mut now = self.0.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut now, way)
    }
}

impl<O: Open> Open for Current<O> {
    type Stream = O::Stream;

    async fn open(&self, target: &Target) -> Result<O::Stream, OpenError> {
        let way = self.now();
        way.open(target).await
    }
}
