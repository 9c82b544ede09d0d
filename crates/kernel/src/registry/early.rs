//! Stops that came before their run: kept for a while, so that a run accepted with that id ends at once (decisions.md).

use std::collections::VecDeque;
use std::time::Duration;

use quell_protocol::{Principal, RunId, SessionKey, Verdict};

use super::NewRun;
use crate::time::Moment;

/// How long a stop of an unknown id is kept for its principal.
const KEPT: Duration = Duration::from_secs(60);
/// How many are kept at the most, so that they cannot be used to fill the memory.
pub(super) const EARLY_STOPS: usize = 1024;

#[derive(Debug)]
struct EarlyStop {
    principal: Principal,
    id: RunId,
    /// Checked against the run when given, as in any other stop (row A10).
    session: Option<SessionKey>,
    until: Moment,
    verdict: Verdict,
}

/// Stops whose run is not known yet, oldest first.
#[derive(Debug, Default)]
pub(super) struct EarlyStops(VecDeque<EarlyStop>);

impl EarlyStops {
    /// Keeps a stop. One that is repeated takes its own place, so that it cannot push out others.
    pub(super) fn keep(&mut self, asks: (&Principal, &RunId, Option<&SessionKey>), verdict: Verdict, now: Moment) {
        let (principal, id, session) = asks;
        let same =
            |kept: &EarlyStop| kept.principal == *principal && kept.id == *id && kept.session.as_ref() == session;
        self.0.retain(|kept| kept.until >= now && !same(kept));
        if self.0.len() == EARLY_STOPS {
            self.0.pop_front();
        }
        let (principal, id, session) = (principal.clone(), id.clone(), session.cloned());
        self.0.push_back(EarlyStop { principal, id, session, until: now.plus(KEPT), verdict });
    }

    /// The verdict of a stop that meant this run. It stays: an acceptance that fails and is tried again ends, too.
    pub(super) fn verdict_for(&self, run: &NewRun, now: Moment) -> Option<Verdict> {
        let meant = |kept: &&EarlyStop| {
            let here = kept.session.as_ref().is_none_or(|key| *key == run.session);
            kept.principal == run.principal && kept.id == run.id && here && kept.until >= now
        };
        self.0.iter().find(meant).map(|kept| kept.verdict.clone())
    }
}
