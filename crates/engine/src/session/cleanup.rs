//! Sweep idle sessions and clean them up step by step (row C7 in `docs/design/requirements.md`); retry failed steps. A
//! step that fails or takes too long does not prevent the other steps; it is reported and tried again at the next
//! sweep. The history of the session stays in the database.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::FutureExt;
use quell_kernel::session::{SessionCleanup, SessionUse};
use quell_mcp::ClosingServers;
use quell_protocol::SessionKey;
use quell_protocol::hook::{HookEvent, SessionFacts};
use quell_scope::{Cancelled, Point, PointProbe, Scope};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::resources::{BegunStage, SessionResources};
use super::{ActorState, NEWS_TTL, Sessions, SessionsState, wait_for_outcome};
use crate::hooks::{HookTrigger, undo_stage};

/// A step that has failed this often is given up.
const MAX_TRIES: u32 = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CleanupReason {
    Expired,
    /// This node drains, and another one may take the session.
    GivenBack,
    /// It was deleted, or removed while it was being created or changed.
    Ended,
    CreateFailed,
    Shutdown,
}

impl CleanupReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::GivenBack => "given back",
            Self::Ended => "ended",
            Self::CreateFailed => "not made",
            Self::Shutdown => "shutdown",
        }
    }
}

/// Prevents the creation of a session with this key until it is dropped.
#[derive(Debug)]
pub(crate) struct CreationBlock {
    sessions: Sessions,
    key: SessionKey,
}

impl Drop for CreationBlock {
    fn drop(&mut self) {
        let mut state = self.sessions.lock_state();
        state.table.unblock_creation(&self.key);
        state.notify_waiters(&self.key, None);
    }
}

pub(super) struct PendingCleanup {
    key: SessionKey,
    item: CleanupItem,
    tries: u32,
}

/// A resource that still has to be released.
enum CleanupItem {
    Stage(BegunStage),
    McpServers(ClosingServers),
    TemporaryFiles(TemporaryFiles),
}

/// The temporary files of a session's commands.
struct TemporaryFiles {
    sessions: Sessions,
    key: SessionKey,
}

impl CleanupItem {
    fn name(&self) -> &str {
        match self {
            Self::Stage(stage) => &stage.name,
            Self::McpServers(_) => "MCP connections",
            Self::TemporaryFiles(_) => "temporary files",
        }
    }

    /// Tries to release it. After an error it can be tried again.
    async fn release(&mut self, limit: Duration) -> Result<(), String> {
        match self {
            Self::Stage(stage) => {
                // waits: at most the limit; no run waits for a clean-up.
                undo_stage(&stage.name, stage.undo.as_mut(), limit).await.map_err(|error| error.to_string())
            }
            Self::McpServers(closing) => {
                // waits: as above.
                let Ok(leftovers) = timeout(limit, closing.wait_ended()).await else {
                    closing.kill_all();
                    return Err(format!("they did not end within {limit:?}; they are killed now"));
                };
                if leftovers.is_empty() { Ok(()) } else { Err(format!("they left {}", leftovers.join(", "))) }
            }
            Self::TemporaryFiles(files) => {
                let (runs, key) = (files.sessions.0.runs.clone(), files.key.clone());
                let scope = Scope::new(runs.clock(), PointProbe::default());
                let delete =
                    move |stop: &AtomicBool| runs.services().sandbox_site.delete_temporary_files_of(&key, stop);
                // waits: as above.
                let deleted = timeout(limit, scope.blocking(Point::Blocking, "temporary files", delete)).await;
                match deleted {
                    Ok(Ok(deleted)) => deleted.map_err(|error| error.to_string()),
                    Ok(Err(Cancelled)) => Err("the deletion was cancelled".to_owned()),
                    Err(_) => Err(format!("they were not deleted within {limit:?}")),
                }
            }
        }
    }
}

