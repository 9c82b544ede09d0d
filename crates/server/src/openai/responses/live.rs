//! Background responses that are being made: their events so far, for those who read them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_protocol::{Principal, RunId};
use serde_json::Value;
use tokio::sync::watch;

use super::encoder::{ResponseEncoder, ResponseEvent, as_in_progress};

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

/// The encoder of a response: its run writes, and everybody who asks for the object reads.
#[derive(Debug, Clone)]
pub(super) struct SharedEncoder(Arc<Mutex<ResponseEncoder>>);

impl SharedEncoder {
    pub(super) fn new(encoder: ResponseEncoder) -> Self {
        Self(Arc::new(Mutex::new(encoder)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ResponseEncoder> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(super) struct LiveResponse {
    pub(super) owner: Principal,
    pub(super) run: RunId,
    encoder: SharedEncoder,
    state: Mutex<LiveState>,
    progress: watch::Sender<LiveProgress>,
}

#[derive(Debug, Default)]
struct LiveState {
    events: Vec<ResponseEvent>,
    /// It has its last event.
    has_end: bool,
}

/// How far a response has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LiveProgress {
    /// It has so many events.
    Open(usize),
    /// It has all its events.
    Ended,
}

impl LiveResponse {
    pub(super) fn new(owner: Principal, run: RunId, encoder: SharedEncoder) -> Self {
        Self { owner, run, encoder, state: Mutex::default(), progress: watch::Sender::new(LiveProgress::Open(0)) }
    }

    /// Adds events, which readers get at once.
    pub(super) fn push(&self, events: Vec<ResponseEvent>) {
        let mut state = self.lock();
        state.events.extend(events);
        let progress = LiveProgress::Open(state.events.len());
        drop(state);
        self.progress.send_replace(progress);
    }

    /// Adds the last events.
    pub(super) fn push_end(&self, events: Vec<ResponseEvent>) {
        self.lock().has_end = true;
        self.push(events);
    }

    pub(super) fn end(&self) {
        self.progress.send_replace(LiveProgress::Ended);
    }

    /// The object as of now. Its end shows only once it is stored.
    pub(super) fn object(&self) -> Value {
        let has_end = self.lock().has_end;
        let object = self.encoder.lock().snapshot();
        if has_end { object } else { as_in_progress(object) }
    }

    /// The frames of its events, the first one first.
    pub(super) fn frames(&self) -> Vec<String> {
        self.frames_from(0)
    }

    /// The frames of the events from number `from` on.
    pub(super) fn frames_from(&self, from: usize) -> Vec<String> {
        let state = self.lock();
        state.events.get(from..).unwrap_or_default().iter().map(|event| event.frame.clone()).collect()
    }

    /// Waits for an event of number `from` or later, or for the end.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub(super) async fn wait_event(&self, from: usize) -> LiveProgress {
        self.wait_for(|progress| match progress {
            LiveProgress::Open(events) => *events > from,
            LiveProgress::Ended => true,
        })
        .await
    }

    /// Waits until it has ended.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub(super) async fn wait_end(&self) {
        self.wait_for(|progress| *progress == LiveProgress::Ended).await;
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::ids::ResponseIds;
    use super::*;

    #[test]
    fn the_object_is_made_when_asked_and_shows_no_end_too_early() {
        let run = RunId::parse("0193a7a6-0f3c-7a6b-8a53-5f3c1b0d9e11").unwrap();
        let object = json!({"id": "resp_1", "status": "in_progress", "error": null});
        let encoder = SharedEncoder::new(ResponseEncoder::new(ResponseIds::of_run(&run), object, false));
        let live = LiveResponse::new(Principal::parse("ann").unwrap(), run, encoder.clone());
        let mut events = Vec::new();
        encoder.lock().push_text("half", &mut events);
        live.push(events);
        assert_eq!(live.object()["output"][0]["content"][0]["text"], "half");
        let mut events = Vec::new();
        encoder.lock().replace_end("it could not be stored", &mut events);
        assert_eq!((&live.object()["status"], &live.object()["error"]), (&json!("in_progress"), &json!(null)));
        live.push_end(events);
        assert_eq!(live.object()["status"], "failed");
        let last = live.frames().pop().unwrap();
        assert!(last.starts_with("event: response.failed\n"), "{last}");
    }
}
