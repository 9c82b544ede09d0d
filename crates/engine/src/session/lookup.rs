//! Get or create a session: one caller creates it, all others wait for the outcome.
//!
//! After a failure the next caller tries again. The creation is raced against the scope of the caller that does it: a
//! stop ends it, and the next waiting caller takes over.

use std::sync::Arc;

use quell_kernel::session::{ChangeLookup, CreateToken, SessionLookup, SessionState};
use quell_net::AddressPolicy;
use quell_protocol::hook::{HookEvent, RunFacts};
use quell_protocol::session::SessionRequest;
use quell_protocol::{AgentId, ErrorCode, Requester, SessionKey, Surface};
use quell_scope::{Interrupted, Point, Scope};
use quell_store::{SessionSetupAccess, StoreError, StoredSession};
use tokio::sync::watch;

use super::cleanup::CleanupReason;
use super::overrides::SessionOverrides;
use super::resources::SessionResources;
use super::{Sessions, wait_for_outcome};
use crate::hooks::HookTrigger;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenSessionError {
    /// The configuration of the session or of its agent is invalid, or a stage failed.
    #[error("the session cannot be created: {0}")]
    Configuration(String),
    /// The caller may not have such a session.
    #[error("{0}")]
    Forbidden(String),
    /// A hook refused it, for this reason.
    #[error("a hook refused the session: {0}")]
    Refused(String),
    #[error("the daemon is shutting down")]
    Closing,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl OpenSessionError {
    /// The API error code; also the code of a run that fails because of it.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Configuration(_) => ErrorCode::AgentConfigurationError,
            Self::Forbidden(_) => ErrorCode::Forbidden,
            Self::Refused(_) => ErrorCode::SessionRefused,
            Self::Closing => ErrorCode::ShuttingDown,
            Self::Store(_) => ErrorCode::StoreUnavailable,
        }
    }
}

/// A request to use, create or change a session.
#[derive(Debug)]
pub(super) struct EnterRequest<'a> {
    /// A stop of this scope ends the wait and the creation.
    pub(super) scope: &'a Scope,
    /// The agent of a session that names none itself.
    pub(super) agent: &'a AgentId,
    /// The requested settings, if it is requested without a message.
    pub(super) setup: Option<&'a SessionRequest>,
    /// The agent that the session's next message would go to: that of its settings, or the one that a later message
    /// named. Only with a setup, and only if the session exists.
    pub(super) next_agent: Option<AgentId>,
    /// The run that needs the session, if any.
    pub(super) run_facts: Option<RunFacts>,
    pub(super) requested_by: Option<Requester>,
    /// Which addresses the endpoints in the request may have; any for an admin.
    pub(super) address_policy: AddressPolicy,
}

impl EnterRequest<'_> {
    /// Whether the request needs the session's owner. The people in a chat share their conversation, so their requests
    /// do not.
    pub(super) fn setup_access(&self, is_changed: bool) -> SessionSetupAccess {
        let of_chat = self.requested_by.as_ref().is_some_and(|by| by.surface == Surface::Channel);
        if !is_changed || of_chat || self.address_policy == AddressPolicy::Any {
            SessionSetupAccess::Anyone
        } else {
            SessionSetupAccess::OwnerOnly
        }
    }

    /// True if the requested agent is not the one that the next message would go to, whatever the settings say.
    pub(super) fn names_other_agent(&self) -> bool {
        let requested = self.setup.and_then(|setup| setup.agent.as_ref());
        requested.zip(self.next_agent.as_ref()).is_some_and(|(requested, next)| requested != next)
    }

    /// True if the caller created the session.
    pub(super) fn is_owner(&self, session: &StoredSession) -> bool {
        self.requested_by.as_ref().is_some_and(|by| session.owner.as_ref() == Some(&by.principal))
    }

    pub(super) fn hook_trigger(&self, event: HookEvent, resources: &SessionResources) -> HookTrigger {
        let trigger = HookTrigger::for_session(event, resources.facts.clone());
        HookTrigger { run: self.run_facts.clone(), by: self.requested_by.clone(), ..trigger }
    }
}

