//! Stops of run ids that are not accepted yet, kept for a minute: a run accepted with such an id ends at once.

use std::collections::VecDeque;
use std::time::Duration;

use quell_protocol::{AgentId, Principal, RunId, SessionKey, Verdict};

use super::NewRun;
use crate::time::Moment;

/// How long a stop of an unknown id is kept for its principal.
const PENDING_STOP_TTL: Duration = Duration::from_secs(60);
/// Maximum number of pending stops, so that they cannot fill the memory.
pub(super) const MAX_PENDING_STOPS: usize = 1024;

/// Which run is stopped when it is accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PendingStopRun {
    pub(super) principal: Principal,
    pub(super) id: RunId,
    /// If given, it must match the session of the run, as in any other stop.
    pub(super) session: Option<SessionKey>,
    /// As `session`.
    pub(super) agent: Option<AgentId>,
}

#[derive(Debug)]
struct PendingStop {
    run: PendingStopRun,
    expires_at: Moment,
    verdict: Verdict,
}

/// Stops without a run yet, oldest first.
#[derive(Debug, Default)]
pub(super) struct PendingStops(VecDeque<PendingStop>);

impl PendingStops {
    /// Keeps a stop. A repeated stop replaces the earlier one, so that it cannot displace others.
    pub(super) fn insert(&mut self, run: PendingStopRun, verdict: Verdict, now: Moment) {
        self.0.retain(|kept| kept.expires_at >= now && kept.run != run);
        if self.0.len() == MAX_PENDING_STOPS {
            self.0.pop_front();
        }
        self.0.push_back(PendingStop { run, expires_at: now.plus(PENDING_STOP_TTL), verdict });
    }

    /// The verdict of a stop of this run. The stop is kept, so that it also ends a later attempt if this acceptance
    /// fails.
    pub(super) fn verdict_for(&self, run: &NewRun, now: Moment) -> Option<Verdict> {
        let matches_run = |kept: &&PendingStop| kept.run.matches(run) && kept.expires_at >= now;
        self.0.iter().find(matches_run).map(|kept| kept.verdict.clone())
    }
}

impl PendingStopRun {
    fn matches(&self, run: &NewRun) -> bool {
        self.principal == run.principal
            && self.id == run.id
            && self.session.as_ref().is_none_or(|key| *key == run.session)
            && self.agent.as_ref().is_none_or(|agent| *agent == run.agent)
    }
}
