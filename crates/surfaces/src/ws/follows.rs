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

/// What a followed run brings.
enum Step {
    Event(Arc<RunEvent>),
    /// Nothing more comes: it ended, or another run took its message over.
    Over(RunId),
}

type Steps = Pin<Box<dyn Stream<Item = Step> + Send>>;

/// A run that is to be followed from now on.
pub(super) struct Followed {
    pub(super) run: RunId,
    pub(super) follow: Follow,
}

/// The runs that one connection follows.
#[derive(Default)]
pub(super) struct Follows {
    steps: SelectAll<Abortable<Steps>>,
    handles: HashMap<RunId, AbortHandle>,
}

impl Follows {
    /// How many it follows.
    pub(super) fn len(&self) -> usize {
        self.handles.len()
    }

    /// Follows one more, in the place of what was followed of the same run before.
    pub(super) fn add(&mut self, Followed { run, follow }: Followed) {
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

    /// Follows it no longer.
    pub(super) fn remove(&mut self, run: &RunId) {
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
