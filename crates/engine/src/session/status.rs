//! Status and effective configuration of a session, for display.

use std::sync::Arc;

use quell_protocol::session::SessionConfig;
use quell_protocol::{AgentId, SessionKey};
use quell_store::StoredSession;

use super::overrides::{SessionOverrides, build_session_config};
use super::{OpenSessionError, Sessions};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStatus {
    /// A state of row C6 in `docs/design/requirements.md`. A session that is stored and not in memory is `expired`: its
    /// next use revives it.
    pub state: &'static str,
    /// RFC 3339: the last use, if it is known in memory.
    pub last_used_at: Option<String>,
}

impl Sessions {
    pub fn session_status(&self, key: &SessionKey) -> SessionStatus {
        let clock = self.0.runs.clock();
        let sessions_state = self.lock_state();
        let session_state = sessions_state.table.state(key);
        let state = match session_state {
            Some(session) => session.as_str(),
            // Its actor has work, and has not created the session yet.
            None if sessions_state.actors.get(key).is_some_and(|actor| actor.is_running) => "uninitialised",
            None => "expired",
        };
        SessionStatus {
            state,
            last_used_at: session_state.and_then(|session| session.last_used()).map(|used| clock.rfc3339(used)),
        }
    }

    /// The language of a session with this agent: its own setting if it is in memory, else the agent's. Without an agent,
    /// that is the one of the session, else the default.
    pub fn session_language(&self, key: &SessionKey, agent: Option<&AgentId>) -> Option<String> {
        let live = self.lock_state().table.resources(key).map(Arc::clone);
        let registry = &self.0.runs.services().agents;
        let named = agent.or(live.as_ref().map(|live| live.agent_id()));
        let agent = named.and_then(|id| registry.get(id)).or_else(|| registry.get(&registry.default_agent()))?;
        match live.as_ref().and_then(|live| live.overrides.as_ref()) {
            Some(overrides) => overrides.resolve_language(&agent.config),
            None => agent.config.language.clone(),
        }
    }

    /// Number of callers that wait while another caller creates or cleans up a session.
    pub fn count_waiters(&self) -> usize {
        self.lock_state().waiters.values().map(tokio::sync::watch::Sender::receiver_count).sum()
    }

    /// The effective configuration of the next run of a stored session.
    ///
    /// # Errors
    /// Why that run would fail.
    pub fn session_config(&self, stored: &StoredSession) -> Result<SessionConfig, OpenSessionError> {
        let invalid = OpenSessionError::Configuration;
        let live = self.lock_state().table.resources(&stored.key).map(Arc::clone);
        let overrides = match &live {
            Some(resources) => resources.overrides.clone(),
            None => SessionOverrides::load(stored, &self.0.key_store).map_err(invalid)?,
        };
        let registry = &self.0.runs.services().agents;
        // The agent of its setup, or the one that a later message named.
        let named = &stored.agent;
        let base = registry.get(named).or_else(|| registry.get(&registry.default_agent()));
        let base = base.ok_or_else(|| invalid(format!("there is no agent {named:?}")))?;
        let config = match &overrides {
            Some(overrides) => overrides.apply_to(&base.config).map_err(invalid)?,
            None => base.config.clone(),
        };
        self.check_overrides(overrides.as_ref(), &base.id).map_err(invalid)?;
        let idle = self.idle_timeout_of(&base).as_secs();
        Ok(build_session_config(overrides.as_ref(), &config, &base, idle))
    }
}
