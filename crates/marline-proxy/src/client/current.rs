//! Replaceable tunnel to targets: new connections use the new one, and existing ones continue.

use std::sync::Arc;

use tokio::sync::watch;

use super::early_bytes::EarlyBytes;
use super::open::{Open, OpenError};
use crate::target::Target;

/// The current tunnel to targets.
#[derive(Debug)]
pub struct Current<O>(watch::Sender<Arc<O>>);

impl<O> Current<O> {
    /// Starts with this tunnel.
    #[must_use]
    pub fn new(way: Arc<O>) -> Current<O> {
        Current(watch::Sender::new(way))
    }

    /// Returns the current tunnel.
    #[must_use]
    pub fn now(&self) -> Arc<O> {
        Arc::clone(&self.0.borrow())
    }

    /// Resolves when `way` is no longer the current tunnel.
    pub async fn wait_until_replaced(&self, way: &Arc<O>) {
        let mut now = self.0.subscribe();
        // Cannot fail, because the sender is in `self`.
        let _ = now.wait_for(|now| !Arc::ptr_eq(now, way)).await;
    }

    /// Replaces the tunnel and returns the old one.
    pub fn replace(&self, way: Arc<O>) -> Arc<O> {
        self.0.send_replace(way)
    }
}

impl<O: Open> Open for Current<O> {
    type Stream = O::Stream;

    async fn open(&self, target: &Target) -> Result<O::Stream, OpenError> {
        let way = self.now();
        way.open(target).await
    }

    async fn open_behind(
        &self,
        target: &Target,
        ahead: Option<&mut EarlyBytes<'_>>,
    ) -> Result<O::Stream, OpenError> {
        let way = self.now();
        way.open_behind(target, ahead).await
    }
}
