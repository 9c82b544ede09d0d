//! Open, configure, reset and delete sessions, after checking the caller. Refuse this while another caller's run is
//! active there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use quell_kernel::registry::{StopRequest, StopScope};
use quell_net::AddressPolicy;
use quell_protocol::api::{Page, Provenance, SessionRow};
use quell_protocol::audit::Action;
use quell_protocol::session::{SessionRequest, SessionView};
use quell_protocol::web_ui::SessionPatch;
use quell_protocol::{AgentId, Requester, RunId, SessionKey, Surface};
use quell_scope::{Interrupted, Point, Scope};
use quell_store::{DeleteSessionOutcome, SessionListFilter, StoreError, StoredSession};
use quell_tools::attachment::remove_attachments;
use tokio_util::sync::CancellationToken;

use super::submission::agent_from_session_key;
use super::{AuditAction, Caller, Engine, OpenSessionError, OpenSessionOutcome};
use crate::live_run::EngineNotice;
use crate::memory::NoteScope;
use crate::session::{SessionClaim, stored_workdir};

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A run that the caller may not stop is active or queued in it. Nothing was stopped.
    #[error("the session {0:?} has an active run of somebody else; an admin token can do that")]
    ForeignRunActive(SessionKey),
    #[error("you did not create the session {0:?}; a token with scope write:all or admin can do that")]
    NotOwner(SessionKey),
    #[error(
        "the session {0:?} has the key of a chat, whose messages it would take if it were shared; a token with scope \
         write:all or admin can share it, and you can delete it"
    )]
    ChatKey(SessionKey),
    #[error("the session {0:?} is private; its owner can share it with `quell sessions share`")]
    Private(SessionKey),
    #[error("the session {0:?} lists plain model calls: it takes no messages and settings, and is not shared")]
    Reserved(SessionKey),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The real path of a directory that a session is to work in.
fn resolve_session_workdir(named: &str) -> Result<String, OpenSessionError> {
    let refused = |problem: String| OpenSessionError::Configuration(format!("workdir {named:?}: {problem}"));
    if !Path::new(named).is_absolute() {
        return Err(refused("give an absolute path".to_owned()));
    }
    let real = Path::new(named).canonicalize().map_err(|error| refused(error.to_string()))?;
    if !real.is_dir() {
        return Err(refused("it is no directory".to_owned()));
    }
    real.into_os_string().into_string().map_err(|_| refused("its real path is not UTF-8".to_owned()))
}

