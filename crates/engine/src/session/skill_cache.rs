//! Cache of the skill prompt per session and agent, so that every message of the session begins with the same bytes.
//!
//! Skills are read when they are first needed. They are read again by a new session, after a reset, and for an agent
//! whose configuration changed. A session that is created again after its expiry or a restart counts as new.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_kernel::skill::SkillCatalogue;
use quell_scope::{Cancelled, Point};
use quell_tools::read_skills;

use crate::agent::Agent;
use crate::live_run::LiveRun;

/// The skills of a session's agents, as they were read.
#[derive(Debug, Default)]
pub(super) struct SkillCache(Mutex<SkillCacheState>);

#[derive(Debug, Default)]
struct SkillCacheState {
    /// Rises when the cache is cleared: skills that were read before are not cached.
    generation: u64,
    entries: Vec<(Arc<Agent>, Arc<SkillCatalogue>)>,
}

impl SkillCache {
    /// Returns the agent, built from `base`, with the skills in its system prompt.
    pub(super) async fn add_skills(
        &self,
        live_run: &LiveRun,
        base: &Arc<Agent>,
        agent: Arc<Agent>,
    ) -> Result<Arc<Agent>, Cancelled> {
        let (Some(folder), Some(tool)) = (&base.config.skills, agent.config.skill_reading_tool()) else {
            return Ok(agent);
        };
        let (cached, generation) = self.get(base);
        let skills = match cached {
            Some(known) => known,
            None => {
                let (workdir, folder) = (base.workdir.clone(), folder.clone());
                let reading = move |stop: &_| read_skills(&workdir, &folder, stop);
                let loaded = live_run.scope.blocking(Point::Skills, "skills", reading).await?.ok_or(Cancelled)?;
                for problem in loaded.problems {
                    tracing::warn!(agent = %base.id, problem, "a skill is left out");
                }
                self.insert(base, Arc::new(loaded.skills), generation)
            }
        };
        let system = skills.append_to_prompt(&agent.system_prompt, tool);
        Ok(if system == agent.system_prompt {
            agent
        } else {
            Arc::new(Agent { system_prompt: system, ..Agent::clone(&agent) })
        })
    }

    /// Clears the cache: the next message reads the skills again.
    pub(super) fn clear(&self) {
        let mut state = self.lock_state();
        state.entries.clear();
        state.generation += 1;
    }

    /// The cached skills of an agent, and the generation of the cache.
    fn get(&self, base: &Arc<Agent>) -> (Option<Arc<SkillCatalogue>>, u64) {
        let mut state = self.lock_state();
        let is_it = |known: &Agent| known.id == base.id && known.config == base.config;
        let known = state.entries.iter_mut().find(|(known, _)| Arc::ptr_eq(known, base) || is_it(known));
        let skills = known.map(|(known, skills)| {
            // An agent that was rebuilt with the same configuration replaces the older one, which can then be dropped.
            known.clone_from(base);
            Arc::clone(skills)
        });
        (skills, state.generation)
    }

    /// Caches the skills of an agent, unless the cache was cleared meanwhile.
    fn insert(&self, base: &Arc<Agent>, skills: Arc<SkillCatalogue>, generation: u64) -> Arc<SkillCatalogue> {
        let mut state = self.lock_state();
        if state.generation == generation {
            // Drop the skills of older configurations of this agent.
            state.entries.retain(|(known, _)| known.id != base.id);
            state.entries.push((Arc::clone(base), Arc::clone(&skills)));
        }
        skills
    }

    fn lock_state(&self) -> MutexGuard<'_, SkillCacheState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use quell_llm::{Models, ProviderConfig, ProviderKind};
    use quell_protocol::AgentId;
    use quell_tools::{ProtectedPaths, ToolSettings, Toolbox};

    use super::*;
    use crate::agent::{AgentConfig, AgentFactory, SandboxSite};

    fn agent(id: &str, prompt: &str) -> Arc<Agent> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let base_url = Some("http://127.0.0.1:9/v1".to_owned());
        let provider = ProviderConfig { base_url, ..ProviderConfig::new(ProviderKind::OPENAI) };
        let factory = AgentFactory {
            models: Models::new(BTreeMap::from([("p".to_owned(), provider)])).unwrap(),
            toolbox: Arc::new(Toolbox::new(ToolSettings::default())),
            mcp_servers: BTreeSet::new(),
            sandbox_site: Arc::new(SandboxSite::new(
                dir.path().to_owned(),
                dir.path().join("tmp"),
                None,
                &ProtectedPaths::default(),
            )),
        };
        let (model, prompt) = ("p/model".to_owned(), prompt.to_owned());
        let config = AgentConfig { model, prompt, ..AgentConfig::default() };
        factory.build(&AgentId::parse(id).unwrap(), config).unwrap()
    }

    fn skills(folder: &str) -> Arc<SkillCatalogue> {
        Arc::new(SkillCatalogue::new(folder.to_owned()))
    }

    #[test]
    fn skills_read_before_a_reset_are_used_once_and_not_cached() {
        let (skill_cache, main) = (SkillCache::default(), agent("main", ""));
        let (_, before) = skill_cache.get(&main);
        skill_cache.clear();
        assert_eq!(skill_cache.insert(&main, skills("old"), before), skills("old"));
        let (known, now) = skill_cache.get(&main);
        assert_eq!(known, None);
        skill_cache.insert(&main, skills("new"), now);
        assert_eq!(skill_cache.get(&main).0, Some(skills("new")));
    }

    #[test]
    fn each_agent_has_its_own_until_it_is_configured_anew() {
        let (skill_cache, main, other) = (SkillCache::default(), agent("main", ""), agent("other", ""));
        skill_cache.insert(&main, skills("main"), 0);
        skill_cache.insert(&other, skills("other"), 0);
        let rebuilt = agent("main", "");
        assert_eq!(skill_cache.get(&rebuilt).0, Some(skills("main")), "built anew of the same configuration");
        assert_eq!(Arc::strong_count(&main), 1, "the older one is let go");
        let changed = agent("main", "Be brief.");
        assert_eq!(skill_cache.get(&changed).0, None);
        skill_cache.insert(&changed, skills("changed"), 0);
        assert_eq!(
            (skill_cache.get(&changed).0, skill_cache.get(&other).0),
            (Some(skills("changed")), Some(skills("other")))
        );
        assert_eq!(skill_cache.lock_state().entries.len(), 2);
    }
}
