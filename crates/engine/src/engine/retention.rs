//! Delete old sessions, receipts, stored responses and audit entries as `[retention]` says, and return free pages.
//! Sessions in use are never deleted.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quell_protocol::audit::Action;
use quell_protocol::{Principal, SessionKey, Surface};
use quell_store::{AuditEntry, DeleteSessionOutcome, IdleSession, ResponseOwner, StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::{DutyPermit, Engine};
use crate::access::DAEMON_PRINCIPAL;
use crate::agent::MODEL_CALLS;
use crate::live_run::EngineNotice;

const SECONDS_OF_DAY: i64 = 24 * 60 * 60;
/// Delay of the first pass, so that it does not slow down the start.
const FIRST_RUN_DELAY: Duration = Duration::from_secs(60);
const RUN_INTERVAL: Duration = Duration::from_secs(600);
/// The name of the duty in a cluster.
const RETENTION_DUTY: &str = "retention";
/// Sessions that are read from the database at a time.
const SESSION_BATCH: usize = 500;
/// Receipts of deleted sessions that are deleted in one step.
const RECEIPT_BATCH: u32 = 256;
/// Stored responses or conversations that are deleted in one step.
const RESPONSE_BATCH: u32 = 8;
/// Pages that are returned to the file system in one transaction: 1 MiB.
const FREE_PAGE_BATCH: u32 = 256;
/// Free pages that are kept for later writes.
const SPARE_FREE_PAGES: u64 = 1024;

/// `[retention]`: which sessions are deleted, with their history and their runs, the least recently used first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Deletes sessions that were not used for this many days; no limit if absent.
    pub max_age_days: Option<u32>,
    /// Deletes sessions beyond this number; no limit if absent.
    pub max_sessions: Option<u64>,
    /// Deletes sessions while the database has more than this in use, in MiB; no limit if absent.
    pub max_mib: Option<u64>,
    /// MiB of responses and conversations of the Responses API that are kept for each token.
    pub responses_mib: u64,
    /// Days for which the audit list is kept.
    pub audit_days: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Self { max_age_days: None, max_sessions: None, max_mib: None, responses_mib: 1024, audit_days: 365 }
    }
}

impl Retention {
    fn keeps_all_sessions(&self) -> bool {
        self.max_age_days.is_none() && self.max_sessions.is_none() && self.max_mib.is_none()
    }
}

struct RetentionPass {
    /// Sessions that were last used before this time are too old.
    min_used_at: Option<String>,
    excess: u64,
    now: String,
}

impl Engine {
    /// True while a session is in memory, has a run that is not over (also one that waits for an approval), or has a
    /// live background process.
    pub fn is_session_in_use(&self, key: &SessionKey) -> bool {
        let inner = self.inner();
        inner.sessions.is_live(key)
            || !inner.runs.runs_of_session(key).is_empty()
            || inner.services.background.has_work_of_session(key)
    }

    /// Deletes sessions as the configuration says, as of `now`. Returns their keys.
    ///
    /// # Errors
    /// The store's error; sessions that were already deleted stay deleted.
    ///
    /// # Cancel safety
    /// Safe: each session is deleted whole or not at all.
    pub async fn apply_session_retention(&self, now: Timestamp) -> Result<Vec<SessionKey>, StoreError> {
        self.delete_old_sessions(now, || true).await
    }

