//! What the server's thread and the test share: the script, the gates, the records.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::Value;
use tokio::sync::watch;

use super::behaviour::Behaviour;
use super::record::{Progress, Recorded};
use super::rules;
use super::wire_http::Incoming;
use crate::history::corpus::Dialect;

type ByPrompt = Box<dyn Fn(&str, &Recorded) -> Behaviour + Send + Sync>;

/// Shared by the server's thread and the test.
pub(super) struct Stage {
    queue: Mutex<VecDeque<Behaviour>>,
    by_prompt: Mutex<Option<Arc<ByPrompt>>>,
    records: Mutex<Vec<Arc<Recorded>>>,
    /// True when sound requests are counted and not kept.
    forgetful: AtomicBool,
    arrived: watch::Sender<usize>,
    gates: watch::Sender<BTreeSet<String>>,
    connections: watch::Sender<usize>,
    oddities: Mutex<Vec<String>>,
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

/// A poisoned lock means that another thread of the same test has panicked; the facts are still facts.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    pub(super) fn new() -> Self {
        Self {
            queue: Mutex::default(),
            by_prompt: Mutex::default(),
            records: Mutex::default(),
            forgetful: AtomicBool::new(false),
            arrived: watch::Sender::new(0),
            gates: watch::Sender::new(BTreeSet::new()),
            connections: watch::Sender::new(0),
            oddities: Mutex::default(),
        }
    }

    pub(super) fn push(&self, behaviour: Behaviour) {
        lock(&self.queue).push_back(behaviour);
    }

    pub(super) fn set_by_prompt(&self, choose: ByPrompt) {
        *lock(&self.by_prompt) = Some(Arc::new(choose));
    }

    pub(super) fn forget_the_sound(&self) {
        self.forgetful.store(true, Ordering::Relaxed);
    }

    /// The script comes first, then the choice by prompt, then a short answer.
    pub(super) fn next_behaviour(&self, request: &Recorded) -> Behaviour {
        if let Some(behaviour) = lock(&self.queue).pop_front() {
            return behaviour;
        }
        // Cloned out, so that a slow or panicking choice holds no lock.
        let choose = lock(&self.by_prompt).clone();
        choose.map_or_else(|| Behaviour::text("Done."), |choose| choose(&request.last_user_text, request))
    }

    pub(super) fn unused(&self) -> usize {
        lock(&self.queue).len()
    }

    pub(super) fn open_gate(&self, name: &str) {
        self.gates.send_modify(|open| {
            open.insert(name.to_owned());
        });
    }

    /// Waits for a gate. Only looks, so it may be dropped.
    pub(super) async fn gate(&self, name: &str) {
        // The sender lives in `self`, so the wait cannot end by its loss.
        let _ = self.gates.subscribe().wait_for(|open| open.contains(name)).await;
    }

    pub(super) fn arrive(&self, incoming: Incoming, dialect: Dialect, body: Value) -> Arc<Recorded> {
        let violations = rules::check(dialect, &body);
        let mut records = lock(&self.records);
        let recorded = Arc::new(Recorded {
            index: *self.arrived.borrow(),
            arrived: Instant::now(),
            dialect,
            headers: incoming.headers,
            last_user_text: user_texts(&body).pop().unwrap_or_default(),
            markers: markers(&body),
            violations,
            body,
            progress: watch::Sender::new(Progress::default()),
        });
        if !self.forgetful.load(Ordering::Relaxed) || !recorded.violations.is_empty() {
            records.push(Arc::clone(&recorded));
        }
        let count = recorded.index + 1;
        // Told without the lock: who waits for an arrival looks at the records while it holds the count.
        drop(records);
        self.arrived.send_replace(count);
        recorded
    }

    pub(super) fn arrived(&self) -> watch::Receiver<usize> {
        self.arrived.subscribe()
    }

    pub(super) fn record(&self, index: usize) -> Option<Arc<Recorded>> {
        lock(&self.records).iter().find(|record| record.index == index).cloned()
    }

    pub(super) fn records(&self) -> Vec<Arc<Recorded>> {
        lock(&self.records).clone()
    }

    pub(super) fn connections(&self) -> watch::Receiver<usize> {
        self.connections.subscribe()
    }

    pub(super) fn connected(self: &Arc<Self>) -> Connected {
        self.connections.send_modify(|n| *n += 1);
        Connected(Arc::clone(self))
    }

    /// Something no test asked for: a foreign path, a body that is no JSON, a panic in a test's own closure.
    pub(super) fn oddity(&self, what: String) {
        lock(&self.oddities).push(what);
    }

    pub(super) fn oddities(&self) -> Vec<String> {
        lock(&self.oddities).clone()
    }

    pub(super) fn describe(&self) -> String {
        let records = self.records();
        let mut text = format!("{} requests at the scripted model:", records.len());
        for record in records.iter().take(50) {
            let progress = record.progress();
            let _ = write!(text, "\n  {}: {:?} {:?}", record.index, record.last_user_text, progress);
        }
        for oddity in self.oddities() {
            let _ = write!(text, "\n  oddity: {oddity}");
        }
        text
    }
}

/// One open connection, counted while this lives.
pub(super) struct Connected(Arc<Stage>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.send_modify(|n| *n -= 1);
    }
}

fn user_texts(body: &Value) -> Vec<String> {
    let messages = body.get("messages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let users = messages.iter().filter(|m| m.get("role").and_then(Value::as_str) == Some("user"));
    // In the Anthropic dialect results are said by the user too, and are no words of his.
    users.map(text_of).filter(|text| !text.is_empty()).collect()
}

fn text_of(message: &Value) -> String {
    match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> = parts.iter().filter_map(|p| p.get("text").and_then(Value::as_str)).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

fn markers(body: &Value) -> Vec<String> {
    let texts = user_texts(body);
    let words = texts.iter().flat_map(|text| text.split_whitespace());
    words.filter_map(|word| word.strip_prefix("marker:")).map(str::to_owned).collect()
}