impl Engine {
    /// Sessions, the most recently used first.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_sessions(&self, filter: SessionListFilter) -> Result<Page<SessionRow>, StoreError> {
        let (sessions, next_cursor) = self.inner().store.sessions().list(filter).await?;
        Ok(Page { items: sessions.into_iter().map(|session| self.build_session_row(session)).collect(), next_cursor })
    }

    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn find_session(&self, key: &SessionKey) -> Result<Option<SessionRow>, StoreError> {
        let session = self.inner().store.sessions().find(key.clone()).await?;
        Ok(session.map(|session| self.build_session_row(session)))
    }

    pub(super) fn build_session_row(&self, session: StoredSession) -> SessionRow {
        let (active_runs, workdir) = (self.active_run_ids_of_session(&session.key), stored_workdir(&session));
        let status = self.inner().sessions.session_status(&session.key);
        SessionRow {
            state: status.state.to_owned(),
            key: session.key,
            agent: Some(session.agent),
            created_at: session.created_at,
            last_used_at: status.last_used_at.into_iter().chain([session.last_used_at]).max().unwrap_or_default(),
            active_runs,
            turns: session.turns,
            imported: session.imported_at.map(|at| Provenance { at, by: session.owner.clone(), claims: None }),
            owner: session.owner,
            shared: session.shared,
            workdir,
        }
    }

    /// Gets or creates the session of a user's chat with a provider (rows C1 to C5 in `docs/design/requirements.md`).
    /// When this returns, the session is live and its settings are durable. An active run there continues with its old
    /// settings.
    ///
    /// # Errors
    /// On an error a new session leaves no trace, and an existing one is unchanged.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn open_session(
        &self,
        caller: &Caller,
        request: SessionRequest,
    ) -> Result<(SessionKey, OpenSessionOutcome), OpenSessionError> {
        let key = request.key().map_err(|error| OpenSessionError::Configuration(error.to_string()))?;
        if (request.base_url.is_some() || request.mcp_url.is_some()) && !caller.may_set_endpoints() {
            let message =
                "a baseUrl or an mcpUrl of its own takes a token with scope endpoints; `quell token create` makes one";
            return Err(OpenSessionError::Forbidden(message.to_owned()));
        }
        let (engine, requester, session_key) = (self.clone(), caller.clone(), key.clone());
        let opened = self.run_detached(async move {
            engine.open_session_as(&requester, &session_key, &request, &never_cancelled()).await
        });
        let opened = opened.await.ok_or(OpenSessionError::Closing)?;
        let outcome = opened.map_err(|why| why.failure_or(OpenSessionError::Closing))?;
        Ok((key, outcome))
    }

    /// Changes the model or the agent of a session from its next run on; creates the session if there is none with that
    /// key.
    ///
    /// # Errors
    /// On an error the session is unchanged.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn patch_session(
        &self,
        caller: &Caller,
        key: &SessionKey,
        patch: SessionPatch,
    ) -> Result<OpenSessionOutcome, OpenSessionError> {
        self.patch_session_until_cancelled(caller, key, patch, &never_cancelled())
            .await
            .map_err(|why| why.failure_or(OpenSessionError::Closing))
    }

    /// As [`Engine::patch_session`], until `cancel` is cancelled: that ends its waits and undoes what was begun. A
    /// write that the database was already asked for is completed; this then waits for it and reports success.
    ///
    /// # Errors
    /// [`Interrupted::Cancelled`] if it was cancelled; the session is then unchanged. Otherwise as [`Engine::patch_session`].
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine, where `cancel` still ends it.
    pub async fn patch_session_until_cancelled(
        &self,
        caller: &Caller,
        key: &SessionKey,
        patch: SessionPatch,
        cancel: &CancellationToken,
    ) -> Result<OpenSessionOutcome, Interrupted<OpenSessionError>> {
        let (engine, requester, key, cancel) = (self.clone(), caller.clone(), key.clone(), cancel.clone());
        let opened = self.run_detached(async move {
            // Before its settings are read: a refusal must not tell them.
            let _claim = engine.claim_for_setup(&requester, &key).map_err(Interrupted::Failed)?;
            let built = tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(Interrupted::Cancelled),
                // It only reads.
                request = engine.build_patch_request(&key, patch) => request,
            };
            let request = built.map_err(Interrupted::Failed)?;
            engine.open_session_as(&requester, &key, &request, &cancel).await
        });
        opened.await.unwrap_or(Err(Interrupted::Failed(OpenSessionError::Closing)))
    }

    /// Builds the request that a patch means, with the names that the session has. A session that was opened for a
    /// provider stays there, because its key belongs to that provider.
    async fn build_patch_request(
        &self,
        key: &SessionKey,
        patch: SessionPatch,
    ) -> Result<SessionRequest, OpenSessionError> {
        let config = self.session_view(key).await?.and_then(|view| view.config);
        let SessionPatch { model, agent, thinking, workdir } = patch;
        let bound_provider =
            config.as_ref().filter(|config| config.user_id.is_some()).map(|config| config.provider.clone());
        let named_provider =
            model.as_deref().and_then(|model| model.split_once('/')).map(|(provider, _)| provider.to_owned());
        let provider = match (bound_provider, named_provider) {
            (Some(bound), Some(named)) if bound != named => {
                let problem = format!("the session is one of the provider {bound}; ask for a session with {named}");
                return Err(OpenSessionError::Configuration(problem));
            }
            (Some(bound), _) => bound,
            (None, Some(named)) => named,
            (None, None) if model.is_some() => {
                return Err(OpenSessionError::Configuration(
                    "name the model as provider/model; `quell agents` shows some".into(),
                ));
            }
            // The provider of the agent that it has or gets.
            (None, None) => String::new(),
        };
        Ok(SessionRequest { provider, model, agent, thinking, workdir, ..SessionRequest::default() })
    }

    fn claim_for_setup(&self, caller: &Caller, key: &SessionKey) -> Result<SessionClaim, OpenSessionError> {
        self.claim_session(caller, key).map_err(|private| OpenSessionError::Forbidden(private.to_string()))
    }

    async fn open_session_as(
        &self,
        caller: &Caller,
        key: &SessionKey,
        request: &SessionRequest,
        cancel: &CancellationToken,
    ) -> Result<OpenSessionOutcome, Interrupted<OpenSessionError>> {
        let inner = self.inner();
        let claim = self.claim_for_setup(caller, key).map_err(Interrupted::Failed)?;
        let request = &tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(Interrupted::Cancelled),
            // It only reads.
            checked = self.check_session_setup(caller, key, request) => checked.map_err(Interrupted::Failed)?,
        };
        let by = Requester { principal: caller.principal.clone(), surface: caller.surface };
        let scope = Scope::new(inner.clock, inner.config.probe.clone());
        let opened = {
            let address_policy = if caller.is_admin() { AddressPolicy::Any } else { AddressPolicy::PublicOnly };
            let mut opening = std::pin::pin!(inner.sessions.open_session(key, request, by, address_policy, &scope));
            tokio::select! {
                biased;
                () = cancel.cancelled() => {
                    scope.cancel();
                    opening.await
                }
                () = inner.sessions.wait_for_close() => {
                    scope.cancel();
                    opening.await.map_err(|why| Interrupted::Failed(why.failure_or(OpenSessionError::Closing)))
                }
                outcome = &mut opening => outcome,
            }
        };
        let _released = scope.close().await;
        let outcome = opened?;
        if outcome != OpenSessionOutcome::Unchanged {
            let what = if outcome == OpenSessionOutcome::Created { "made" } else { "configured anew" };
            self.audit(
                caller,
                AuditAction::on_target(Action::ConfigureSession, "session", key.as_str()).with_detail(what),
            );
            claim.confirm(&inner.store).await;
            inner.hub.publish(&EngineNotice::session_changed(key.clone(), "create"));
        }
        Ok(outcome)
    }

    /// The request with its workdir resolved, if the caller may give the session the agent and the workdir that it has
    /// then.
    async fn check_session_setup(
        &self,
        caller: &Caller,
        key: &SessionKey,
        request: &SessionRequest,
    ) -> Result<SessionRequest, OpenSessionError> {
        if caller.key.restricts_runs() {
            let agent = self.agent_of_message(request.agent.as_ref(), key).await?;
            let allowed = caller.key.check_agent(&agent);
            allowed.map_err(|refusal| OpenSessionError::Forbidden(refusal.to_string()))?;
        }
        self.check_session_workdir(caller, key, request).await
    }

    /// The request with its workdir resolved, if the caller may give the session the workdir that it has then.
    async fn check_session_workdir(
        &self,
        caller: &Caller,
        key: &SessionKey,
        request: &SessionRequest,
    ) -> Result<SessionRequest, OpenSessionError> {
        let is_trusted = caller.is_admin() && caller.verified_person;
        if request.workdir.is_none() && (request.agent.is_none() || is_trusted) {
            return Ok(request.clone());
        }
        let stored = self.inner().store.sessions().find(key.clone()).await?;
        let workdir = match &request.workdir {
            Some(named) => Some(resolve_session_workdir(named)?),
            None => None,
        };
        let kept = stored.as_ref().and_then(stored_workdir);
        let checked = SessionRequest { workdir: workdir.clone(), ..request.clone() };
        let registry = &self.inner().services.agents;
        let named = checked.agent.clone().or(stored.map(|stored| stored.agent));
        let agent = named.unwrap_or_else(|| registry.default_agent().clone());
        if is_trusted {
            // Allowed for this agent; others need it below their own.
            return Ok(SessionRequest { agent: Some(agent), ..checked });
        }
        let Some(workdir) = workdir.or(kept) else { return Ok(checked) };
        match registry.get(&agent) {
            Some(base) if !Path::new(&workdir).starts_with(&base.workdir) => Err(OpenSessionError::Forbidden(format!(
                "the workdir {workdir} does not lie below that of the agent {agent:?}; choose a directory below it, or ask on the daemon's machine over its Unix socket with the admin token"
            ))),
            // Another check says that there is no such agent.
            Some(_) | None => Ok(checked),
        }
    }

    /// One session with the effective configuration of its next run.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn session_view(&self, key: &SessionKey) -> Result<Option<SessionView>, StoreError> {
        let Some(stored) = self.inner().store.sessions().find(key.clone()).await? else { return Ok(None) };
        let (config, config_problem) = match self.inner().sessions.session_config(&stored) {
            Ok(config) => (Some(config), None),
            Err(why) => (None, Some(why.to_string())),
        };
        let instructions = self.inner().sessions.instruction_files(key);
        Ok(Some(SessionView { row: self.build_session_row(stored), config, config_problem, instructions }))
    }

    /// The language of answers and notices in a session, as a tag such as `ko-KR`. Reads memory only, so that the reply to
    /// a stop waits for nothing: a session that is not in memory has the language of its agent. `agent` is the one of
    /// its next run; without it, the session's, else the default.
    #[must_use]
    pub fn session_language(&self, key: &SessionKey, agent: Option<&AgentId>) -> Option<String> {
        let named = agent.cloned().or_else(|| agent_from_session_key(key));
        self.inner().sessions.session_language(key, named.as_ref())
    }

    /// The language of answers and notices of an agent, else of the default agent.
    #[must_use]
    pub fn agent_language(&self, agent: Option<&AgentId>) -> Option<String> {
        let registry = &self.inner().services.agents;
        let agent = agent.and_then(|id| registry.get(id)).or_else(|| registry.get(&registry.default_agent()));
        agent.and_then(|agent| agent.config.language.clone())
    }

    /// Stops the session's runs, then resets its history; the old turns stay before a boundary. False if there is no
    /// such session.
    ///
    /// # Errors
    /// [`SessionError`]: the caller may not reset it, or the store's error.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn reset_session(
        &self,
        caller: &Caller,
        key: &SessionKey,
        request: &StopRequest,
    ) -> Result<bool, SessionError> {
        let done = self.reset_session_until_cancelled(caller, key, request, &never_cancelled()).await;
        done.map_err(|why| why.failure_or(StoreError::Closed.into()))
    }

    /// As [`Engine::reset_session`], until `cancel` is cancelled: that ends the wait for runs, which stay stopped. Once
    /// the database was asked to reset the history, that is completed; this then waits for it and reports success.
    ///
    /// # Errors
    /// [`Interrupted::Cancelled`] if it was cancelled; the history is then unchanged. Otherwise as [`Engine::reset_session`].
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine, where `cancel` still ends it.
    pub async fn reset_session_until_cancelled(
        &self,
        caller: &Caller,
        key: &SessionKey,
        request: &StopRequest,
        cancel: &CancellationToken,
    ) -> Result<bool, Interrupted<SessionError>> {
        let (engine, requester, key, request) = (self.clone(), caller.clone(), key.clone(), request.clone());
        let cancel = cancel.clone();
        let done = self.run_detached(async move {
            tokio::select! {
                biased;
                () = cancel.cancelled() => Err(Interrupted::Cancelled),
                // If dropped, the runs are stopped, but nothing waits for their end.
                over = engine.stop_session_runs(&requester, &key, &request) => {
                    over.map_err(Interrupted::Failed)?;
                    engine.reset_session_as(&requester, &key).await.map_err(Interrupted::Failed)
                }
            }
        });
        done.await.unwrap_or(Err(Interrupted::Failed(StoreError::Closed.into())))
    }

    async fn reset_session_as(&self, caller: &Caller, key: &SessionKey) -> Result<bool, SessionError> {
        let now = self.inner().clock.now();
        self.inner().services.memory.forget_messages_until(NoteScope::Session(key.clone()), now);
        let at = self.inner().clock.rfc3339(now);
        let reset = self.inner().store.history().reset(key.clone(), at).await?;
        self.inner().sessions.forget_history(key);
        if reset {
            self.audit(caller, AuditAction::on_target(Action::ResetSession, "session", key.as_str()));
            self.inner().hub.publish(&EngineNotice::session_changed(key.clone(), "reset"));
        }
        Ok(reset)
    }

    /// Stops the session's runs, then deletes it with all its data. False if there is no such session. A caller that
    /// opens it meanwhile gets a new one.
    ///
    /// # Errors
    /// [`SessionError`]: the caller may not delete it, or the store's error.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn delete_session(
        &self,
        caller: &Caller,
        key: &SessionKey,
        request: &StopRequest,
    ) -> Result<bool, SessionError> {
        let (engine, requester, key, request) = (self.clone(), caller.clone(), key.clone(), request.clone());
        let done = self.run_detached(async move { engine.delete_session_as(&requester, &key, &request).await });
        done.await.ok_or(StoreError::Closed)?
    }

    async fn delete_session_as(
        &self,
        caller: &Caller,
        key: &SessionKey,
        request: &StopRequest,
    ) -> Result<bool, SessionError> {
        if let Some(why) = self.unsealed_reason() {
            // Its runs have no receipts in the database yet.
            return Err(why.into());
        }
        let mut unknown_runs = Vec::new();
        let deleted = loop {
            let mut ended_runs = self.stop_session_runs(caller, key, request).await?;
            ended_runs.append(&mut unknown_runs);
            // Release its resources before its rows are deleted; nobody can create a new session while that goes on.
            let _shut = self.inner().sessions.end_session(key).await;
            if !self.active_runs_of_session(key).is_empty() {
                // A run was accepted after the stop, perhaps of another principal with files of its own.
                continue;
            }
            let now = self.inner().clock.now();
            self.inner().services.memory.forget_messages_until(NoteScope::Session(key.clone()), now);
            // Before its row: while the row exists, an interrupted deletion can be repeated.
            let own_workdir = self.find_own_workdir(key).await?;
            self.remove_session_files(key, own_workdir).await;
            // The receipts of its runs are kept.
            self.store_ended_runs(key).await?;
            let deleted =
                self.inner().store.sessions().delete(key.clone(), ended_runs, self.inner().clock.rfc3339(now)).await?;
            // Runs that were accepted after the stop are stopped, too, if the caller may. Runs that are not in memory
            // are rows that an earlier write failed to close.
            if let DeleteSessionOutcome::InUse(open) = deleted {
                unknown_runs = self.inner().runs.unknown_runs(open);
                continue;
            }
            self.inner().sessions.forget_history(key);
            self.inner().sessions.owners().remove(key);
            break deleted == DeleteSessionOutcome::Deleted;
        };
        if deleted {
            tracing::info!(session = %key, principal = %caller.principal, "session deleted");
            self.audit(caller, AuditAction::on_target(Action::DeleteSession, "session", key.as_str()));
            self.inner().hub.publish(&EngineNotice::session_changed(key.clone(), "delete"));
        }
        Ok(deleted)
    }

    /// The workdir that a session has in place of its agent's.
    pub(super) async fn find_own_workdir(&self, key: &SessionKey) -> Result<Option<PathBuf>, StoreError> {
        let session = self.inner().store.sessions().find(key.clone()).await?;
        Ok(session.as_ref().and_then(stored_workdir).map(PathBuf::from))
    }

    /// Removes the attachments of a deleted session from its own workdir and those of all agents. Workdirs of removed agents are
    /// included if they are below a default workdir root. Logs what cannot be removed.
    pub(super) async fn remove_session_files(&self, key: &SessionKey, own_workdir: Option<PathBuf>) {
        let snapshot = self.inner().services.agents.snapshot();
        let mut workdirs: BTreeSet<PathBuf> = snapshot.values().map(|agent| agent.workdir.clone()).collect();
        workdirs.extend(own_workdir);
        // The root of today, and the one of older data directories.
        let config = &self.inner().config;
        let workdir_roots = [config.work_dir.clone(), config.data_dir.join("work")];
        let key = key.clone();
        let scope = Scope::new(self.inner().clock, self.inner().config.probe.clone());
        let removal = scope.blocking(Point::Blocking, "files of a deleted session", move |stop| {
            let entries = workdir_roots.iter().filter_map(|homes| std::fs::read_dir(homes).ok()).flatten();
            workdirs.extend(entries.flatten().map(|home| home.path()));
            for workdir in workdirs {
                if let Err(error) = remove_attachments(&workdir, &key, stop) {
                    tracing::error!(session = %key, workdir = %workdir.display(), %error, "files of a deleted session stay");
                }
            }
        });
        // waits: no run waits here, and nothing cancels it.
        let _ = removal.await;
        scope.close().await;
    }

    /// Stops everything of a session, unless a run there is not the caller's to stop. Repeats this for runs that
    /// arrived while it waited. Returns the ended runs, whose ends may not be stored yet.
    async fn stop_session_runs(
        &self,
        caller: &Caller,
        key: &SessionKey,
        request: &StopRequest,
    ) -> Result<Vec<RunId>, SessionError> {
        self.check_owner(caller, key)?;
        loop {
            let active = self.active_runs_of_session(key);
            if !caller.may_stop_all() && active.iter().any(|run| run.principal != caller.principal) {
                return Err(SessionError::ForeignRunActive(key.clone()));
            }
            let stop_result = self.stop(caller, &StopScope::whole_session(key.clone()), request);
            stop_result.wait_settled().await;
            if !stop_result.stopped_anything() {
                return Ok(self.inner().runs.ended_runs_of_session(key));
            }
        }
    }
}

impl Engine {
    /// Admits the principal that created the session, callers with rights over all sessions, and senders in a chat
    /// network, because they reach only their own conversation. A session that does not exist is open to everybody.
    pub(super) fn check_owner(&self, caller: &Caller, key: &SessionKey) -> Result<(), SessionError> {
        let is_manager =
            || self.session_ownership(key).is_none_or(|session| caller.viewer().may_manage_session(&session));
        if caller.surface == Surface::Channel || is_manager() {
            return Ok(());
        }
        // Whoever may not read it learns no more than that.
        if self.may_read_session(caller, key) {
            Err(SessionError::NotOwner(key.clone()))
        } else {
            Err(SessionError::Private(key.clone()))
        }
    }
}

/// For callers that cannot be cancelled.
fn never_cancelled() -> CancellationToken {
    CancellationToken::new()
}