    async fn delete_old_sessions(
        &self,
        now: Timestamp,
        may_go_on: impl Fn() -> bool,
    ) -> Result<Vec<SessionKey>, StoreError> {
        let is_over = || self.inner().closing.is_cancelled() || !may_go_on();
        let (config, store) = (&self.inner().config.retention, &self.inner().store);
        let mut deleted = Vec::new();
        if config.keeps_all_sessions() {
            return Ok(deleted);
        }
        let excess = match config.max_sessions {
            Some(max_sessions) => store.sessions().count().await?.saturating_sub(max_sessions),
            None => 0,
        };
        let min_used_at = config.max_age_days.map(|days| days_before(now, days));
        self.delete_old_responses(now, is_over).await?;
        if let Some(oldest) = &min_used_at {
            store.runs().delete_receipts_before(oldest.clone()).await?;
            // Their sessions are in use as long as calls are made.
            store.runs().delete_runs_of_agent_before(MODEL_CALLS.clone(), oldest.clone()).await?;
        }
        // Delete receipts of deleted sessions before any existing session.
        while self.is_over_size_limit().await? {
            if is_over() || store.runs().delete_oldest_receipts(RECEIPT_BATCH).await? == 0 {
                break;
            }
        }
        let mut pass = RetentionPass { min_used_at, excess, now: format_time(now) };
        let mut after = None;
        loop {
            let page = store.sessions().list_idle(after, SESSION_BATCH).await?;
            for idle in &page {
                if is_over() {
                    return Ok(deleted);
                }
                let Some(why) = self.deletion_reason(&pass, idle).await? else { return Ok(deleted) };
                if self.delete_idle_session(&pass, idle, why).await? {
                    pass.excess = pass.excess.saturating_sub(1);
                    deleted.push(idle.key.clone());
                }
            }
            let Some(last) = page.into_iter().next_back() else { return Ok(deleted) };
            after = Some(last);
        }
    }

    /// Why this session is to be deleted. `None` if it stays, and with it all that were used later.
    async fn deletion_reason(&self, pass: &RetentionPass, idle: &IdleSession) -> Result<Option<String>, StoreError> {
        let config = &self.inner().config.retention;
        if let (Some(oldest), Some(days)) = (&pass.min_used_at, config.max_age_days)
            && idle.used_at < *oldest
        {
            return Ok(Some(format!("retention: not used for {days} days, since {}", idle.used_at)));
        }
        if let Some(max_sessions) = config.max_sessions.filter(|_| pass.excess > 0) {
            return Ok(Some(format!(
                "retention: there were more than {max_sessions} sessions; last used {}",
                idle.used_at
            )));
        }
        let Some(max_mib) = config.max_mib else { return Ok(None) };
        Ok(self
            .is_over_size_limit()
            .await?
            .then(|| format!("retention: the database had more than {max_mib} MiB in use; last used {}", idle.used_at)))
    }

    async fn is_over_size_limit(&self) -> Result<bool, StoreError> {
        let Some(max_mib) = self.inner().config.retention.max_mib else { return Ok(false) };
        Ok(self.inner().store.maintenance().used_bytes().await? > max_mib.saturating_mul(1 << 20))
    }

    /// Deletes stored responses and conversations that are too old, and the oldest ones while the database is too big.
    async fn delete_old_responses(&self, now: Timestamp, is_over: impl Fn() -> bool) -> Result<(), StoreError> {
        let responses = self.responses();
        let mut deleted = 0;
        if let Some(days) = self.inner().config.retention.max_age_days {
            deleted += responses.delete_older(now.as_second().saturating_sub(i64::from(days) * SECONDS_OF_DAY)).await?;
        }
        while !is_over() && self.is_over_size_limit().await? {
            let mut count = responses.delete_oldest(ResponseOwner::Anybody, RESPONSE_BATCH).await?;
            if count == 0 {
                count = responses.delete_oldest_conversations(RESPONSE_BATCH).await?;
            }
            if count == 0 {
                break;
            }
            deleted += count;
        }
        if deleted > 0 {
            tracing::info!(deleted, "old responses and conversations of the Responses API are deleted");
        }
        Ok(())
    }

    /// Makes room for one more response or conversation of an owner: deletes its oldest responses beyond
    /// `responses_mib`. False if its conversations take the room.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: fewer are deleted then.
    pub async fn make_response_room(&self, owner: &Principal) -> Result<bool, StoreError> {
        let limit = self.inner().config.retention.responses_mib.saturating_mul(1 << 20);
        loop {
            if self.responses().used_bytes(owner.clone()).await? <= limit {
                return Ok(true);
            }
            let deleted = self.responses().delete_oldest(ResponseOwner::One(owner.clone()), RESPONSE_BATCH).await?;
            if deleted == 0 {
                return Ok(false);
            }
            tracing::info!(%owner, deleted, "the responses of a token took too much room; the oldest are deleted");
        }
    }

