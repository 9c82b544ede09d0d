//! Run futures with a concurrency limit.

use std::collections::VecDeque;
use std::future::pending;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};

const MAX_CONCURRENT_TASKS: usize = 4;

/// Runs tasks, at most four at a time. Dropping it drops the tasks that are not finished.
pub(super) struct TaskLimiter<'a, T> {
    running: FuturesUnordered<BoxFuture<'a, T>>,
    waiting: VecDeque<BoxFuture<'a, T>>,
}

impl<'a, T> TaskLimiter<'a, T> {
    pub(super) fn new() -> Self {
        Self { running: FuturesUnordered::new(), waiting: VecDeque::new() }
    }

    pub(super) fn push(&mut self, task: BoxFuture<'a, T>) {
        self.waiting.push_back(task);
    }

    pub(super) fn len(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    /// The outcome of the next finished task. Never returns if there is no task.
    ///
    /// # Cancel safety
    /// Safe: the next call continues the running tasks.
    pub(super) async fn next_outcome(&mut self) -> T {
        while self.running.len() < MAX_CONCURRENT_TASKS
            && let Some(task) = self.waiting.pop_front()
        {
            self.running.push(task);
        }
        match self.running.next().await {
            Some(outcome) => outcome,
            None => pending().await,
        }
    }
}