/// Held by the caller that creates or changes a session. If it is dropped before it is settled, the next caller tries.
pub(super) struct CreateGuard<'a> {
    sessions: &'a Sessions,
    pub(super) key: &'a SessionKey,
    token: CreateToken,
    /// The new session, as far as it is created.
    pub(super) resources: Option<Arc<SessionResources>>,
    is_settled: bool,
}

enum LookupAction<'a> {
    UseLive(Arc<SessionResources>),
    Create(CreateGuard<'a>),
    Change(CreateGuard<'a>, Arc<SessionResources>),
    Wait(watch::Receiver<Option<OpenSessionError>>),
    Retry,
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenSessionOutcome {
    Created,
    /// It existed, and its settings were changed.
    Changed,
    /// It existed with these settings.
    Unchanged,
}

impl Sessions {
    /// Returns the live session with this key. Creates it if there is none, and changes it if the request has other
    /// settings.
    pub(super) async fn get_or_create(
        &self,
        key: &SessionKey,
        request: &EnterRequest<'_>,
    ) -> Result<(Arc<SessionResources>, OpenSessionOutcome), Interrupted<OpenSessionError>> {
        loop {
            let made = match self.look_up(key, request) {
                LookupAction::UseLive(resources) => {
                    let activated = request.hook_trigger(HookEvent::Activate, &resources);
                    // waits: raced in the hooks.
                    self.hooks().call_hooks(activated, request.scope).await?;
                    return Ok((resources, OpenSessionOutcome::Unchanged));
                }
                // waits: each stage is raced in `create_session`.
                LookupAction::Create(guard) => self.create_session(guard, request).await,
                // waits: as for `create_session`.
                LookupAction::Change(guard, resources) => self.change_session(guard, &resources, request).await,
                LookupAction::Wait(receiver) => {
                    match request.scope.race(Point::Session, wait_for_outcome(receiver)).await? {
                        Some(failure) => Err(Interrupted::Failed(failure)),
                        None => continue,
                    }
                }
                LookupAction::Retry => continue,
                LookupAction::Closed => Err(Interrupted::Failed(OpenSessionError::Closing)),
            };
            // Without a session it was deleted meanwhile, or the daemon closes.
            if let Some(entered) = made? {
                return Ok(entered);
            }
        }
    }

    /// As [`Sessions::get_or_create`], without a run, for a caller that requests settings. If cancelled, it has changed
    /// nothing.
    pub(crate) async fn open_session(
        &self,
        key: &SessionKey,
        setup: &SessionRequest,
        requested_by: Requester,
        address_policy: AddressPolicy,
        scope: &Scope,
    ) -> Result<OpenSessionOutcome, Interrupted<OpenSessionError>> {
        let default = self.0.runs.services().agents.default_agent();
        let agent = setup.agent.as_ref().unwrap_or(&default);
        let next_agent = match &setup.agent {
            // waits: for the database and a client, as below.
            Some(_) => scope.race(Point::Session, self.stored_agent(key)).await?.map_err(Interrupted::Failed)?,
            None => None,
        };
        let request = EnterRequest {
            scope,
            agent,
            setup: Some(setup),
            next_agent,
            run_facts: None,
            requested_by: Some(requested_by),
            address_policy,
        };
        // waits: for a client, with a scope that its stop and the shutdown cancel; no run waits here.
        let (_, outcome) = self.get_or_create(key, &request).await?;
        if outcome == OpenSessionOutcome::Unchanged {
            // Store this use: otherwise retention would see only an older one after a restart.
            let clock = self.0.runs.clock();
            // waits: for the database, as above; the session exists whether or not this is written.
            if let Err(error) = self.0.runs.store().sessions().touch(key.clone(), clock.rfc3339(clock.now())).await {
                tracing::warn!(session = %key, %error, "the use of a session could not be stored");
            }
        }
        Ok(outcome)
    }

    async fn stored_agent(&self, key: &SessionKey) -> Result<Option<AgentId>, OpenSessionError> {
        Ok(self.0.runs.store().sessions().find(key.clone()).await?.map(|stored| stored.agent))
    }

    fn look_up<'a>(&'a self, key: &'a SessionKey, request: &EnterRequest<'_>) -> LookupAction<'a> {
        let now = self.0.runs.clock().now();
        let mut state = self.lock_state();
        let state = &mut *state;
        let actor = state.actors.get(key);
        let resources = match state.table.lookup(key, now, |body| self.use_besides_runs(body, actor)) {
            SessionLookup::Live(resources) => resources,
            SessionLookup::Create(token) => return LookupAction::Create(self.create_guard(key, token)),
            SessionLookup::Wait => return LookupAction::Wait(state.add_waiter(key)),
            SessionLookup::CleanUp(cleanup) => {
                self.spawn_cleanup(cleanup, CleanupReason::Expired);
                return LookupAction::Retry;
            }
            SessionLookup::Closed => return LookupAction::Closed,
        };
        if request.run_facts.is_none() && !actor.is_some_and(|actor| actor.is_running) {
            // This use ends at once.
            state.table.release(key, now);
        }
        let matches_setup = |setup: &SessionRequest| {
            resources
                .overrides
                .as_ref()
                .is_some_and(|own| *own == SessionOverrides::from_request(setup, request.address_policy, Some(own)))
        };
        if request.setup.is_none_or(matches_setup) && !request.names_other_agent() {
            return LookupAction::UseLive(resources);
        }
        match state.table.begin_change(key) {
            ChangeLookup::Change(token, resources) => LookupAction::Change(self.create_guard(key, token), resources),
            ChangeLookup::Wait | ChangeLookup::Absent => LookupAction::Retry,
            ChangeLookup::Closed => LookupAction::Closed,
        }
    }

    fn create_guard<'a>(&'a self, key: &'a SessionKey, token: CreateToken) -> CreateGuard<'a> {
        CreateGuard { sessions: self, key, token, resources: None, is_settled: false }
    }
}

