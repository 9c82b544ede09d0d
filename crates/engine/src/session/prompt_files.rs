//! Cache of the files in the prompt per session and agent, so that every message of the session begins with the same
//! bytes: the skills, and the project instructions.
//!
//! They are read when they are first needed. They are read again by a new session, after a reset, and for an agent
//! whose configuration changed. A session that is created again after its expiry or a restart counts as new.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_kernel::project_instructions::ProjectInstructions;
use quell_kernel::skill::SkillCatalogue;
use quell_protocol::sandbox::SandboxMode;
use quell_scope::{Cancelled, Point};
use quell_tools::{InstructionsReach, Toolbox, read_instructions, read_skills};

use crate::agent::Agent;
use crate::live_run::LiveRun;

/// The files in the prompts of a session's agents, as they were read.
#[derive(Debug, Default)]
pub(super) struct PromptFileCache(Mutex<PromptFileCacheState>);

/// What the prompt of an agent has from files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PromptFiles {
    skills: Option<SkillCatalogue>,
    instructions: ProjectInstructions,
}

#[derive(Debug, Default)]
struct PromptFileCacheState {
    /// Rises when the cache is cleared: files that were read before are not cached.
    generation: u64,
    entries: Vec<(Arc<Agent>, Arc<PromptFiles>)>,
}

impl PromptFileCache {
    /// Returns the agent, built from `base`, with skills and project instructions in its system prompt.
    pub(super) async fn add_prompt_files(
        &self,
        live_run: &LiveRun,
        base: &Arc<Agent>,
        agent: Arc<Agent>,
        toolbox: &Toolbox,
    ) -> Result<Arc<Agent>, Cancelled> {
        let folder = base.config.skills.clone().filter(|_| agent.config.skill_reading_tool().is_some());
        if folder.is_none() && !base.config.reads_instructions() {
            return Ok(agent);
        }
        let (cached, generation) = self.get(base);
        let files = match cached {
            Some(known) => known,
            None => {
                let read = read_prompt_files(base, folder, toolbox);
                let files = live_run.scope.blocking(Point::Skills, "skills", read).await?.ok_or(Cancelled)?;
                self.insert(base, Arc::new(files), generation)
            }
        };
        let mut system = files.instructions.append_to_prompt(&agent.system_prompt);
        if let (Some(skills), Some(tool)) = (&files.skills, agent.config.skill_reading_tool()) {
            system = skills.append_to_prompt(&system, tool);
        }
        Ok(if system == agent.system_prompt {
            agent
        } else {
            Arc::new(Agent { system_prompt: system, ..Agent::clone(&agent) })
        })
    }

    /// The files with project instructions that are in the prompts, each with its size.
    pub(super) fn instruction_files(&self) -> Vec<String> {
        let state = self.lock_state();
        let files = state.entries.iter().flat_map(|(_, files)| files.instructions.files());
        let shown = |file: &quell_kernel::project_instructions::InstructionsFile| {
            let cut = if file.is_cut { ", cut" } else { "" };
            format!("{} ({} bytes{cut})", file.path, file.bytes)
        };
        files.map(shown).collect()
    }

    /// Clears the cache: the next message reads the files again.
    pub(super) fn clear(&self) {
        let mut state = self.lock_state();
        state.entries.clear();
        state.generation += 1;
    }

    /// The cached files of an agent, and the generation of the cache.
    fn get(&self, base: &Arc<Agent>) -> (Option<Arc<PromptFiles>>, u64) {
        let mut state = self.lock_state();
        let is_it = |known: &Agent| known.id == base.id && known.config == base.config;
        let known = state.entries.iter_mut().find(|(known, _)| Arc::ptr_eq(known, base) || is_it(known));
        let files = known.map(|(known, files)| {
            // An agent that was rebuilt with the same configuration replaces the older one, which can then be dropped.
            known.clone_from(base);
            Arc::clone(files)
        });
        (files, state.generation)
    }

