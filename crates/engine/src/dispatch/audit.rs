//! Who did what, when and from where. Noting it is synchronous and waits for nothing, so that no stop waits for the list; one
//! task carries the notes to the database. What did nothing is not noted: a stop that met nothing, a name that was not there.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_kernel::Push;
use quell_kernel::registry::{StopAsk, StopScope};
use quell_protocol::api::List;
use quell_protocol::audit::{Action, AuditRow};
use quell_protocol::{AgentId, RunId};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::{Caller, Engine, Stop};
use crate::store::{AuditEntry, Store, StoreError};

/// Notes that may wait for a database that refuses; those beyond go into the log.
const MOST: usize = 10_000;

/// Pauses between the tries of a write. Then it goes into the log.
const AGAIN: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(20)];

/// How long a reader of the list waits for what was noted before.
const WAIT: Duration = Duration::from_secs(1);

/// Ids that are written out.
const NAMED: usize = 10;

/// What was done to what.
#[derive(Debug, Clone)]
pub struct Deed {
    /// What.
    pub action: Action,
    /// To what: a kind, a space, its name.
    pub target: Option<String>,
    /// More about it, for people. No text of messages, no secrets.
    pub detail: Option<String>,
}

impl Deed {
    /// A deed to a thing of this kind and name.
    #[must_use]
    pub fn to(action: Action, kind: &str, name: impl AsRef<str>) -> Self {
        Self { action, target: Some(format!("{kind} {}", name.as_ref())), detail: None }
    }

    /// The same with more about it.
    #[must_use]
    pub fn with(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }
}

/// The notes that are not in the database yet.
#[derive(Debug, Default)]
pub(super) struct Notes {
    state: Mutex<State>,
    come: Notify,
    /// How many are in the database, or in the log for good.
    settled: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<AuditEntry>,
    /// How many were taken in so far.
    noted: u64,
    closed: bool,
}

impl Notes {
    fn add(&self, entry: AuditEntry) {
        let mut state = self.state();
        if state.closed || state.waiting.len() >= MOST {
            drop(state);
            let why = "nobody writes entries any more, or too many wait";
            return lose(&entry, why);
        }
        state.waiting.push_back(entry);
        state.noted += 1;
        drop(state);
        self.come.notify_one();
    }

    fn take(&self) -> Vec<AuditEntry> {
        self.state().waiting.drain(..).collect()
    }

    fn settle(&self, entries: usize) {
        self.settled.send_modify(|settled| *settled += entries as u64);
    }

    /// Waits until what was noted so far can be read, within reason: the database may refuse for long.
    async fn written(&self) {
        let noted = self.state().noted;
        let mut settled = self.settled.subscribe();
        // The sender lives in self, so that only the time can run out.
        let _ = timeout(WAIT, settled.wait_for(|settled| *settled >= noted)).await;
    }

    fn close(&self) {
        self.state().closed = true;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Notes that `caller` did something. It returns at once; the note is written by a task of the engine.
    pub fn audit(&self, caller: &Caller, deed: Deed) {
        let Deed { action, target, detail } = deed;
        let from = caller.origin.as_str().map(str::to_owned);
        let (principal, surface) = (caller.principal.clone(), caller.surface);
        let at = self.inner().clock.rfc3339(self.inner().clock.now());
        self.inner().notes.add(AuditEntry { at, principal, surface, from, action, target, detail });
    }

    /// The list behind number `after`, the oldest first. Who did something and asks then finds it there, unless the database
    /// refuses.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn audit_list(&self, after: u64, limit: usize) -> Result<List<AuditRow>, StoreError> {
        self.inner().notes.written().await;
        let (items, more) = self.inner().store.audit(after, limit).await?;
        let next_cursor = items.last().filter(|_| more).map(|row| row.seq.to_string());
        Ok(List { items, next_cursor })
    }

