//! Queue audit entries without waiting and write them to the database in a background task, so that no stop waits for
//! the audit list. Actions without any effect get no entry, for example a stop that found nothing to stop.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_kernel::StopLevel;
use quell_kernel::registry::{StopRequest, StopScope};
use quell_protocol::api::Page;
use quell_protocol::audit::{Action, AuditRow};
use quell_protocol::{AgentId, Requester, RunId};
use quell_store::{AuditEntry, Store, StoreError};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::{Caller, Engine, StopResult};

/// Entries that may wait while the database refuses writes; further ones go into the log.
const MAX_QUEUED_ENTRIES: usize = 10_000;

/// Delays between the attempts of a write. After the last one the entries go into the log.
const WRITE_RETRY_DELAYS: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(20)];

/// How long a reader waits until earlier entries are written.
const READER_MAX_WAIT: Duration = Duration::from_secs(1);

/// Run ids that one entry lists; further ones are counted.
const MAX_LISTED_IDS: usize = 10;

#[derive(Debug, Clone)]
pub struct AuditAction {
    pub action: Action,
    /// Kind and name, separated by a space.
    pub target: Option<String>,
    /// Details for people. No text of messages, no secrets.
    pub detail: Option<String>,
}

impl AuditAction {
    /// An action on a target of this kind and name.
    pub fn on_target(action: Action, kind: &str, name: impl AsRef<str>) -> Self {
        Self { action, target: Some(format!("{kind} {}", name.as_ref())), detail: None }
    }

    #[must_use]
    pub fn with_detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }
}

/// Entries that are not in the database yet.
#[derive(Debug, Default)]
pub(super) struct AuditQueue {
    state: Mutex<AuditQueueState>,
    entry_added: Notify,
    /// Number of entries that are in the database, or in the log for good.
    processed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct AuditQueueState {
    entries: VecDeque<AuditEntry>,
    /// Number of entries that were queued so far.
    accepted: u64,
    closed: bool,
}

impl AuditQueue {
    pub(super) fn push(&self, entry: AuditEntry) {
        let mut state = self.lock_state();
        if state.closed || state.entries.len() >= MAX_QUEUED_ENTRIES {
            drop(state);
            let why = "the audit writer has ended, or too many entries wait";
            return log_unwritten(&entry, why);
        }
        state.entries.push_back(entry);
        state.accepted += 1;
        drop(state);
        self.entry_added.notify_one();
    }

    fn take_all(&self) -> Vec<AuditEntry> {
        self.lock_state().entries.drain(..).collect()
    }

    fn mark_processed(&self, entries: usize) {
        self.processed.send_modify(|settled| *settled += entries as u64);
    }

    /// Waits until the entries queued so far can be read, at most [`READER_MAX_WAIT`], because the database may refuse
    /// for long.
    async fn wait_written(&self) {
        let accepted = self.lock_state().accepted;
        let mut processed = self.processed.subscribe();
        // The sender lives in `self`, so only the timeout can end this early.
        let _ = timeout(READER_MAX_WAIT, processed.wait_for(|settled| *settled >= accepted)).await;
    }

    fn close(&self) {
        self.lock_state().closed = true;
    }

    fn lock_state(&self) -> MutexGuard<'_, AuditQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Records an action of `caller`. Returns at once; a task of the engine writes the entry.
    pub fn audit(&self, caller: &Caller, audit_action: AuditAction) {
        let AuditAction { action, target, detail } = audit_action;
        let from = caller.origin.as_str().map(str::to_owned);
        let (principal, surface) = (caller.principal.clone(), caller.surface);
        let at = self.inner().clock.rfc3339(self.inner().clock.now());
        self.inner().audit_queue.push(AuditEntry { at, principal, surface, from, action, target, detail });
    }

    /// Records an effect of something that this person said earlier.
    pub(super) fn audit_requester(&self, by: &Requester, audit_action: AuditAction) {
        let AuditAction { action, target, detail } = audit_action;
        let (principal, surface, from) = (by.principal.clone(), by.surface, None);
        let at = self.inner().clock.rfc3339(self.inner().clock.now());
        self.inner().audit_queue.push(AuditEntry { at, principal, surface, from, action, target, detail });
    }

    /// The audit list after number `after`, the oldest first. It includes the caller's own earlier actions, unless the
    /// database refuses writes.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_audit(&self, after: u64, limit: usize) -> Result<Page<AuditRow>, StoreError> {
        self.inner().audit_queue.wait_written().await;
        let (items, more) = self.inner().store.audit().list(after, limit).await?;
        let next_cursor = items.last().filter(|_| more).map(|row| row.seq.to_string());
        Ok(Page { items, next_cursor })
    }