    /// Caches the files of an agent, unless the cache was cleared meanwhile.
    fn insert(&self, base: &Arc<Agent>, files: Arc<PromptFiles>, generation: u64) -> Arc<PromptFiles> {
        let mut state = self.lock_state();
        if state.generation == generation {
            // Drop the files of older configurations of this agent.
            state.entries.retain(|(known, _)| known.id != base.id);
            state.entries.push((Arc::clone(base), Arc::clone(&files)));
        }
        files
    }

    fn lock_state(&self) -> MutexGuard<'_, PromptFileCacheState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The work of a thread: reads the files of an agent. `None` after a stop.
fn read_prompt_files(
    base: &Arc<Agent>,
    folder: Option<String>,
    toolbox: &Toolbox,
) -> impl FnOnce(&std::sync::atomic::AtomicBool) -> Option<PromptFiles> + Send + 'static {
    let may_leave = base.sandbox.user.is_none() && (toolbox.is_unconfined() || base.sandbox.mode == SandboxMode::Off);
    let reach = if may_leave { InstructionsReach::Repository } else { InstructionsReach::Workdir };
    let (agent, protected) = (Arc::clone(base), toolbox.protected_paths().clone());
    move |stop| {
        let mut files = PromptFiles::default();
        if agent.config.reads_instructions() {
            let loaded = read_instructions(&agent.workdir, reach, &protected, stop)?;
            for problem in loaded.problems {
                tracing::warn!(agent = %agent.id, problem, "project instructions are left out");
            }
            for file in loaded.instructions.files() {
                tracing::info!(agent = %agent.id, file = file.path, bytes = file.bytes, "project instructions are in the prompt");
            }
            files.instructions = loaded.instructions;
        }
        if let Some(folder) = folder {
            let loaded = read_skills(&agent.workdir, &folder, stop)?;
            for problem in loaded.problems {
                tracing::warn!(agent = %agent.id, problem, "a skill is left out");
            }
            files.skills = Some(loaded.skills);
        }
        Some(files)
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
        let (model, prompt) = ("p/model".into(), prompt.to_owned());
        let config = AgentConfig { model, prompt, ..AgentConfig::default() };
        factory.build(&AgentId::parse(id).unwrap(), config).unwrap()
    }

    fn skills(folder: &str) -> Arc<PromptFiles> {
        Arc::new(PromptFiles { skills: Some(SkillCatalogue::new(folder.to_owned())), ..PromptFiles::default() })
    }

    #[test]
    fn skills_read_before_a_reset_are_used_once_and_not_cached() {
        let (cache, main) = (PromptFileCache::default(), agent("main", ""));
        let (_, before) = cache.get(&main);
        cache.clear();
        assert_eq!(cache.insert(&main, skills("old"), before), skills("old"));
        let (known, now) = cache.get(&main);
        assert_eq!(known, None);
        cache.insert(&main, skills("new"), now);
        assert_eq!(cache.get(&main).0, Some(skills("new")));
    }

    #[test]
    fn each_agent_has_its_own_until_it_is_configured_anew() {
        let (cache, main, other) = (PromptFileCache::default(), agent("main", ""), agent("other", ""));
        cache.insert(&main, skills("main"), 0);
        cache.insert(&other, skills("other"), 0);
        let rebuilt = agent("main", "");
        assert_eq!(cache.get(&rebuilt).0, Some(skills("main")), "built anew of the same configuration");
        assert_eq!(Arc::strong_count(&main), 1, "the older one is let go");
        let changed = agent("main", "Be brief.");
        assert_eq!(cache.get(&changed).0, None);
        cache.insert(&changed, skills("changed"), 0);
        assert_eq!((cache.get(&changed).0, cache.get(&other).0), (Some(skills("changed")), Some(skills("other"))));
        assert_eq!(cache.lock_state().entries.len(), 2);
    }
}
