//! Runs that a connection follows with `runs.follow`: every event of a run as it is, from a cursor to its end.
//!
//! Unlike the events that go to everybody, these are fetched: nothing is read from a run before the client has room for it, and
//! a client that was too slow gets the run's own `run.snapshot`.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream::{self, AbortHandle, Abortable, SelectAll, Stream, StreamExt};
use quell_engine::dispatch::Follow;
use quell_protocol::{RunEvent, RunId};

use super::methods::{Lookup, Work};

/// What a followed run brings.
enum Step {
    Event(Arc<RunEvent>),
    /// Nothing more comes: it ended, or another run took its message over.
    Over(RunId),
}

type Steps = Pin<Box<dyn Stream<Item = Step> + Send>>;

/// A run that was looked for, so that it could be followed.
pub(super) struct Followed {
    run: RunId,
    number: u64,
    /// Nothing when there is no such run.
    follow: Option<Follow>,
}

/// The runs that one connection follows.
#[derive(Default)]
pub(super) struct Follows {
    steps: SelectAll<Abortable<Steps>>,
    handles: HashMap<RunId, AbortHandle>,
    /// Runs that are being looked for, each with the number of the request that counts: the last one, unless it was taken back.
    expected: HashMap<RunId, u64>,
    number: u64,
}

impl Follows {
    /// How many it follows, or is about to.
    pub(super) fn len(&self) -> usize {
        self.handles.len() + self.expected.len()
    }

    /// Expects a run that is being looked for.
    pub(super) fn expect(&mut self, run: RunId, lookup: Lookup) -> Work {
        self.number += 1;
        let number = self.number;
        self.expected.insert(run.clone(), number);
        Box::pin(async move { Some(Followed { run, number, follow: lookup.await }) })
    }

    /// Follows a run that was found, in the place of what was followed of the same run before, unless that was taken back
    /// meanwhile.
    pub(super) fn add(&mut self, Followed { run, number, follow }: Followed) {
        if self.expected.get(&run) != Some(&number) {
            return;
        }
        self.expected.remove(&run);
        let Some(follow) = follow else { return };
        let over = stream::once(std::future::ready(Step::Over(run.clone())));
        let steps: Steps = match follow {
            Follow::Live(follower) => Box::pin(
                stream::unfold(follower, |mut follower| async move {
                    follower.next().await.map(|event| (Step::Event(event), follower))
                })
                .chain(over),
            ),
            Follow::Over(events) => {
                Box::pin(stream::iter(events.into_iter().map(|event| Step::Event(Arc::new(event)))).chain(over))
            }
        };
        let (handle, registration) = AbortHandle::new_pair();
        if let Some(before) = self.handles.insert(run, handle) {
            before.abort();
        }
        self.steps.push(Abortable::new(steps, registration));
    }

    /// Follows it no longer, and what is still being looked for not at all.
    pub(super) fn remove(&mut self, run: &RunId) {
        self.expected.remove(run);
        if let Some(handle) = self.handles.remove(run) {
            handle.abort();
        }
    }

    /// The next event of any of them; for ever when there is none.
    ///
    /// # Cancel safety
    /// Safe: an event is taken only when it is handed out.
    pub(super) async fn next(&mut self) -> Arc<RunEvent> {
        loop {
            match self.steps.next().await {
                Some(Step::Event(event)) => return event,
                Some(Step::Over(run)) => drop(self.handles.remove(&run)),
                None => std::future::pending().await,
            }
        }
    }
}