    pub(super) fn audit_stop(
        &self,
        caller: &Caller,
        scope: &StopScope,
        request: &StopRequest,
        stop_result: &StopResult,
    ) {
        // A second stop that forces what the first one asked for has an effect, too.
        let is_forced = request.level == StopLevel::Forced;
        let escalated = is_forced && !stop_result.already_ending.is_empty();
        if !stop_result.stopped_anything() && !escalated && stop_result.background.tasks.is_empty() {
            return;
        }
        let audit_action = match scope {
            StopScope::Run { id, .. } => AuditAction::on_target(Action::Stop, "run", id.as_str()),
            StopScope::Session { key, .. } => AuditAction::on_target(Action::Stop, "session", key.as_str()),
            StopScope::Agent { id, .. } => AuditAction::on_target(Action::Stop, "agent", id.as_str()),
            StopScope::Agents { ids } => {
                let names: Vec<&str> = ids.iter().map(AgentId::as_str).collect();
                AuditAction::on_target(Action::Stop, "agents", names.join(", "))
            }
            StopScope::Conversation { scope, .. } => {
                let conversation = format!("{} {} {}", scope.channel, scope.reply_target, scope.sender);
                AuditAction::on_target(Action::Stop, "conversation", &conversation)
            }
            StopScope::Channel { name } => AuditAction::on_target(Action::Stop, "channel", name),
            StopScope::Everything => {
                AuditAction { action: Action::Stop, target: Some("everything".to_owned()), detail: None }
            }
        };
        let mut parts = Vec::new();
        parts.extend(list_run_ids("stopped", &stop_result.aborted));
        parts.extend(list_run_ids("ending before", &stop_result.already_ending));
        if stop_result.background.newly_ended > 0 {
            parts.push(format!("background processes: {}", stop_result.background.newly_ended));
        }
        if stop_result.servers.newly_ended > 0 {
            parts.push(format!("MCP servers: {}", stop_result.servers.newly_ended));
        }
        if !stop_result.background.tasks.is_empty() {
            parts.push(format!("background tasks: {}", stop_result.background.tasks.len()));
        }
        if is_forced {
            parts.push("forced".to_owned());
        }
        parts.push(format!("reason: {}", request.reason));
        self.audit(caller, audit_action.with_detail(parts.join("; ")));
    }
}

fn list_run_ids(what: &str, runs: &[RunId]) -> Option<String> {
    let ids: Vec<&str> = runs.iter().take(MAX_LISTED_IDS).map(RunId::as_str).collect();
    let more = runs.len().saturating_sub(MAX_LISTED_IDS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!ids.is_empty()).then(|| format!("{what}: {}{more}", ids.join(", ")))
}

/// Writes entries to the database until the engine closes, and then those queued by that time.
pub(super) async fn run_audit_writer(engine: Engine) {
    let (audit_queue, store) = (&engine.0.audit_queue, &engine.0.store);
    loop {
        tokio::select! {
            () = engine.0.closing.cancelled() => break,
            () = audit_queue.entry_added.notified() => {
                let entries = audit_queue.take_all();
                write_with_retries(&engine, &entries).await;
                audit_queue.mark_processed(entries.len());
            }
        }
    }
    audit_queue.close();
    let last = audit_queue.take_all();
    if let Err(error) = append_entries(store, &last).await {
        last.iter().for_each(|entry| log_unwritten(entry, &error.to_string()));
    }
    audit_queue.mark_processed(last.len());
}

/// Writes entries, with retries. Skips the delays once the engine closes.
async fn write_with_retries(engine: &Engine, entries: &[AuditEntry]) {
    if entries.is_empty() {
        return;
    }
    let mut pauses = WRITE_RETRY_DELAYS.into_iter();
    loop {
        let Err(error) = append_entries(&engine.0.store, entries).await else { return };
        let Some(pause) = pauses.next().filter(|_| !engine.0.closing.is_cancelled()) else {
            return entries.iter().for_each(|entry| log_unwritten(entry, &error.to_string()));
        };
        tracing::warn!(%error, entries = entries.len(), "the audit list could not be written; it is tried again");
        tokio::select! {
            () = engine.0.closing.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn append_entries(store: &Store, entries: &[AuditEntry]) -> Result<(), StoreError> {
    store.audit().append(entries.to_vec()).await
}

/// Logs the whole entry, because it is nowhere else.
fn log_unwritten(entry: &AuditEntry, why: &str) {
    let AuditEntry { at, principal, surface, from, action, target, detail } = entry;
    let action = action.as_str();
    tracing::error!(%at, %principal, ?surface, ?from, action, ?target, ?detail, why, "an audit entry could not be stored; it is only in this log");
}
