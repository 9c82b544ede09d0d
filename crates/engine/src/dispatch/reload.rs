//! Other providers and other agents for a running engine (row D5). Runs keep what they have; what starts later gets the new
//! ones.

use std::collections::BTreeMap;

use quell_protocol::AgentId;

use super::Engine;
use crate::agent::{AgentConfig, BadSociety, Changes, Society, Stale};
use crate::llm::{BadProvider, ProviderConfig};

/// How often a plan that does not fit any more is made anew before the caller is told to come back.
const PLANS: usize = 3;

/// What a reload has changed in the society of agents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Agents that are new.
    pub added: Vec<AgentId>,
    /// Agents that the configuration names no more and that still have runs, or agents below them that were made at run time.
    /// They go later.
    pub leaving: Vec<AgentId>,
    /// Agents that were made at run time, and from now on are as the configuration says.
    pub shadowed: Vec<AgentId>,
}

/// Why a reload changes nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// A provider.
    #[error(transparent)]
    Provider(#[from] BadProvider),
    /// The agents.
    #[error(transparent)]
    Society(#[from] BadSociety),
    /// Not at this moment; it may be asked for again.
    #[error(transparent)]
    NotNow(#[from] Stale),
}

impl Engine {
    /// Puts other providers and agents in the place of those that are configured. Agents that were made at run time stay, with
    /// the new providers. An agent that is not among them any more goes as soon as it has no runs, at once or at a later look
    /// of the maintenance; until then it works as before and takes messages.
    ///
    /// # Errors
    /// [`ReloadError`]; nothing has changed then.
    pub fn reload(
        &self,
        providers: &BTreeMap<String, ProviderConfig>,
        agents: &BTreeMap<AgentId, AgentConfig>,
    ) -> Result<Reloaded, ReloadError> {
        let society = &self.inner().workshop.society;
        let models = self.inner().models.of_others(providers.clone())?;
        let mut plans = 0;
        let (plan, changes) = loop {
            let plan = society.plan(models.clone(), agents)?;
            plans += 1;
            match society.refit(&plan) {
                Ok(changes) => break (plan, changes),
                Err(stale) if plans == PLANS => return Err(stale.into()),
                Err(Stale) => {}
            }
        };
        let Changes { newcomers, shadowed, .. } = changes;
        let added = newcomers.iter().map(|agent| agent.id.clone()).collect();
        for agent in newcomers {
            self.inner().runs.take_in(agent);
        }
        society.lead(&plan);
        self.let_vanished_go();
        let leaving = society.vanished().into_iter().collect();
        Ok(Reloaded { added, leaving, shadowed: shadowed.into_iter().collect() })
    }

    /// Lets agents go that the configuration names no more, as far as they and all below them have no runs.
    pub(super) fn let_vanished_go(&self) {
        let society: &Society = &self.inner().workshop.society;
        let runs = &self.inner().runs;
        let vanished = society.vanished();
        for id in &vanished {
            // One that has gone with another one above it, or is just being deleted by somebody.
            let Ok(going) = society.mark(id) else { continue };
            if !going.is_subset(&vanished) || runs.dismiss(&going).is_err() {
                society.retain(&going);
                continue;
            }
            runs.let_go(&going);
            tracing::info!(agents = ?going, "agents that are configured no more have gone");
        }
    }
}
