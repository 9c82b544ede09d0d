//! Create or change a session in stages (row C4 in `docs/design/requirements.md`), undone in reverse order on failure.
//!
//! The stages are: the overrides, the MCP endpoint, the agent with its model client, the `on_create` hook, the stages
//! of the embedding program, and for a requested session its row in the database.

use std::sync::Arc;

use quell_mcp::SessionEndpoint;
use quell_protocol::hook::{HookEvent, SessionFacts};
use quell_protocol::{AgentId, Requester, SessionKey};
use quell_scope::{Interrupted, Point};
use quell_store::{SessionSetupAccess, SessionSetupOutcome, StoredSession};

use super::Sessions;
use super::lookup::{CreateGuard, EnterRequest, OpenSessionError, OpenSessionOutcome};
use super::overrides::SessionOverrides;
use super::resources::{BegunStage, SessionResources};
use crate::agent::Agent;
use crate::hooks::begin_stage;

/// Result of creating or changing a session; `None` if the session was removed meanwhile.
type EnterResult = Result<Option<(Arc<SessionResources>, OpenSessionOutcome)>, Interrupted<OpenSessionError>>;

impl Sessions {
    /// Creates a session from the database and from the request.
    pub(super) async fn create_session(&self, mut guard: CreateGuard<'_>, request: &EnterRequest<'_>) -> EnterResult {
        // waits: each stage is raced in `run_create_stages`.
        let (resources, outcome) = match self.run_create_stages(&mut guard, request).await {
            Ok(staged) => staged,
            Err(interrupted) => {
                let why = interrupted.into_failure()?;
                tracing::info!(session = %guard.key, %why, "session not created");
                // Without resources, the request itself was wrong: other callers that wait have not asked for this.
                if guard.resources.is_some() {
                    guard.fail(&why)
                } else {
                    guard.fail_for_caller_only()
                }
                return Err(Interrupted::Failed(why));
            }
        };
        let (key, agent) = (guard.key, resources.facts.agent.clone());
        if !guard.finish_created(Arc::clone(&resources)) {
            return Ok(None);
        }
        let revived = resources.facts.revived == Some(true);
        tracing::info!(session = %key, %agent, revived, "session created");
        if request.run_facts.is_some() {
            self.lock_state().table.touch(key, self.0.runs.clock().now());
            let activated = request.hook_trigger(HookEvent::Activate, &resources);
            // waits: raced in the hooks.
            self.hooks().call_hooks(activated, request.scope).await?;
        }
        Ok(Some((resources, outcome)))
    }

    async fn run_create_stages(
        &self,
        guard: &mut CreateGuard<'_>,
        request: &EnterRequest<'_>,
    ) -> Result<(Arc<SessionResources>, OpenSessionOutcome), Interrupted<OpenSessionError>> {
        let (key, scope, setup) = (guard.key, request.scope, request.setup);
        let claimed = scope.race(Point::Session, self.claim_for_node(key)).await?;
        claimed.map_err(|error| Interrupted::Failed(error.into()))?;
        let stored = scope.race(Point::Session, self.0.runs.store().sessions().find(key.clone())).await?;
        let stored = stored.map_err(|error| Interrupted::Failed(error.into()))?;
        let load = |stored| match setup {
            Some(setup) => SessionOverrides::load_for_request(setup, stored, &self.0.key_store),
            None => SessionOverrides::load(stored, &self.0.key_store),
        };
        let before = stored.as_ref().map(load).transpose().map_err(misconfigured)?.flatten();
        let (overrides, is_changed) = match setup {
            Some(setup) => {
                let overrides = Some(SessionOverrides::from_request(setup, request.address_policy, before.as_ref()));
                let is_changed = overrides != before || request.names_other_agent();
                (overrides, is_changed)
            }
            None => (before, false),
        };
        // Checked before anything begins, and again when it is stored.
        if let Some(stored) = &stored
            && request.setup_access(is_changed) == SessionSetupAccess::OwnerOnly
            && !request.is_owner(stored)
        {
            return Err(Interrupted::Failed(not_owner_error()));
        }
        // A session that a first message creates is stored before its run starts; it has no turn yet.
        let is_known = stored.as_ref().is_some_and(|stored| setup.is_some() || stored.turns > 0);
        // A run names its agent itself.
        let before = setup
            .and(overrides.as_ref().and_then(SessionOverrides::agent).or(stored.as_ref().map(|stored| &stored.agent)));
        let agent = self.choose_agent(request, before);
        let resources = Arc::new(self.build_resources(key, overrides, &agent, is_known).map_err(misconfigured)?);
        guard.resources = Some(Arc::clone(&resources));
        // waits: raced in the hooks.
        let asked = self.hooks().ask_hooks(request.hook_trigger(HookEvent::Create, &resources), scope).await;
        asked.map_err(|interrupted| interrupted.map(|veto| OpenSessionError::Refused(veto.reason)))?;
        for stage in self.hooks().stages() {
            let begin = begin_stage(stage.as_ref(), &resources.facts, self.hooks().timeout());
            let undo = scope.race(Point::Session, begin).await?.map_err(|error| misconfigured(error.to_string()))?;
            resources.add_stage(BegunStage { name: stage.name().to_owned(), undo });
        }
        let outcome = match setup {
            None => OpenSessionOutcome::Unchanged,
            // waits: for the database, in a task that no stop ends: the setup is stored or refused.
            Some(_) => match self.store_setup(&resources, request, is_changed).await {
                Ok(OpenSessionOutcome::Unchanged) if is_changed => OpenSessionOutcome::Changed,
                Ok(outcome) => outcome,
                Err(why) => return Err(Interrupted::Failed(why)),
            },
        };
        Ok((resources, outcome))
    }

