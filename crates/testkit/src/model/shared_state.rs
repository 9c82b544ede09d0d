//! State shared by the server's thread and the test: the script, the gates, the records.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

use super::recorded_request::{RecordedRequest, ResponseProgress};
use super::request_checks;
use super::scripted_response::ScriptedResponse;
use crate::fake_server::http1::RawHttpRequest;
use crate::history_check::corpus::ModelDialect;
use crate::history_check::{list_of, text_of};

pub(super) type ResponseChooser = Arc<dyn Fn(&str, &RecordedRequest) -> ScriptedResponse + Send + Sync>;

#[derive(Default)]
pub(super) struct ModelServerState {
    pub(super) queue: Mutex<VecDeque<ScriptedResponse>>,
    pub(super) response_chooser: Mutex<Option<ResponseChooser>>,
    records: Mutex<Vec<Arc<RecordedRequest>>>,
    /// True when valid requests are counted without keeping them.
    pub(super) discards_valid: AtomicBool,
    arrived: watch::Sender<usize>,
    gates: watch::Sender<BTreeSet<String>>,
    connections: watch::Sender<usize>,
    unexpected: Mutex<Vec<String>>,
}

impl std::fmt::Debug for ModelServerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

/// A poisoned lock means that another thread of the same test has panicked; the data is still valid.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ModelServerState {
    /// The script comes first, then the choice by prompt, then a short answer.
    pub(super) fn next_response(&self, request: &RecordedRequest) -> ScriptedResponse {
        if let Some(behaviour) = lock(&self.queue).pop_front() {
            return behaviour;
        }
        // Clone, so that a slow or panicking chooser holds no lock.
        let choose = lock(&self.response_chooser).clone();
        choose.map_or_else(|| ScriptedResponse::text("Done."), |choose| choose(&request.last_user_text, request))
    }

    pub(super) fn open_gate(&self, name: &str) {
        self.gates.send_modify(|open| {
            open.insert(name.to_owned());
        });
    }

    /// Waits for a gate. Safe to drop: it only reads.
    pub(super) async fn wait_for_gate(&self, name: &str) {
        // The sender lives in `self`, so it cannot be dropped during the wait.
        let _ = self.gates.subscribe().wait_for(|open| open.contains(name)).await;
    }

    pub(super) fn record_request(
        &self,
        incoming: RawHttpRequest,
        dialect: ModelDialect,
        body: Value,
    ) -> Arc<RecordedRequest> {
        let violations = request_checks::check_request_body(dialect, &body);
        let mut records = lock(&self.records);
        let recorded = Arc::new(RecordedRequest {
            index: *self.arrived.borrow(),
            dialect,
            headers: incoming.headers,
            last_user_text: user_texts(dialect, &body).pop().unwrap_or_default(),
            markers: markers(dialect, &body),
            violations,
            body,
            progress: watch::Sender::new(ResponseProgress::default()),
        });
        if !self.discards_valid.load(Ordering::Relaxed) || !recorded.violations.is_empty() {
            records.push(Arc::clone(&recorded));
        }
        let count = recorded.index + 1;
        // Notify without the lock: a waiter for arrivals locks the records while it borrows the count.
        drop(records);
        self.arrived.send_replace(count);
        recorded
    }

    pub(super) fn watch_arrivals(&self) -> watch::Receiver<usize> {
        self.arrived.subscribe()
    }

    pub(super) fn record(&self, index: usize) -> Option<Arc<RecordedRequest>> {
        lock(&self.records).iter().find(|record| record.index == index).cloned()
    }

    pub(super) fn records(&self) -> Vec<Arc<RecordedRequest>> {
        lock(&self.records).clone()
    }

    pub(super) fn watch_connections(&self) -> watch::Receiver<usize> {
        self.connections.subscribe()
    }

    pub(super) fn count_connection(self: &Arc<Self>) -> ModelConnectionGuard {
        self.connections.send_modify(|n| *n += 1);
        ModelConnectionGuard(Arc::clone(self))
    }

    /// Records something that no test asked for: an unknown path, a body that is not JSON, a panic in a test's closure.
    pub(super) fn report_unexpected(&self, what: String) {
        lock(&self.unexpected).push(what);
    }

    pub(super) fn unexpected_events(&self) -> Vec<String> {
        lock(&self.unexpected).clone()
    }

    pub(super) fn describe(&self) -> String {
        let records = self.records();
        let mut text = format!("{} requests at the scripted model:", records.len());
        for record in records.iter().take(50) {
            let progress = record.progress();
            let _ = write!(text, "\n  {}: {:?} {:?}", record.index, record.last_user_text, progress);
        }
        for oddity in self.unexpected_events() {
            let _ = write!(text, "\n  oddity: {oddity}");
        }
        text
    }
}

/// Counts one open connection while this lives.
pub(super) struct ModelConnectionGuard(Arc<ModelServerState>);

impl Drop for ModelConnectionGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.report_unexpected("a connection failed".to_owned());
        }
        self.0.connections.send_modify(|n| *n -= 1);
    }
}

fn user_texts(dialect: ModelDialect, body: &Value) -> Vec<String> {
    let users = list_of(body, dialect.messages_field()).iter().filter(|message| text_of(message, "role") == "user");
    // In two dialects tool results have the role `user` too, but no text of the user.
    users.map(message_text).filter(|text| !text.is_empty()).collect()
}

fn message_text(message: &Value) -> String {
    match message.get("content").or_else(|| message.get("parts")) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

fn markers(dialect: ModelDialect, body: &Value) -> Vec<String> {
    let texts = user_texts(dialect, body);
    let words = texts.iter().flat_map(|text| text.split_whitespace());
    words.filter_map(|word| word.strip_prefix("marker:")).map(str::to_owned).collect()
}
