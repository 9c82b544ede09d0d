//! The runs of each principal that clients of standard APIs have started and that have not ended. Plain model calls wait
//! for no permit, and a request to an agent, a task and a tool call may have a session of its own, so nothing else
//! bounds them.

use std::collections::{HashMap, HashSet};

use quell_protocol::{Principal, Surface};

use super::{NewRun, RegistryEntry, WaitReason};
use crate::admission::AdmissionError;

/// The sequence numbers of acceptance, by principal. A principal without such a run is not in it.
#[derive(Debug, Default)]
pub(super) struct ClientRuns(HashMap<Principal, HashSet<u64>>);

impl ClientRuns {
    /// Checks whether one more run of its principal may start.
    pub(super) fn check(&self, run: &NewRun, waiting: WaitReason, limit: usize) -> Result<(), AdmissionError> {
        let active = self.0.get(&run.principal).map_or(0, HashSet::len);
        let is_refused = counts(run, waiting) && active >= limit;
        if is_refused { Err(AdmissionError::TooManyClientRuns { limit }) } else { Ok(()) }
    }

    /// Does nothing for a run that was added before.
    pub(super) fn add(&mut self, entry: &RegistryEntry) {
        if counts(&entry.run, entry.wait_reason) {
            self.0.entry(entry.run.principal.clone()).or_default().insert(entry.accept_seq);
        }
    }

    /// Does nothing for a run that was removed before.
    pub(super) fn remove(&mut self, entry: &RegistryEntry) {
        let Some(active) = self.0.get_mut(&entry.run.principal) else { return };
        active.remove(&entry.accept_seq);
        if active.is_empty() {
            self.0.remove(&entry.run.principal);
        }
    }
}

/// A message that another run takes in is a part of that, and the queue of its session bounds it. It counts from when it
/// has to become a run of its own.
fn counts(run: &NewRun, waiting: WaitReason) -> bool {
    run.parent.is_none()
        && waiting != WaitReason::Steer
        && match run.surface {
            Surface::Openai | Surface::Anthropic | Surface::Mcp | Surface::A2a => true,
            Surface::Http
            | Surface::Ws
            | Surface::Cli
            | Surface::Tui
            | Surface::Page
            | Surface::Channel
            | Surface::Acp
            | Surface::Daemon
            | Surface::Embedded => false,
        }
}