    /// Changes a live session as requested. An active run there continues with its old settings.
    pub(super) async fn change_session(
        &self,
        guard: CreateGuard<'_>,
        before: &Arc<SessionResources>,
        request: &EnterRequest<'_>,
    ) -> EnterResult {
        let Some(overrides) = request
            .setup
            .map(|setup| SessionOverrides::from_request(setup, request.address_policy, before.overrides.as_ref()))
        else {
            return Ok(Some((Arc::clone(before), OpenSessionOutcome::Unchanged)));
        };
        let agent = self.choose_agent(request, Some(overrides.agent().unwrap_or(before.agent_id())));
        let resources = match self.rebuild_resources(before, overrides, &agent) {
            Ok(resources) => Arc::new(resources),
            Err(problem) => {
                guard.fail_for_caller_only();
                return Err(misconfigured(problem));
            }
        };
        // waits: for the database, in a task that no stop ends.
        if let Err(why) = self.store_setup(&resources, request, true).await {
            guard.fail_for_caller_only();
            return Err(Interrupted::Failed(why));
        }
        let has_same_servers = matches!((&before.overrides, &resources.overrides), (Some(old), Some(new)) if old.has_same_mcp_servers(new));
        let key = guard.key;
        if !guard.finish_changed(Arc::clone(&resources)) {
            return Ok(None);
        }
        if !has_same_servers {
            // Each server ends after its last call; the next run starts new ones.
            self.0.runs.services().mcp.close_session(key);
        }
        tracing::info!(session = %key, "session configured anew");
        let activated = request.hook_trigger(HookEvent::Activate, &resources);
        // The session is changed, even if the caller cancels this.
        // waits: raced in the hooks.
        let _ = self.hooks().call_hooks(activated, request.scope).await;
        Ok(Some((resources, OpenSessionOutcome::Changed)))
    }

    /// The requested agent, else the previous agent of the session if it still exists, else the default of the request.
    fn choose_agent(&self, request: &EnterRequest<'_>, before: Option<&AgentId>) -> AgentId {
        let requested_agent = request.setup.and_then(|setup| setup.agent.as_ref());
        let registry = &self.0.runs.services().agents;
        let before = before.filter(|agent| registry.get(agent).is_some());
        requested_agent.or(before).unwrap_or(request.agent).clone()
    }

    /// Builds the resources of a new session, after validation of its overrides.
    fn build_resources(
        &self,
        key: &SessionKey,
        overrides: Option<SessionOverrides>,
        agent: &AgentId,
        is_known: bool,
    ) -> Result<SessionResources, String> {
        let (endpoint, base) = self.check_overrides(overrides.as_ref(), agent)?;
        let facts = session_facts(key, overrides.as_ref(), agent, is_known);
        let address_policy = self.0.runs.services().toolbox.address_policy();
        let resources = SessionResources::new(facts, address_policy, overrides, endpoint, self.idle_timeout_of(&base));
        // Creates its instance of the agent, with its model client.
        resources.agent_instance(&base, self.0.runs.services().agents.factory())?;
        Ok(resources)
    }