impl Sessions {
    /// Removes the sessions that have been idle for too long, begins their clean-up, and retries failed steps.
    pub fn sweep(&self) {
        let begun = Instant::now();
        // Taken before clean-ups begin, so that a step that fails in this sweep waits for the next one.
        let failed_before = {
            let now = self.0.runs.clock().now();
            let mut state = self.lock_state();
            // News has a time limit: most sessions of programs get only one message.
            state.news.retain(|_, news| now.since(news.updated_at) <= NEWS_TTL);
            std::mem::take(&mut state.pending_cleanups)
        };
        self.end_unused_sessions(CleanupReason::Expired, SessionResources::idle_timeout);
        metrics::histogram!("quell_session_sweep_seconds").record(begun.elapsed());
        // The retries run in the background.
        drop(self.retry_cleanups(failed_before));
    }

    /// Removes all sessions that nothing uses, and begins their clean-up.
    pub fn give_back_unused(&self) {
        self.end_unused_sessions(CleanupReason::GivenBack, |_| Duration::ZERO);
    }

    /// Removes the sessions that nothing has used for the time that `idle_timeout` gives, and begins their clean-up.
    fn end_unused_sessions(&self, reason: CleanupReason, idle_timeout: impl Fn(&SessionResources) -> Duration) {
        let now = self.0.runs.clock().now();
        let mut state = self.lock_state();
        let at_work = self.sessions_in_use();
        let state = &mut *state;
        let use_of = |key: &SessionKey, resources: &Arc<SessionResources>| {
            // Also in use while its actor finishes an ended run: a sweep never removes the actor state before that.
            let is_in_use = at_work.contains(key) || state.actors.get(key).is_some_and(ActorState::is_needed);
            if is_in_use { SessionUse::InUse } else { SessionUse::Idle { idle: idle_timeout(resources) } }
        };
        for cleanup in state.table.remove_expired(now, use_of) {
            state.actors.remove(&cleanup.key);
            self.spawn_cleanup(cleanup, reason);
        }
        let table = &state.table;
        state.actors.retain(|key, actor| table.state(key).is_some() || actor.is_needed() || at_work.contains(key));
    }

    /// Retries failed steps in a task of the engine. The sender is dropped when all of them were tried.
    fn retry_cleanups(&self, failed_before: Vec<PendingCleanup>) -> oneshot::Receiver<()> {
        let (done_guard, done) = oneshot::channel();
        if !failed_before.is_empty() {
            let sessions = self.clone();
            self.0.runs.spawn(async move {
                let _under_way = done_guard;
                for pending in failed_before {
                    // waits: in a task of the engine, at most the limit of each step.
                    sessions.run_cleanup_step(pending).await;
                }
            });
        }
        done
    }

    /// Drops cached histories that were not used for a while; the next run reads them again.
    pub fn drop_unused_histories(&self, unused: Duration) {
        let now = self.0.runs.clock().now();
        let unrecorded = self.0.runs.unrecorded_sessions();
        for (key, actor) in &mut self.lock_state().actors {
            if !actor.is_running && now.since(actor.used_at) > unused && !unrecorded.contains(key) {
                actor.history = None;
            }
        }
    }

    /// Ends the sweeps. A session that is being created without a run is given up.
    pub fn begin_close(&self) {
        self.0.closing.cancel();
    }

