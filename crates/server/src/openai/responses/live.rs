//! Background responses that are being made: their events so far, for those who read them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_protocol::{Principal, RunId};
use serde_json::Value;
use tokio::sync::watch;

use super::encoder::ResponseEvent;

/// The background responses of this daemon, by id.
#[derive(Debug, Default)]
pub(crate) struct LiveResponses(Mutex<HashMap<String, Arc<LiveResponse>>>);

impl LiveResponses {
    /// The response of this id, if it belongs to this principal.
    pub(super) fn find(&self, id: &str, owner: &Principal) -> Option<Arc<LiveResponse>> {
        self.lock().get(id).filter(|live| live.owner == *owner).cloned()
    }

    pub(super) fn insert(&self, id: String, live: Arc<LiveResponse>) {
        self.lock().insert(id, live);
    }

    pub(super) fn remove(&self, id: &str) {
        self.lock().remove(id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<LiveResponse>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(super) struct LiveResponse {
    pub(super) owner: Principal,
    pub(super) run: RunId,
    state: Mutex<LiveState>,
    progress: watch::Sender<LiveProgress>,
}

#[derive(Debug)]
struct LiveState {
    events: Vec<ResponseEvent>,
    /// The object as of the newest event.
    object: Value,
}

/// How far a response has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LiveProgress {
    /// It is not in the database yet.
    New,
    /// The database has not taken it: it is no response. Why, for people.
    Refused(String),
    /// It has so many events.
    Open(usize),
    /// It has all its events.
    Ended,
}

impl LiveResponse {
    pub(super) fn new(owner: Principal, run: RunId, object: Value) -> Self {
        let state = Mutex::new(LiveState { events: Vec::new(), object });
        Self { owner, run, state, progress: watch::Sender::new(LiveProgress::New) }
    }

    /// Adds events, which readers get at once.
    pub(super) fn push(&self, events: Vec<ResponseEvent>, object: Value) {
        let mut state = self.lock();
        state.events.extend(events);
        state.object = object;
        let progress = LiveProgress::Open(state.events.len());
        drop(state);
        self.progress.send_replace(progress);
    }

    pub(super) fn refuse(&self, why: String) {
        self.progress.send_replace(LiveProgress::Refused(why));
    }

    pub(super) fn end(&self) {
        self.progress.send_replace(LiveProgress::Ended);
    }

    /// The object as of now.
    pub(super) fn object(&self) -> Value {
        self.lock().object.clone()
    }

    /// The frames of its events, the first one first.
    pub(super) fn frames(&self) -> Vec<String> {
        self.lock().events.iter().map(|event| event.frame.clone()).collect()
    }

    /// The frames of the events from number `from` on.
    pub(super) fn frames_from(&self, from: usize) -> Vec<String> {
        let state = self.lock();
        state.events.get(from..).unwrap_or_default().iter().map(|event| event.frame.clone()).collect()
    }

    /// Waits until the database has it, or has refused it.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub(super) async fn wait_stored(&self) -> LiveProgress {
        self.wait_for(|progress| *progress != LiveProgress::New).await
    }

    /// Waits for an event of number `from` or later, or for the end.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub(super) async fn wait_event(&self, from: usize) -> LiveProgress {
        self.wait_for(|progress| match progress {
            LiveProgress::New => false,
            LiveProgress::Open(events) => *events > from,
            LiveProgress::Refused(_) | LiveProgress::Ended => true,
        })
        .await
    }

    /// Waits until it has ended.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub(super) async fn wait_end(&self) {
        self.wait_for(|progress| matches!(progress, LiveProgress::Refused(_) | LiveProgress::Ended)).await;
    }

    async fn wait_for(&self, is_reached: impl FnMut(&LiveProgress) -> bool) -> LiveProgress {
        let mut progress = self.progress.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        progress.wait_for(is_reached).await.map_or(LiveProgress::Ended, |progress| progress.clone())
    }

    fn lock(&self) -> MutexGuard<'_, LiveState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
