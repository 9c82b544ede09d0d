//! Work beside listening, a few pieces at a time.

use std::collections::VecDeque;
use std::future::pending;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};

/// So many pieces are done at a time.
const AT_A_TIME: usize = 4;

/// Pieces of work, each with an outcome. Dropping it gives up what is not done.
pub(super) struct Few<'a, T> {
    doing: FuturesUnordered<BoxFuture<'a, T>>,
    waiting: VecDeque<BoxFuture<'a, T>>,
}

impl<'a, T> Few<'a, T> {
    pub(super) fn new() -> Self {
        Self { doing: FuturesUnordered::new(), waiting: VecDeque::new() }
    }

    pub(super) fn push(&mut self, piece: BoxFuture<'a, T>) {
        self.waiting.push_back(piece);
    }

    /// How many are not done.
    pub(super) fn len(&self) -> usize {
        self.doing.len() + self.waiting.len()
    }

    /// The outcome of the next one that is done; never where there is none.
    ///
    /// # Cancel safety
    /// Safe: what was begun goes on at the next call.
    pub(super) async fn next(&mut self) -> T {
        while self.doing.len() < AT_A_TIME
            && let Some(piece) = self.waiting.pop_front()
        {
            self.doing.push(piece);
        }
        match self.doing.next().await {
            Some(outcome) => outcome,
            None => pending().await,
        }
    }
}