    /// Builds the resources of a changed session, after validation of its overrides.
    fn rebuild_resources(
        &self,
        before: &SessionResources,
        overrides: SessionOverrides,
        agent: &AgentId,
    ) -> Result<SessionResources, String> {
        let (endpoint, base) = self.check_overrides(Some(&overrides), agent)?;
        // With the same endpoint and key, the existing connection is kept.
        let is_same_endpoint = before.overrides.as_ref().is_some_and(|old| old.has_same_mcp_endpoint(&overrides));
        let endpoint = if is_same_endpoint { before.endpoint.clone() } else { endpoint };
        let resources =
            before.with_overrides(session_facts(before.key(), Some(&overrides), agent, true), overrides, endpoint);
        resources.set_idle_timeout(self.idle_timeout_of(&base));
        resources.agent_instance(&base, self.0.runs.services().agents.factory())?;
        Ok(resources)
    }

    /// Validates the overrides of a session: its endpoint, its agent, its model.
    pub(super) fn check_overrides(
        &self,
        overrides: Option<&SessionOverrides>,
        agent: &AgentId,
    ) -> Result<(Option<SessionEndpoint>, Arc<Agent>), String> {
        let services = self.0.runs.services();
        let base = services.agents.get(agent);
        let base = base.ok_or_else(|| format!("there is no agent {agent:?}; `quell agents` lists them"))?;
        let Some(overrides) = overrides else { return Ok((None, base)) };
        let address_policy = services.toolbox.address_policy();
        let endpoint = overrides
            .mcp_endpoint()
            .map(|(url, key)| services.mcp.endpoint(url, key, overrides.mcp_address_policy(address_policy)));
        let endpoint = endpoint.transpose().map_err(|bad| format!("mcpUrl: {}", bad.problem))?;
        overrides.check_workdir(&base)?;
        let config = overrides.apply_to(&base.config)?;
        let factory = services.agents.factory();
        if let Some(unknown) = config.mcp.iter().flatten().find(|name| !factory.mcp_servers.contains(*name)) {
            return Err(format!("mcpServers names {unknown:?}, which is not configured; add [mcp.{unknown}]"));
        }
        let provider_override = overrides.provider_override(address_policy);
        if provider_override.is_empty() {
            factory.models.resolve(config.model.first()).map_err(|unknown| unknown.to_string())?;
        } else {
            factory
                .models
                .resolve_with_override(config.model.first(), &provider_override)
                .map_err(|bad| bad.to_string())?;
        }
        Ok((endpoint, base))
    }

    async fn store_setup(
        &self,
        resources: &SessionResources,
        request: &EnterRequest<'_>,
        is_changed: bool,
    ) -> Result<OpenSessionOutcome, OpenSessionError> {
        let Some(overrides) = &resources.overrides else { return Ok(OpenSessionOutcome::Unchanged) };
        let clock = self.0.runs.clock();
        let Some(Requester { principal, .. }) = request.requested_by.clone() else {
            return Ok(OpenSessionOutcome::Unchanged);
        };
        let setup = overrides.to_stored_setup(
            resources.key(),
            resources.facts.agent.clone(),
            clock.rfc3339(clock.now()),
            principal,
            request.setup_access(is_changed),
            &self.0.key_store,
        );
        let setup = setup.map_err(OpenSessionError::Configuration)?;
        // waits: for the database, in a task that no stop ends: a requested write is completed.
        Ok(match self.0.runs.store().sessions().set_up(setup).await? {
            SessionSetupOutcome::New => OpenSessionOutcome::Created,
            SessionSetupOutcome::Updated => OpenSessionOutcome::Unchanged,
            SessionSetupOutcome::NotOwner => return Err(not_owner_error()),
        })
    }
}

/// The facts for hooks about a session that is not in memory; `None` if it has no readable overrides.
pub fn stored_session_facts(stored: &StoredSession) -> Option<SessionFacts> {
    let overrides = SessionOverrides::load_without_keys(stored).ok().flatten()?;
    Some(session_facts(&stored.key, Some(&overrides), &stored.agent, true))
}

fn session_facts(
    key: &SessionKey,
    overrides: Option<&SessionOverrides>,
    agent: &AgentId,
    is_known: bool,
) -> SessionFacts {
    let identity = overrides.and_then(SessionOverrides::identity);
    SessionFacts {
        key: key.clone(),
        agent: agent.clone(),
        user_id: identity.map(|(user, _, _)| user.to_owned()),
        chat_id: identity.map(|(_, chat, _)| chat.to_owned()),
        provider: identity.map(|(_, _, provider)| provider.to_owned()),
        revived: Some(is_known),
    }
}

fn misconfigured(problem: String) -> Interrupted<OpenSessionError> {
    Interrupted::Failed(OpenSessionError::Configuration(problem))
}

fn not_owner_error() -> OpenSessionError {
    OpenSessionError::Forbidden(
        "you did not create this session; an admin token can change its configuration".to_owned(),
    )
}