    /// Waits until [`Sessions::begin_close`] is called.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_for_close(&self) {
        // waits: for the shutdown, next to work that the shutdown ends.
        self.0.closing.cancelled().await;
    }

    /// Removes all sessions, refuses new ones, and cleans up until `deadline`. Failed steps are tried a last time.
    /// Returns how many sessions were not cleaned up completely.
    ///
    /// # Cancel safety
    /// Safe: the clean-ups go on in tasks of the engine.
    pub async fn close(&self, deadline: Instant) -> usize {
        let (departures, failed_before) = {
            let mut state = self.lock_state();
            (state.table.close(), std::mem::take(&mut state.pending_cleanups))
        };
        let count = departures.len();
        let retries_done = self.retry_cleanups(failed_before);
        for cleanup in departures {
            self.spawn_cleanup(cleanup, CleanupReason::Shutdown);
        }
        let all_cleaned_up = async {
            // Check the state, not the event: again after each clean-up, and when a creation has failed.
            let mut cleanup_count = self.0.cleanup_count.subscribe();
            let is_empty = |state: &SessionsState| state.table.is_empty() && !state.table.has_cleanups();
            // waits: for the shutdown, until the deadline.
            let _ = cleanup_count.wait_for(|_| is_empty(&self.lock_state())).await;
            // waits: as above; the sender is dropped when all steps were tried.
            let _ = retries_done.await;
        };
        // waits: as above.
        let in_time = timeout_at(deadline, all_cleaned_up).await.is_ok();
        let unclean = self.lock_state().pending_cleanups.len() + usize::from(!in_time);
        tracing::info!(sessions = count, unclean, "sessions closed");
        unclean
    }

    /// Ends one session, unless a run is active there, and blocks its creation until the result is dropped: its data
    /// can be deleted until then. Returns when it is cleaned up. If it is being created, waits for that first.
    pub(crate) async fn end_session(&self, key: &SessionKey) -> CreationBlock {
        self.lock_state().table.block_creation(key);
        let creation_block = CreationBlock { sessions: self.clone(), key: key.clone() };
        loop {
            let outcome_receiver = {
                let mut state = self.lock_state();
                if self.0.runs.has_working_run(key) {
                    return creation_block;
                }
                if let Some(cleanup) = state.table.remove(key) {
                    self.spawn_cleanup(cleanup, CleanupReason::Ended);
                }
                if state.table.is_gone(key) {
                    return creation_block;
                }
                state.add_waiter(key)
            };
            // waits: for steps that have a limit each; no run waits here.
            wait_for_outcome(outcome_receiver).await;
        }
    }

    /// Failed clean-up steps that will be tried again.
    pub fn count_pending_cleanups(&self) -> usize {
        self.lock_state().pending_cleanups.len()
    }

    /// Cleans up a session in a task of the engine. The caller has removed it from the session table.
    pub(super) fn spawn_cleanup(&self, cleanup: SessionCleanup<Arc<SessionResources>>, reason: CleanupReason) {
        self.0.runs.spawn(clean_up_session(self.clone(), cleanup, reason));
    }

    /// Sessions with a run that is not over (also one that waits for an approval), a background process, or a turn that
    /// is not recorded.
    fn sessions_in_use(&self) -> HashSet<SessionKey> {
        let mut in_use = self.0.runs.active_sessions();
        in_use.extend(self.0.runs.services().background.sessions_with_work());
        in_use.extend(self.0.runs.unrecorded_sessions());
        in_use
    }

    /// Whether a session may expire, judged without its runs: while its actor is needed or it has background processes,
    /// it is in use.
    pub(super) fn use_besides_runs(&self, resources: &SessionResources, actor: Option<&ActorState>) -> SessionUse {
        let background = &self.0.runs.services().background;
        let is_in_use = actor.is_some_and(ActorState::is_needed) || background.has_work_of_session(resources.key());
        if is_in_use { SessionUse::InUse } else { SessionUse::Idle { idle: resources.idle_timeout() } }
    }

    async fn run_cleanup_step(&self, mut pending: PendingCleanup) {
        let limit = self.0.timeouts.cleanup_timeout;
        // waits: at most the limit, in a task of the engine.
        let outcome = AssertUnwindSafe(pending.item.release(limit)).catch_unwind().await;
        let Some(problem) = outcome.map_or_else(|_| Some("it panicked".to_owned()), Result::err) else {
            if pending.tries > 0 {
                tracing::info!(session = %pending.key, step = pending.item.name(), "session clean-up step done at last");
            }
            // The step is done, even if its drop panics.
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(pending)));
            return;
        };
        pending.tries += 1;
        let (session, step, tries) = (&pending.key, pending.item.name(), pending.tries);
        if tries >= MAX_TRIES {
            tracing::error!(%session, step, tries, problem, "session clean-up step given up");
            return;
        }
        tracing::warn!(%session, step, tries, problem, "session clean-up step failed; it is tried again at the next sweep");
        metrics::counter!("quell_session_cleanup_failures_total").increment(1);
        self.lock_state().pending_cleanups.push(pending);
    }
}

