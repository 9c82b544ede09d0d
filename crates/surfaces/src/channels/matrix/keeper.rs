//! Where to go on listening after a restart: kept beside listening, and never before what was heard until there.

use std::future::pending;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::channels::seam::Ear;

/// Keeps one place after the other. A newer one takes the place of one that still waits.
pub(super) struct Keeper<'a> {
    ear: &'a dyn Ear,
    keeping: Option<BoxFuture<'a, ()>>,
    next: Option<String>,
}

impl<'a> Keeper<'a> {
    pub(super) fn new(ear: &'a dyn Ear) -> Self {
        Self { ear, keeping: None, next: None }
    }

    /// Where to go on from now on. Everything before it must have been heard.
    pub(super) fn keep(&mut self, place: &str) {
        self.next = Some(place.to_owned());
    }

    /// Goes on until one is kept; never ends where there is nothing to keep.
    ///
    /// # Cancel safety
    /// Safe: what was begun goes on at the next call.
    pub(super) async fn progress(&mut self) {
        if self.keeping.is_none()
            && let Some(place) = self.next.take()
        {
            let ear = self.ear;
            let keeping = async move {
                ear.settled().await;
                ear.keep_cursor(place).await;
            };
            self.keeping = Some(keeping.boxed());
        }
        let Some(keeping) = &mut self.keeping else { return pending().await };
        keeping.await;
        self.keeping = None;
    }
}
