//! Sessions from outside: asked for, shown, their history emptied, or all of them gone. Never under a run that somebody else has at work there.

use std::collections::BTreeSet;
use std::path::PathBuf;

use quell_kernel::registry::{StopAsk, StopScope};
use quell_protocol::audit::Action;
use quell_protocol::page::SessionPatch;
use quell_protocol::session::{SessionRequest, SessionView};
use quell_protocol::{By, RunId, SessionKey, Surface};
use tokio_util::sync::CancellationToken;

use super::{Caller, Deed, Engine, Got, NotMade};
use crate::address::AddressPolicy;
use crate::cell::Notice;
use crate::memory::NoteScope;
use crate::scope::{Cancelled, Point, Scope};
use crate::store::{Deleted, StoreError};
use crate::tools::attachment::remove_attachments;

/// Why a session was left as it is.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A run that the caller may not stop is at work or waits in it. Nothing was stopped.
    #[error("the session {0:?} has an active run of somebody else; an admin token can do that")]
    SomebodyElses(SessionKey),
    /// The caller did not begin it.
    #[error("you did not begin the session {0:?}; an admin token can do that")]
    NotYours(SessionKey),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Engine {
    /// Gets or creates the session of a user's chat with a provider (rows C1 to C5). When this answers, it lives, and what was
    /// asked for is durable; a run that is at work there goes on with what it has.
    ///
    /// # Errors
    /// [`NotMade`]; a new session then leaves no trace, and one that was there is as it was.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn open_session(&self, caller: &Caller, asked: SessionRequest) -> Result<(SessionKey, Got), NotMade> {
        let key = asked.key().map_err(|error| NotMade::Configuration(error.to_string()))?;
        if (asked.base_url.is_some() || asked.mcp_url.is_some()) && !caller.may_bring_endpoints() {
            let told =
                "a baseUrl or an mcpUrl of its own takes a token with scope endpoints; `quell token create` makes one";
            return Err(NotMade::Forbidden(told.to_owned()));
        }
        let (engine, who, of) = (self.clone(), caller.clone(), key.clone());
        let got = self.seen_through(async move { engine.open_as(&who, &of, &asked, &never()).await });
        let got = got.await.ok_or(NotMade::Closing)?.unwrap_or(Err(NotMade::Closing))?;
        Ok((key, got))
    }

    /// Gives a session another model or agent from its next run on; makes it when there is none of that key.
    ///
    /// # Errors
    /// [`NotMade`]; the session is as it was then.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn patch_session(&self, caller: &Caller, key: &SessionKey, patch: SessionPatch) -> Result<Got, NotMade> {
        self.patch_session_unless(caller, key, patch, &never()).await.unwrap_or(Err(NotMade::Closing))
    }

    /// As [`Engine::patch_session`], until `stopped` is cancelled: that ends what it waits for, and takes back what is begun.
    /// What the database was asked for by then is done, and this waits for it and answers that it is.
    ///
    /// # Errors
    /// [`Cancelled`] when it was stopped; the session is as it was then. Else as there.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine, where `stopped` still ends it.
    pub async fn patch_session_unless(
        &self,
        caller: &Caller,
        key: &SessionKey,
        patch: SessionPatch,
        stopped: &CancellationToken,
    ) -> Result<Result<Got, NotMade>, Cancelled> {
        let (engine, who, key, stopped) = (self.clone(), caller.clone(), key.clone(), stopped.clone());
        let got = self.seen_through(async move {
            let asked = tokio::select! {
                biased;
                () = stopped.cancelled() => return Err(Cancelled),
                // It only reads.
                asked = engine.patched(&key, patch) => asked,
            };
            match asked {
                Ok(asked) => engine.open_as(&who, &key, &asked, &stopped).await,
                Err(why) => Ok(Err(why)),
            }
        });
        got.await.unwrap_or(Ok(Err(NotMade::Closing)))
    }

    /// What a patch asks for, with the names that the session has. A session that was asked for by its provider stays there:
    /// its key is that provider's.
    async fn patched(&self, key: &SessionKey, patch: SessionPatch) -> Result<SessionRequest, NotMade> {
        let config = self.session_view(key).await?.and_then(|view| view.config);
        let SessionPatch { model, agent } = patch;
        let bound = config.as_ref().filter(|config| config.user_id.is_some()).map(|config| config.provider.clone());
        let named = model.as_deref().and_then(|model| model.split_once('/')).map(|(provider, _)| provider.to_owned());
        let provider = match (bound, named) {
            (Some(bound), Some(named)) if bound != named => {
                let problem = format!("the session is one of the provider {bound}; ask for a session with {named}");
                return Err(NotMade::Configuration(problem));
            }
            (Some(bound), _) => bound,
            (None, Some(named)) => named,
            (None, None) if model.is_some() => {
                return Err(NotMade::Configuration(
                    "name the model as provider/model; `quell agents` shows some".into(),
                ));
            }
            // The provider of whatever agent it has or gets.
            (None, None) => String::new(),
        };
        Ok(SessionRequest { provider, model, agent, ..SessionRequest::default() })
    }

    async fn open_as(
        &self,
        caller: &Caller,
        key: &SessionKey,
        asked: &SessionRequest,
        stopped: &CancellationToken,
    ) -> Result<Result<Got, NotMade>, Cancelled> {
        let inner = self.inner();
        let by = By { principal: caller.principal.clone(), surface: caller.surface };
        let scope = Scope::new(inner.clock, inner.config.probe.clone());
        let got = {
            let reach = if caller.is_admin() { AddressPolicy::Any } else { AddressPolicy::PublicOnly };
            let mut got = std::pin::pin!(inner.sessions.open(key, asked, (by, reach), &scope));
            tokio::select! {
                biased;
                () = stopped.cancelled() => {
                    scope.cancel();
                    got.await
                }
                () = inner.sessions.closing() => {
                    scope.cancel();
                    got.await.or(Ok(Err(NotMade::Closing)))
                }
                got = &mut got => got,
            }
        };
        let _released = scope.close().await;
        let got = match got? {
            Ok(got) => got,
            Err(why) => return Ok(Err(why)),
        };
        if got != Got::Known {
            let what = if got == Got::Created { "made" } else { "configured anew" };
            self.audit(caller, Deed::to(Action::ConfigureSession, "session", key.as_str()).with(what));
            inner.hub.publish(&Notice::Session { key: key.clone(), reason: "create" });
        }
        Ok(Ok(got))
    }

    /// One session with what its next run works with.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn session_view(&self, key: &SessionKey) -> Result<Option<SessionView>, StoreError> {
        let Some(stored) = self.inner().store.session(key.clone()).await? else { return Ok(None) };
        let (config, config_problem) = match self.inner().sessions.config_of(&stored) {
            Ok(config) => (Some(config), None),
            Err(why) => (None, Some(why.to_string())),
        };
        Ok(Some(SessionView { row: self.session_row(stored), config, config_problem }))
    }

    /// Stops the session's runs, then empties its history; the old turns stay under a boundary. False if there is none.
    ///
    /// # Errors
    /// [`SessionError`]: not the caller's to empty, or the store's error.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn reset_session(&self, caller: &Caller, key: &SessionKey, ask: &StopAsk) -> Result<bool, SessionError> {
        let done = self.reset_session_unless(caller, key, ask, &never()).await;
        done.unwrap_or(Err(StoreError::Closed.into()))
    }

    /// As [`Engine::reset_session`], until `stopped` is cancelled: that ends the waiting for runs, which stay stopped. Once the
    /// database is asked to empty the history, that is done, and this waits for it and answers that it is.
    ///
    /// # Errors
    /// [`Cancelled`] when it was stopped; the history is as it was then. Else as there.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine, where `stopped` still ends it.
    pub async fn reset_session_unless(
        &self,
        caller: &Caller,
        key: &SessionKey,
        ask: &StopAsk,
        stopped: &CancellationToken,
    ) -> Result<Result<bool, SessionError>, Cancelled> {
        let (engine, who, key, ask) = (self.clone(), caller.clone(), key.clone(), ask.clone());
        let stopped = stopped.clone();
        let done = self.seen_through(async move {
            tokio::select! {
                biased;
                () = stopped.cancelled() => Err(Cancelled),
                // Dropped, it has stopped runs, and nobody waits for their end.
                over = engine.stop_own(&who, &key, &ask) => Ok(match over {
                    Ok(_over) => engine.reset_as(&who, &key).await,
                    Err(why) => Err(why),
                }),
            }
        });
        done.await.unwrap_or(Ok(Err(StoreError::Closed.into())))
    }

    async fn reset_as(&self, caller: &Caller, key: &SessionKey) -> Result<bool, SessionError> {
        let now = self.inner().clock.now();
        self.inner().workshop.memory.forget_what_was_said(NoteScope::Session(key.clone()), now);
        let at = self.inner().clock.rfc3339(now);
        let reset = self.inner().store.reset_session(key.clone(), at).await?;
        self.inner().sessions.forget_history(key);
        if reset {
            self.audit(caller, Deed::to(Action::ResetSession, "session", key.as_str()));
            self.inner().hub.publish(&Notice::Session { key: key.clone(), reason: "reset" });
        }
        Ok(reset)
    }

    /// Stops the session's runs, then deletes it with all it left. False if there is none. Whoever asks for it meanwhile gets
    /// a new one.
    ///
    /// # Errors
    /// [`SessionError`]: not the caller's to delete, or the store's error.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn delete_session(&self, caller: &Caller, key: &SessionKey, ask: &StopAsk) -> Result<bool, SessionError> {
        let (engine, who, key, ask) = (self.clone(), caller.clone(), key.clone(), ask.clone());
        let done = self.seen_through(async move { engine.delete_as(&who, &key, &ask).await });
        done.await.ok_or(StoreError::Closed)?
    }

    async fn delete_as(&self, caller: &Caller, key: &SessionKey, ask: &StopAsk) -> Result<bool, SessionError> {
        if let Some(why) = self.why_unsealed() {
            // Its runs have no receipts in the database yet.
            return Err(why.into());
        }
        let mut orphans = Vec::new();
        let deleted = loop {
            let mut over = self.stop_own(caller, key, ask).await?;
            over.append(&mut orphans);
            // What it has is given back before what it was is gone, and nobody makes a new one of what is going.
            let _shut = self.inner().sessions.end(key).await;
            if !self.active_runs_of(key).is_empty() {
                // It came in behind the stop, perhaps somebody else's with files of theirs.
                continue;
            }
            let now = self.inner().clock.now();
            self.inner().workshop.memory.forget_what_was_said(NoteScope::Session(key.clone()), now);
            // Before its row: as long as there is one, whoever was cut short can delete it again.
            self.remove_files(key).await;
            // Their receipts stay.
            self.close_books_of(key).await?;
            let deleted = self.inner().store.delete_session(key.clone(), over).await?;
            // Runs that came in behind the stop are stopped, too, if they are the caller's. Those that nobody knows are rows
            // that an earlier write failed to close.
            if let Deleted::InUse(open) = deleted {
                orphans = self.inner().runs.unknown_of(open);
                continue;
            }
            self.inner().sessions.forget_history(key);
            break deleted == Deleted::Yes;
        };
        if deleted {
            tracing::info!(session = %key, principal = %caller.principal, "session deleted");
            self.audit(caller, Deed::to(Action::DeleteSession, "session", key.as_str()));
            self.inner().hub.publish(&Notice::Session { key: key.clone(), reason: "delete" });
        }
        Ok(deleted)
    }

    /// Removes what came into a session that is deleted, whichever of the agents answered it: also one that has left, if its
    /// workdir was where those are that name none. What cannot be removed is a line in the log.
    pub(super) async fn remove_files(&self, key: &SessionKey) {
        let roll = self.inner().workshop.society.roll();
        let mut workdirs: BTreeSet<PathBuf> = roll.values().map(|agent| agent.workdir.clone()).collect();
        // Those of today, and those of data directories that are older.
        let config = &self.inner().config;
        let homes = [config.work_dir.clone(), config.data_dir.join("work")];
        let key = key.clone();
        let scope = Scope::new(self.inner().clock, self.inner().config.probe.clone());
        let removing = scope.blocking(Point::Blocking, "files of a deleted session", move |_| {
            let left = homes.iter().filter_map(|homes| std::fs::read_dir(homes).ok()).flatten();
            workdirs.extend(left.flatten().map(|home| home.path()));
            for workdir in workdirs {
                if let Err(error) = remove_attachments(&workdir, &key) {
                    tracing::error!(session = %key, workdir = %workdir.display(), %error, "files of a deleted session stay");
                }
            }
        });
        // waits: no run does, and nobody cancels it.
        let _ = removing.await;
        scope.close().await;
    }

    /// Stops everything of a session, unless something there is not the caller's to stop, and once more what came in while
    /// that was waited for; answers its runs that are over and may not be stored as such yet.
    async fn stop_own(&self, caller: &Caller, key: &SessionKey, ask: &StopAsk) -> Result<Vec<RunId>, SessionError> {
        self.check_owner(caller, key).await?;
        loop {
            let active = self.active_runs_of(key);
            if !caller.is_admin() && active.iter().any(|run| run.principal != caller.principal) {
                return Err(SessionError::SomebodyElses(key.clone()));
            }
            let stop = self.stop(caller, &StopScope::whole_session(key.clone()), ask);
            stop.settled().await;
            if !stop.did_something() {
                return Ok(self.inner().runs.over_of_session(key));
            }
        }
    }
}

impl Engine {
    /// Passes who began a session, admins, and whoever writes in a chat network: they reach their own conversation alone. One that
    /// does not exist is everybody's.
    pub(super) async fn check_owner(&self, caller: &Caller, key: &SessionKey) -> Result<(), SessionError> {
        if caller.is_admin() || caller.surface == Surface::Channel {
            return Ok(());
        }
        match self.inner().store.session(key.clone()).await? {
            Some(session) if session.owner.as_ref() != Some(&caller.principal) => {
                Err(SessionError::NotYours(key.clone()))
            }
            _ => Ok(()),
        }
    }
}

/// For callers that nobody stops.
fn never() -> CancellationToken {
    CancellationToken::new()
}