/// Cleans up a session in this order: the events of its end, its stages in reverse, its agents with the model clients,
/// its MCP connections (row C7 in `docs/design/requirements.md`).
async fn clean_up_session(
    sessions: Sessions,
    mut cleanup: SessionCleanup<Arc<SessionResources>>,
    reason: CleanupReason,
) {
    if !cleanup.begin_cleanup(sessions.0.runs.clock().now()) {
        return;
    }
    let (key, resources) = (cleanup.key, cleanup.resources);
    let _leaving = CleanupGuard { sessions: sessions.clone(), key: key.clone() };
    // waits: for clean-ups that are limited themselves; the semaphore is never closed.
    let permit = sessions.0.cleanup_permits.acquire().await.ok();
    let limit = sessions.0.timeouts.cleanup_timeout;
    if reason == CleanupReason::Expired {
        sessions.send_session_event(HookEvent::Expire, &resources.facts, limit).await;
    }
    if reason != CleanupReason::CreateFailed {
        sessions.send_session_event(HookEvent::Terminate, &resources.facts, limit).await;
    }
    for stage in resources.take_stages().into_iter().rev() {
        sessions.run_cleanup_step(PendingCleanup { key: key.clone(), item: CleanupItem::Stage(stage), tries: 0 }).await;
    }
    resources.drop_agents();
    let closing_servers = sessions.0.runs.services().mcp.close_session(&key);
    sessions
        .run_cleanup_step(PendingCleanup { key: key.clone(), item: CleanupItem::McpServers(closing_servers), tries: 0 })
        .await;
    if sessions.0.runs.services().sandbox_site.has_temporary_files(&key) {
        let files = CleanupItem::TemporaryFiles(TemporaryFiles { sessions: sessions.clone(), key: key.clone() });
        // waits: as above.
        sessions.run_cleanup_step(PendingCleanup { key: key.clone(), item: files, tries: 0 }).await;
    }
    sessions.0.runs.services().background.forget_session(&key);
    sessions.0.runs.services().mcp.forget_session(&key);
    sessions.0.runs.services().approvals.forget_session(&key);
    drop(resources);
    drop(permit);
    if reason == CleanupReason::Expired {
        tracing::info!(session = %key, "session expired");
    }
    tracing::info!(session = %key, why = reason.as_str(), "session cleaned up");
}

/// A running clean-up. Its drop marks the end, also after a panic in code of the embedding program.
struct CleanupGuard {
    sessions: Sessions,
    key: SessionKey,
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        let mut state = self.sessions.lock_state();
        state.table.finish_cleanup(&self.key);
        state.notify_waiters(&self.key, None);
        drop(state);
        self.sessions.0.cleanup_count.send_modify(|departures| *departures += 1);
    }
}

impl Sessions {
    async fn send_session_event(&self, event: HookEvent, facts: &SessionFacts, limit: Duration) {
        if self.hooks().has_hooks_for(event) {
            // waits: at most the limit, in a task of the engine; no run waits for a clean-up.
            self.hooks().notify_and_wait(HookTrigger::for_session(event, facts.clone()), limit).await;
        }
    }
}

/// Sweeps at the configured interval until the daemon begins to close.
///
/// # Cancel safety
/// Must not be dropped: it is a task of the engine.
pub async fn run_sweeper(sessions: Sessions) {
    loop {
        // waits: between sweeps, in a task of the engine.
        tokio::select! {
            () = sessions.wait_for_close() => return,
            () = sleep(sessions.0.timeouts.sweep_interval) => sessions.sweep(),
        }
    }
}