impl CreateGuard<'_> {
    /// Marks the session as created. False if it was removed meanwhile: it is then cleaned up.
    pub(super) fn finish_created(mut self, resources: Arc<SessionResources>) -> bool {
        self.is_settled = true;
        let now = self.sessions.0.runs.clock().now();
        let mut state = self.sessions.lock_state();
        let made = state.table.finish_create(self.key, self.token, resources, now);
        if made.is_ok() {
            state.notify_waiters(self.key, None);
        }
        drop(state);
        made.map_err(|cleanup| self.sessions.spawn_cleanup(cleanup, CleanupReason::Ended)).is_ok()
    }

    /// Marks the session as changed. False as in [`CreateGuard::finish_created`].
    pub(super) fn finish_changed(mut self, resources: Arc<SessionResources>) -> bool {
        self.is_settled = true;
        let now = self.sessions.0.runs.clock().now();
        let mut state = self.sessions.lock_state();
        let changed = state.table.finish_change(self.key, self.token, resources, now);
        if changed.is_ok() {
            state.notify_waiters(self.key, None);
        }
        drop(state);
        changed.map(drop).map_err(|cleanup| self.sessions.spawn_cleanup(cleanup, CleanupReason::Ended)).is_ok()
    }

    /// Marks the creation as failed; all waiting callers get the error.
    pub(super) fn fail(mut self, error: &OpenSessionError) {
        self.abandon(Some(error));
    }

    /// Gives up the creation or change; waiting callers look again.
    pub(super) fn fail_for_caller_only(mut self) {
        self.abandon(None);
    }

    fn abandon(&mut self, failure: Option<&OpenSessionError>) {
        self.is_settled = true;
        let mut state = self.sessions.lock_state();
        let cleanup = state.table.fail_create(self.key, self.token, self.resources.take());
        state.notify_waiters(self.key, failure.cloned());
        drop(state);
        self.sessions.0.cleanup_count.send_modify(|departures| *departures += 1);
        if let Some(cleanup) = cleanup {
            let reason = if cleanup.state == SessionState::Uninitialised {
                CleanupReason::CreateFailed
            } else {
                CleanupReason::Ended
            };
            self.sessions.spawn_cleanup(cleanup, reason);
        }
    }
}

impl Drop for CreateGuard<'_> {
    fn drop(&mut self) {
        if !self.is_settled {
            self.abandon(None);
        }
    }
}
