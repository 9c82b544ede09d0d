//! The event streams of the runs that a connection follows with `runs.follow`, from a cursor to the end of the run.
//!
//! Unlike the events that go to all clients, these are pulled: nothing is read from a run before the client has room
//! for it, and a client that was too slow gets the run's own `run.snapshot`.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::stream::{self, AbortHandle, Abortable, SelectAll, Stream, StreamExt};
use quell_engine::engine::RunFollow;
use quell_protocol::{Principal, RunEvent, RunId, SessionKey};

enum FollowedItem {
    Event(Arc<RunEvent>),
    /// No more events come: the run ended, or another run took its message in.
    Ended(RunId),
}

type FollowedItemStream = Pin<Box<dyn Stream<Item = FollowedItem> + Send>>;

/// The rest of a request. It sends the response itself; the result is a run for the connection to follow, if any.
pub(super) type PendingRequest = Pin<Box<dyn Future<Output = Option<FollowLookupResult>> + Send>>;

/// Looks up a run to follow, and sends the response.
pub(super) type FollowLookup = Pin<Box<dyn Future<Output = Option<FoundRun>> + Send>>;

/// A run to follow, with what decides who may read it.
pub(super) struct FoundRun {
    pub(super) follow: RunFollow,
    /// The sender of its message.
    pub(super) principal: Principal,
    pub(super) session: SessionKey,
}

struct FollowedRun {
    abort_handle: AbortHandle,
    principal: Principal,
    session: SessionKey,
}

pub(super) struct FollowLookupResult {
    run: RunId,
    request_number: u64,
    /// `None` if there is no such run.
    found: Option<FoundRun>,
}

#[derive(Default)]
pub(super) struct FollowedRuns {
    items: SelectAll<Abortable<FollowedItemStream>>,
    runs: HashMap<RunId, FollowedRun>,
    /// Runs that are being looked up, each with the number of its last request. Removed if the client unfollows
    /// meanwhile.
    pending_lookups: HashMap<RunId, u64>,
    last_request_number: u64,
}

impl FollowedRuns {
    /// Number of runs that are followed or being looked up.
    pub(super) fn len(&self) -> usize {
        self.runs.len() + self.pending_lookups.len()
    }

    /// Registers a lookup; its result goes to [`FollowedRuns::finish_lookup`].
    pub(super) fn start_lookup(&mut self, run: RunId, lookup: FollowLookup) -> PendingRequest {
        self.last_request_number += 1;
        let number = self.last_request_number;
        self.pending_lookups.insert(run.clone(), number);
        Box::pin(async move { Some(FollowLookupResult { run, request_number: number, found: lookup.await }) })
    }

    /// Follows a run that was found, and replaces an earlier stream of the same run. Does nothing if the client has
    /// unfollowed it meanwhile, or asked again, or may not read it any more.
    pub(super) fn finish_lookup(
        &mut self,
        FollowLookupResult { run, request_number: number, found }: FollowLookupResult,
        may_read: impl Fn(&Principal, &SessionKey) -> bool,
    ) {
        if self.pending_lookups.get(&run) != Some(&number) {
            return;
        }
        self.pending_lookups.remove(&run);
        let Some(FoundRun { follow, principal, session }) = found else { return };
        if !may_read(&principal, &session) {
            return;
        }
        let end_item = stream::once(std::future::ready(FollowedItem::Ended(run.clone())));
        let items: FollowedItemStream = match follow {
            RunFollow::Live(follower) => Box::pin(
                stream::unfold(follower, |mut follower| async move {
                    follower.next().await.map(|event| (FollowedItem::Event(event), follower))
                })
                .chain(end_item),
            ),
            RunFollow::Remote(follower) => Box::pin(
                stream::unfold(follower, |mut follower| async move {
                    follower.next().await.map(|event| (FollowedItem::Event(event), follower))
                })
                .chain(end_item),
            ),
            RunFollow::Ended(events) => Box::pin(
                stream::iter(events.into_iter().map(|event| FollowedItem::Event(Arc::new(event)))).chain(end_item),
            ),
        };
        let (abort_handle, registration) = AbortHandle::new_pair();
        if let Some(previous) = self.runs.insert(run, FollowedRun { abort_handle, principal, session }) {
            previous.abort_handle.abort();
        }
        self.items.push(Abortable::new(items, registration));
    }

    /// Stops following a run, and drops a pending lookup of it.
    pub(super) fn remove(&mut self, run: &RunId) {
        self.pending_lookups.remove(run);
        if let Some(followed) = self.runs.remove(run) {
            followed.abort_handle.abort();
        }
    }

    /// Stops following the runs for whose sender and session this holds. Returns them.
    pub(super) fn remove_where(&mut self, is_lost: impl Fn(&Principal, &SessionKey) -> bool) -> Vec<RunId> {
        let lost = self.runs.extract_if(|_, followed| is_lost(&followed.principal, &followed.session));
        let lost = lost.map(|(run, followed)| {
            followed.abort_handle.abort();
            run
        });
        lost.collect()
    }

    /// The next event of any followed run; pending for ever while there is none.
    ///
    /// # Cancel safety
    /// Safe: an event is removed only when it is returned.
    pub(super) async fn next(&mut self) -> Arc<RunEvent> {
        loop {
            match self.items.next().await {
                Some(FollowedItem::Event(event)) => return event,
                Some(FollowedItem::Ended(run)) => drop(self.runs.remove(&run)),
                None => std::future::pending().await,
            }
        }
    }
}
