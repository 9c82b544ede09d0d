//! An ear that keeps what it hears, for tests of networks.

use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::timeout;

use super::{Ear, Heard, Own};

/// How long a test waits. It decides only how late a failing one fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Keeps what it hears.
#[derive(Debug)]
pub(crate) struct RecordingEar {
    state: watch::Sender<State>,
    cursor: Mutex<Option<String>>,
}

/// What was heard so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    /// One for each time it was connected.
    pub(crate) connected: Vec<Own>,
    /// Messages in their order.
    pub(crate) heard: Vec<Heard>,
    /// How often somebody waited for what was heard to be kept.
    pub(crate) settled: usize,
    /// Cursors in the order in which they were kept.
    pub(crate) cursors: Vec<String>,
}

impl State {
    /// The texts that were heard.
    pub(crate) fn texts(&self) -> Vec<&str> {
        self.heard.iter().map(|heard| heard.text.as_str()).collect()
    }
}

impl RecordingEar {
    /// One that has kept nothing.
    pub(crate) fn new() -> Self {
        Self { state: watch::Sender::new(State::default()), cursor: Mutex::default() }
    }

    /// What was heard so far.
    pub(crate) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Waits until what was heard fulfils a condition.
    pub(crate) async fn wait_for(&self, what: &str, condition: impl Fn(&State) -> bool) -> State {
        let mut state = self.state.subscribe();
        match timeout(PATIENCE, state.wait_for(condition)).await {
            Ok(Ok(state)) => state.clone(),
            _ => panic!("{what} did not come: {:#?}", self.state()),
        }
    }
}

impl Ear for RecordingEar {
    fn connected(&self, own: Own) {
        self.state.send_modify(|state| state.connected.push(own));
    }

    fn hear(&self, heard: Heard) {
        self.state.send_modify(|state| state.heard.push(heard));
    }

    fn settled(&self) -> BoxFuture<'_, ()> {
        self.state.send_modify(|state| state.settled += 1);
        async {}.boxed()
    }

    fn cursor(&self) -> BoxFuture<'_, Option<String>> {
        let cursor = self.cursor.lock().unwrap().clone();
        async { cursor }.boxed()
    }

    fn keep_cursor(&self, cursor: String) -> BoxFuture<'_, ()> {
        *self.cursor.lock().unwrap() = Some(cursor.clone());
        self.state.send_modify(|state| state.cursors.push(cursor));
        async {}.boxed()
    }
}
