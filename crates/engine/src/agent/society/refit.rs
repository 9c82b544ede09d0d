//! Other agents in the place of those of the configuration, while the engine works.
//!
//! They are built first, outside of every lock. Then one locked step puts them in the place of those that are there, agents made
//! at run time too, whose model clients would else call providers that are configured no more. Runs keep the agents that they
//! have. Agents that are new are claimed in that step, and taken in behind it like any other that comes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell_kernel::society::Tree;
use quell_protocol::AgentId;

use super::{Agent, AgentConfig, BadAgent, BadSociety, Materials, Roll, Society, built, default_of};
use crate::llm::Models;

/// Agents that are ready to take the place of others.
#[derive(Debug)]
pub struct Plan {
    /// Who was there when it was made.
    seen: Arc<Roll>,
    models: Models,
    default: AgentId,
    /// Those of the configuration.
    configured: Roll,
    /// Those that were made at run time, built anew.
    made: Roll,
}

/// What a plan has changed.
#[derive(Debug, Default)]
pub struct Changes {
    /// New ones, claimed and still to be taken in.
    pub newcomers: Vec<Arc<Agent>>,
    /// Those that the configuration names no more. They go when they have no runs.
    pub vanished: BTreeSet<AgentId>,
    /// Made at run time, and from now on as the configuration says.
    pub shadowed: BTreeSet<AgentId>,
}

/// The plan does not fit any more, or not at this moment: somebody makes or deletes an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("agents are being made or deleted at this moment")]
pub struct Stale;

impl Society {
    /// Builds the agents of another configuration and of other models. Nothing changes.
    ///
    /// # Errors
    /// [`BadSociety`]: no agent, or the first that cannot be built. An agent that was made at run time is one of them.
    pub fn plan(&self, models: Models, agents: &BTreeMap<AgentId, AgentConfig>) -> Result<Plan, BadSociety> {
        let default = default_of(agents)?;
        let materials = Materials { models, ..self.materials().clone() };
        let configured = built(&materials, agents)?;
        let (seen, made_before) = {
            let members = self.members();
            let of_configuration = |id: &AgentId| {
                members.configured.contains(id) || members.vanished.contains(id) || agents.contains_key(id)
            };
            let made = members.roll.values().filter(|agent| !of_configuration(&agent.id)).cloned();
            (Arc::clone(&members.roll), made.collect::<Vec<_>>())
        };
        let mut made = Roll::new();
        for agent in made_before {
            made.insert(agent.id.clone(), materials.build(&agent.id, agent.config.clone())?);
        }
        check_depth(&seen, [&configured, &made])?;
        Ok(Plan { seen, models: materials.models, default, configured, made })
    }

    /// Puts the agents and the models of a plan in the place of those that are there.
    ///
    /// # Errors
    /// [`Stale`]; nothing has changed then.
    pub fn refit(&self, plan: &Plan) -> Result<Changes, Stale> {
        let mut members = self.members();
        let is_quiet = members.coming.is_empty() && members.going.is_empty();
        if !is_quiet || !Arc::ptr_eq(&members.roll, &plan.seen) {
            return Err(Stale);
        }
        self.materials().models.follow(&plan.models);
        let mut changes = Changes::default();
        let mut roll = Roll::clone(&members.roll);
        for (id, agent) in plan.configured.iter().chain(&plan.made) {
            if let Some(before) = roll.get_mut(id) {
                *before = Arc::clone(agent);
            } else {
                changes.newcomers.push(Arc::clone(agent));
                members.coming.insert(id.clone(), agent.config.parent.clone());
            }
        }
        let before = std::mem::take(&mut members.configured);
        let was_made =
            |id: &&AgentId| roll.contains_key(*id) && !before.contains(*id) && !members.vanished.contains(*id);
        changes.shadowed = plan.configured.keys().filter(was_made).cloned().collect();
        members.configured = plan.configured.keys().cloned().collect();
        members.vanished.extend(before);
        members.vanished.retain(|id| roll.contains_key(id) && !plan.configured.contains_key(id));
        members.lost.retain(|id, _| !plan.configured.contains_key(id));
        changes.vanished = members.vanished.clone();
        members.call(roll);
        Ok(changes)
    }

    /// Makes the default agent of a plan the default, once all its agents are taken in.
    pub fn lead(&self, plan: &Plan) {
        self.members().default = plan.default.clone();
    }

    /// Agents that are to go when they have no runs.
    #[must_use]
    pub fn vanished(&self) -> BTreeSet<AgentId> {
        self.members().vanished.clone()
    }
}

/// Agents that were made at run time may stand too deep below what the configuration says now.
fn check_depth(seen: &Roll, new: [&Roll; 2]) -> Result<(), BadAgent> {
    let all = seen.iter().chain(new.into_iter().flatten());
    let parents: BTreeMap<&AgentId, Option<&AgentId>> =
        all.map(|(id, agent)| (id, agent.config.parent.as_ref())).collect();
    let tree = Tree::new(parents);
    let bad = new.into_iter().flat_map(Roll::keys).find_map(|id| Some((id, tree.check(id).err()?)));
    bad.map_or(Ok(()), |(id, bad)| Err(BadAgent { agent: id.clone(), problem: bad.to_string() }))
}
