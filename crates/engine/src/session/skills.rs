//! What a session tells its agents of their skills: read when it is first needed and kept as it was, so that every message of the
//! session begins with the same bytes. It is read again by a new session, after a reset, and for an agent that is configured
//! anew; a session that is made again, because it had expired or the daemon was started, is a new one in this.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_kernel::skill::Catalogue;

use super::Sessions;
use super::body::Body;
use crate::agent::Agent;
use crate::cell::Cell;
use crate::scope::{Cancelled, Point};
use crate::tools::read_skills;

/// The skills of a session's agents, as they were read.
#[derive(Debug, Default)]
pub(super) struct Shelves(Mutex<Read>);

#[derive(Debug, Default)]
struct Read {
    /// How often all of it was forgotten: what was read before that is not kept.
    forgotten: u64,
    of: Vec<(Arc<Agent>, Arc<Catalogue>)>,
}

impl Sessions {
    /// The agent, made of `base`, with what its session tells it of its skills.
    pub(super) async fn taught(
        &self,
        cell: &Cell,
        body: &Body,
        (base, agent): (&Arc<Agent>, Arc<Agent>),
    ) -> Result<Arc<Agent>, Cancelled> {
        let (Some(folder), Some(tool)) = (&base.config.skills, agent.config.reads_with()) else { return Ok(agent) };
        let (known, forgotten) = body.shelves.of(base);
        let skills = match known {
            Some(known) => known,
            None => {
                let (workdir, folder) = (base.workdir.clone(), folder.clone());
                let reading = move |stop: &_| read_skills(&workdir, &folder, stop);
                let found = cell.scope.blocking(Point::Skills, "skills", reading).await?.ok_or(Cancelled)?;
                for problem in found.left_out {
                    tracing::warn!(agent = %base.id, problem, "a skill is left out");
                }
                body.shelves.keep(base, Arc::new(found.skills), forgotten)
            }
        };
        let system = skills.prompt(&agent.system, tool);
        Ok(if system == agent.system { agent } else { Arc::new(Agent { system, ..Agent::clone(&agent) }) })
    }
}

impl Shelves {
    /// Forgets all of it: the next message reads it again.
    pub(super) fn forget(&self) {
        let mut read = self.read();
        read.of.clear();
        read.forgotten += 1;
    }

    /// The skills of an agent, and how often they were forgotten.
    fn of(&self, base: &Arc<Agent>) -> (Option<Arc<Catalogue>>, u64) {
        let mut read = self.read();
        let is_it = |known: &Agent| known.id == base.id && known.config == base.config;
        let known = read.of.iter_mut().find(|(known, _)| Arc::ptr_eq(known, base) || is_it(known));
        let skills = known.map(|(known, skills)| {
            // One that was built anew of the same configuration stands for it from now on, and the older one can go.
            known.clone_from(base);
            Arc::clone(skills)
        });
        (skills, read.forgotten)
    }

    /// Keeps what was read of an agent, unless it was to be forgotten meanwhile.
    fn keep(&self, base: &Arc<Agent>, skills: Arc<Catalogue>, forgotten: u64) -> Arc<Catalogue> {
        let mut read = self.read();
        if read.forgotten == forgotten {
            // Of one that is configured anew the old ones are of no use any more.
            read.of.retain(|(known, _)| known.id != base.id);
            read.of.push((Arc::clone(base), Arc::clone(&skills)));
        }
        skills
    }

    fn read(&self) -> MutexGuard<'_, Read> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use quell_protocol::AgentId;

    use super::*;
    use crate::agent::{AgentConfig, Materials};
    use crate::llm::{Models, ProviderConfig, ProviderKind};
    use crate::tools::{ToolSettings, Toolbox};

    fn agent(id: &str, prompt: &str) -> Arc<Agent> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let base_url = Some("http://127.0.0.1:9/v1".to_owned());
        let provider = ProviderConfig { base_url, ..ProviderConfig::new(ProviderKind::Openai) };
        let materials = Materials {
            models: Models::new(BTreeMap::from([("p".to_owned(), provider)])).unwrap(),
            toolbox: Arc::new(Toolbox::new(ToolSettings::default())),
            servers: BTreeSet::new(),
            work_dir: dir.path().to_owned(),
            home: None,
        };
        let (model, prompt) = ("p/model".to_owned(), prompt.to_owned());
        let config = AgentConfig { model, prompt, ..AgentConfig::default() };
        materials.build(&AgentId::parse(id).unwrap(), config).unwrap()
    }

    fn skills(folder: &str) -> Arc<Catalogue> {
        Arc::new(Catalogue::new(folder.to_owned()))
    }

    #[test]
    fn what_was_read_before_a_reset_is_told_once_and_not_kept() {
        let (shelves, main) = (Shelves::default(), agent("main", ""));
        let (_, before) = shelves.of(&main);
        shelves.forget();
        assert_eq!(shelves.keep(&main, skills("old"), before), skills("old"));
        let (known, now) = shelves.of(&main);
        assert_eq!(known, None);
        shelves.keep(&main, skills("new"), now);
        assert_eq!(shelves.of(&main).0, Some(skills("new")));
    }

    #[test]
    fn each_agent_has_its_own_until_it_is_configured_anew() {
        let (shelves, main, other) = (Shelves::default(), agent("main", ""), agent("other", ""));
        shelves.keep(&main, skills("main"), 0);
        shelves.keep(&other, skills("other"), 0);
        let rebuilt = agent("main", "");
        assert_eq!(shelves.of(&rebuilt).0, Some(skills("main")), "built anew of the same configuration");
        assert_eq!(Arc::strong_count(&main), 1, "the older one is let go");
        let changed = agent("main", "Be brief.");
        assert_eq!(shelves.of(&changed).0, None);
        shelves.keep(&changed, skills("changed"), 0);
        assert_eq!((shelves.of(&changed).0, shelves.of(&other).0), (Some(skills("changed")), Some(skills("other"))));
        assert_eq!(shelves.read().of.len(), 2);
    }
}
