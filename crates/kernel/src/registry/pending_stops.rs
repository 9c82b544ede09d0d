//! Stops of run ids that are not accepted yet, kept for a minute: a run accepted with such an id ends at once.

use std::collections::VecDeque;
use std::time::Duration;

use quell_protocol::{Principal, RunId, SessionKey, Verdict};

use super::NewRun;
use crate::time::Moment;

/// How long a stop of an unknown id is kept for its principal.
const PENDING_STOP_TTL: Duration = Duration::from_secs(60);
/// Maximum number of pending stops, so that they cannot fill the memory.
pub(super) const MAX_PENDING_STOPS: usize = 1024;

#[derive(Debug)]
struct PendingStop {
    principal: Principal,
    id: RunId,
    /// If given, it must match the session of the run, as in any other stop.
    session: Option<SessionKey>,
    expires_at: Moment,
    verdict: Verdict,
}

/// Stops without a run yet, oldest first.
#[derive(Debug, Default)]
pub(super) struct PendingStops(VecDeque<PendingStop>);

impl PendingStops {
    /// Keeps a stop. A repeated stop replaces the earlier one, so that it cannot displace others.
    pub(super) fn insert(
        &mut self,
        principal: &Principal,
        id: &RunId,
        session: Option<&SessionKey>,
        verdict: Verdict,
        now: Moment,
    ) {
        let same =
            |kept: &PendingStop| kept.principal == *principal && kept.id == *id && kept.session.as_ref() == session;
        self.0.retain(|kept| kept.expires_at >= now && !same(kept));
        if self.0.len() == MAX_PENDING_STOPS {
            self.0.pop_front();
        }
        let (principal, id, session) = (principal.clone(), id.clone(), session.cloned());
        self.0.push_back(PendingStop { principal, id, session, expires_at: now.plus(PENDING_STOP_TTL), verdict });
    }

    /// The verdict of a stop of this run. The stop is kept, so that it also ends a later attempt if this acceptance
    /// fails.
    pub(super) fn verdict_for(&self, run: &NewRun, now: Moment) -> Option<Verdict> {
        let matches_run = |kept: &&PendingStop| {
            let same_session = kept.session.as_ref().is_none_or(|key| *key == run.session);
            kept.principal == run.principal && kept.id == run.id && same_session && kept.expires_at >= now
        };
        self.0.iter().find(matches_run).map(|kept| kept.verdict.clone())
    }
}