    pub(super) fn note_stop(&self, caller: &Caller, (scope, ask): (&StopScope, &StopAsk), stop: &Stop) {
        // A second stop that forces what the first one asked for does something, too.
        let forced = ask.push == Push::Forced;
        let escalated = forced && !stop.ending.is_empty();
        if !stop.did_something() && !escalated && stop.tasks.is_empty() {
            return;
        }
        let deed = match scope {
            StopScope::Run { id, .. } => Deed::to(Action::Stop, "run", id.as_str()),
            StopScope::Session { key, .. } => Deed::to(Action::Stop, "session", key.as_str()),
            StopScope::Agent { id, .. } => Deed::to(Action::Stop, "agent", id.as_str()),
            StopScope::Agents { ids } => {
                let names: Vec<&str> = ids.iter().map(AgentId::as_str).collect();
                Deed::to(Action::Stop, "agents", names.join(", "))
            }
            StopScope::Conversation { scope, .. } => {
                let whose = format!("{} {} {}", scope.channel, scope.reply_target, scope.sender);
                Deed::to(Action::Stop, "conversation", &whose)
            }
            StopScope::Channel { name } => Deed::to(Action::Stop, "channel", name),
            StopScope::Everything => Deed { action: Action::Stop, target: Some("everything".to_owned()), detail: None },
        };
        let mut parts = Vec::new();
        parts.extend(named("stopped", &stop.aborted));
        parts.extend(named("ending before", &stop.ending));
        if stop.ended > 0 {
            parts.push(format!("background processes: {}", stop.ended));
        }
        if !stop.tasks.is_empty() {
            parts.push(format!("background tasks: {}", stop.tasks.len()));
        }
        if forced {
            parts.push("forced".to_owned());
        }
        parts.push(format!("reason: {}", ask.reason));
        self.audit(caller, deed.with(parts.join("; ")));
    }
}

fn named(what: &str, runs: &[RunId]) -> Option<String> {
    let ids: Vec<&str> = runs.iter().take(NAMED).map(RunId::as_str).collect();
    let more = runs.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!ids.is_empty()).then(|| format!("{what}: {}{more}", ids.join(", ")))
}

/// Carries notes to the database until the engine closes, and what was noted by then once more.
pub(super) async fn keep_notes(engine: Engine) {
    let (notes, store) = (&engine.0.notes, &engine.0.store);
    loop {
        tokio::select! {
            () = engine.0.closing.cancelled() => break,
            () = notes.come.notified() => {
                let entries = notes.take();
                write(&engine, &entries).await;
                notes.settle(entries.len());
            }
        }
    }
    notes.close();
    let last = notes.take();
    if let Err(error) = append(store, &last).await {
        last.iter().for_each(|entry| lose(entry, &error.to_string()));
    }
    notes.settle(last.len());
}

/// Writes entries, as often as it takes within reason. A closing engine waits for no pause.
async fn write(engine: &Engine, entries: &[AuditEntry]) {
    if entries.is_empty() {
        return;
    }
    let mut pauses = AGAIN.into_iter();
    loop {
        let Err(error) = append(&engine.0.store, entries).await else { return };
        let Some(pause) = pauses.next().filter(|_| !engine.0.closing.is_cancelled()) else {
            return entries.iter().for_each(|entry| lose(entry, &error.to_string()));
        };
        tracing::warn!(%error, entries = entries.len(), "the audit list could not be written; it is tried again");
        tokio::select! {
            () = engine.0.closing.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

async fn append(store: &Store, entries: &[AuditEntry]) -> Result<(), StoreError> {
    store.append_audit(entries.to_vec()).await
}

/// The log has the whole entry, so that it can be found there.
fn lose(entry: &AuditEntry, why: &str) {
    let AuditEntry { at, principal, surface, from, action, target, detail } = entry;
    let action = action.as_str();
    tracing::error!(%at, %principal, ?surface, ?from, action, ?target, ?detail, why, "an entry of the audit list is only here");
}
