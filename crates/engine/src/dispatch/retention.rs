//! What is not kept for ever. Nothing is thrown away unless the configuration says so, and never what is in use.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quell_protocol::audit::Action;
use quell_protocol::{Principal, SessionKey, Surface};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::Engine;
use crate::access::DAEMON;
use crate::cell::Notice;
use crate::store::{AuditEntry, Deleted, Idle, StoreError};

/// When the first look is taken, so that a start has nothing else to do.
const FIRST: Duration = Duration::from_secs(60);
/// Between two looks.
const BEAT: Duration = Duration::from_secs(600);
/// Sessions that are looked at together.
const PAGE: usize = 500;
/// Receipts of deleted sessions that are thrown away in one step.
const RECEIPTS: u32 = 256;
/// Pages that are given back in one transaction: a MiB.
const STEP: u32 = 256;
/// Free pages that stay for what comes next.
const SPARE: u64 = 1024;

/// `[retention]`: what is thrown away. Whole sessions, with their history and their runs, the oldest use first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Sessions that were not used for so many days; no limit without it.
    pub max_age_days: Option<u32>,
    /// Sessions beyond this number; no limit without it.
    pub max_sessions: Option<u64>,
    /// Sessions while the database has more than this in use, in MiB; no limit without it.
    pub max_mib: Option<u64>,
    /// Days for which the audit list is kept.
    pub audit_days: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Self { max_age_days: None, max_sessions: None, max_mib: None, audit_days: 365 }
    }
}

impl Retention {
    fn keeps_all_sessions(&self) -> bool {
        self.max_age_days.is_none() && self.max_sessions.is_none() && self.max_mib.is_none()
    }
}

/// How far a look has come.
struct Look {
    /// Sessions with a last use before this are too old.
    oldest: Option<String>,
    /// Sessions too many.
    excess: u64,
    now: String,
}

impl Engine {
    /// True while something goes on in a session, or may go on at any moment: it is in memory, has a run that is not over (an
    /// approval that waits is one) or a background process that lives.
    #[must_use]
    pub fn is_in_use(&self, key: &SessionKey) -> bool {
        let inner = self.inner();
        inner.sessions.is_live(key)
            || !inner.runs.of_session(key).is_empty()
            || inner.workshop.background.has_of_session(key)
    }

    /// Throws away what the configuration says, as of `now`. Answers the sessions.
    ///
    /// # Errors
    /// The store's error; what was thrown away before stays so.
    ///
    /// # Cancel safety
    /// Safe: each session goes whole or not at all.
    pub async fn retire_sessions(&self, now: Timestamp) -> Result<Vec<SessionKey>, StoreError> {
        let (config, store) = (&self.inner().config.retention, &self.inner().store);
        let mut gone = Vec::new();
        if config.keeps_all_sessions() {
            return Ok(gone);
        }
        let excess = match config.max_sessions {
            Some(most) => store.count_sessions().await?.saturating_sub(most),
            None => 0,
        };
        let oldest = config.max_age_days.map(|days| days_before(now, days));
        if let Some(oldest) = &oldest {
            store.forget_receipts(oldest.clone()).await?;
        }
        if let Some(most) = config.max_mib {
            // What is left of deleted sessions goes before any that is there.
            while store.used_bytes().await? > most.saturating_mul(1 << 20) {
                if self.inner().closing.is_cancelled() || store.forget_oldest_receipts(RECEIPTS).await? == 0 {
                    break;
                }
            }
        }
        let mut look = Look { oldest, excess, now: rfc3339(now) };
        let mut after = None;
        loop {
            let page = store.idle_sessions(after, PAGE).await?;
            for idle in &page {
                if self.inner().closing.is_cancelled() {
                    return Ok(gone);
                }
                let Some(why) = self.why_not_kept(&look, idle).await? else { return Ok(gone) };
                if self.retire(&look, idle, why).await? {
                    look.excess = look.excess.saturating_sub(1);
                    gone.push(idle.key.clone());
                }
            }
            let Some(last) = page.into_iter().next_back() else { return Ok(gone) };
            after = Some(last);
        }
    }

    /// None when this session stays, and with it all that were used later.
    async fn why_not_kept(&self, look: &Look, idle: &Idle) -> Result<Option<String>, StoreError> {
        let config = &self.inner().config.retention;
        if let (Some(oldest), Some(days)) = (&look.oldest, config.max_age_days)
            && idle.used_at < *oldest
        {
            return Ok(Some(format!("retention: not used for {days} days, since {}", idle.used_at)));
        }
        if let Some(most) = config.max_sessions.filter(|_| look.excess > 0) {
            return Ok(Some(format!("retention: there were more than {most} sessions; last used {}", idle.used_at)));
        }
        let Some(most) = config.max_mib else { return Ok(None) };
        let large = self.inner().store.used_bytes().await? > most.saturating_mul(1 << 20);
        Ok(large
            .then(|| format!("retention: the database had more than {most} MiB in use; last used {}", idle.used_at)))
    }

    async fn retire(&self, look: &Look, idle: &Idle, why: String) -> Result<bool, StoreError> {
        if self.is_in_use(&idle.key) {
            return Ok(false);
        }
        let Ok(principal) = Principal::parse(DAEMON) else { return Ok(false) };
        let entry = AuditEntry {
            at: look.now.clone(),
            principal,
            surface: Surface::Daemon,
            from: None,
            action: Action::DeleteSession,
            target: Some(format!("session {}", idle.key)),
            detail: Some(why.clone()),
        };
        // Nobody makes its successor until all of it is gone.
        let _shut = self.inner().sessions.end(&idle.key).await;
        // It says no when a message came in this very moment: so the files go after it.
        if self.inner().store.retire_session(idle.clone(), entry).await? != Deleted::Yes {
            return Ok(false);
        }
        self.inner().sessions.forget_history(&idle.key);
        self.remove_files(&idle.key).await;
        tracing::info!(session = %idle.key, why, "session deleted");
        self.inner().hub.publish(&Notice::Session { key: idle.key.clone(), reason: "delete" });
        Ok(true)
    }

    async fn look_after(&self, now: Timestamp) -> Result<(), StoreError> {
        let store = &self.inner().store;
        self.retire_sessions(now).await?;
        let forgotten = store.forget_audit(days_before(now, self.inner().config.retention.audit_days)).await?;
        if forgotten > 0 {
            tracing::info!(entries = forgotten, "old entries of the audit list are forgotten");
        }
        let mut free = store.free_pages().await?;
        while free > SPARE && !self.inner().closing.is_cancelled() {
            let left = store.give_back(STEP).await?;
            if left >= free {
                // A database of the first versions gives nothing back; what is free is used again.
                break;
            }
            free = left;
        }
        Ok(())
    }
}

/// Looks after the database until the engine closes.
pub(super) async fn keep_within_bounds(engine: Engine) {
    let mut beat = interval_at(Instant::now() + FIRST, BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = engine.0.closing.cancelled() => return,
            _ = beat.tick() => {}
        }
        let now = engine.0.clock.timestamp(engine.0.clock.now());
        match engine.look_after(now).await {
            Ok(()) | Err(StoreError::Closed) => {}
            Err(error) => tracing::error!(%error, "the database could not be looked after; it is tried again"),
        }
    }
}

fn days_before(now: Timestamp, days: u32) -> String {
    let days = SignedDuration::from_hours(i64::from(days) * 24);
    rfc3339(now.checked_sub(days).unwrap_or(Timestamp::MIN))
}

/// As the clock writes it, so that times compare as texts.
fn rfc3339(time: Timestamp) -> String {
    format!("{time:.6}")
}