    async fn delete_idle_session(
        &self,
        pass: &RetentionPass,
        idle: &IdleSession,
        why: String,
    ) -> Result<bool, StoreError> {
        if self.is_session_in_use(&idle.key) {
            return Ok(false);
        }
        let Ok(principal) = Principal::parse(DAEMON_PRINCIPAL) else { return Ok(false) };
        let entry = AuditEntry {
            at: pass.now.clone(),
            principal,
            surface: Surface::Daemon,
            from: None,
            action: Action::DeleteSession,
            target: Some(format!("session {}", idle.key)),
            detail: Some(why.clone()),
        };
        // Nobody can create a session with this key until all of it is deleted.
        let _shut = self.inner().sessions.end_session(&idle.key).await;
        let own_workdir = self.find_own_workdir(&idle.key).await?;
        // Files are removed after the row: the store refuses if a message arrived at this moment.
        if self.inner().store.sessions().delete_idle(idle.clone(), entry).await? != DeleteSessionOutcome::Deleted {
            return Ok(false);
        }
        self.inner().sessions.forget_history(&idle.key);
        self.inner().sessions.owners().remove(&idle.key);
        self.remove_session_files(&idle.key, own_workdir).await;
        tracing::info!(session = %idle.key, why, "session deleted");
        self.inner().hub.publish(&EngineNotice::session_changed(idle.key.clone(), "delete"));
        Ok(true)
    }

    async fn apply_retention(&self, now: Timestamp, permit: &DutyPermit) -> Result<(), StoreError> {
        let store = &self.inner().store;
        self.delete_old_sessions(now, || permit.permits_work()).await?;
        let forgotten = store.audit().delete_before(days_before(now, self.inner().config.retention.audit_days)).await?;
        if forgotten > 0 {
            tracing::info!(entries = forgotten, "old entries of the audit list are forgotten");
        }
        let expired = store.responses().delete_expired(now.as_second()).await?;
        if expired.responses + expired.conversations > 0 {
            let (responses, conversations) = (expired.responses, expired.conversations);
            tracing::info!(responses, conversations, "expired responses and conversations are deleted");
        }
        let mut free_pages = store.maintenance().count_free_pages().await?;
        while free_pages > SPARE_FREE_PAGES && permit.permits_work() && !self.inner().closing.is_cancelled() {
            let remaining = store.maintenance().release_free_pages(FREE_PAGE_BATCH).await?;
            if remaining >= free_pages {
                // A database of the first versions cannot shrink; its free pages are used again.
                break;
            }
            free_pages = remaining;
        }
        Ok(())
    }
}

/// Applies the retention repeatedly until the engine closes. In a cluster, one node does so.
pub(super) async fn run_retention(engine: Engine) {
    engine.run_duty(RETENTION_DUTY, |permit| apply_repeatedly(&engine, permit)).await;
}

async fn apply_repeatedly(engine: &Engine, permit: DutyPermit) {
    let mut ticker = interval_at(Instant::now() + FIRST_RUN_DELAY, RUN_INTERVAL);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = engine.0.closing.cancelled() => return,
            _ = ticker.tick() => {}
        }
        let now = engine.0.clock.timestamp(engine.0.clock.now());
        let (task_engine, permit) = (engine.clone(), permit.clone());
        // Files are deleted after their row, so a pass that has begun ends between two sessions only.
        let pass = engine.run_detached(async move { task_engine.apply_retention(now, &permit).await });
        match pass.await {
            None | Some(Ok(()) | Err(StoreError::Closed)) => {}
            Some(Err(error)) => tracing::error!(%error, "retention failed; it is tried again"),
        }
    }
}

fn days_before(now: Timestamp, days: u32) -> String {
    let days = SignedDuration::from_hours(i64::from(days) * 24);
    format_time(now.checked_sub(days).unwrap_or(Timestamp::MIN))
}

/// Formats as the clock does, so that times compare as texts.
fn format_time(time: Timestamp) -> String {
    format!("{time:.6}")
}
