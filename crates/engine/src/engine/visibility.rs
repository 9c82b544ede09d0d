//! Who may see and use which session and run. Every transport asks here; the rules are `quell_kernel::visibility`.

use std::sync::Arc;

use quell_kernel::visibility::{SessionOwnership, Sharing, Viewer};
use quell_protocol::api::RunView;
use quell_protocol::approval::ApprovalRow;
use quell_protocol::audit::Action;
use quell_protocol::{EventKind, Principal, RunEvent, RunId, SessionKey, Surface};
use quell_store::StoreError;
use tokio::sync::watch;

use super::client_runs::is_model_call_session;
use super::{AuditAction, Caller, Engine, SessionError};
use crate::access::is_named_token;
use crate::live_run::EngineNotice;
use crate::session::SessionClaim;

impl Engine {
    /// The owner of a session; `None` if there is no such session.
    pub fn session_ownership(&self, key: &SessionKey) -> Option<SessionOwnership> {
        self.inner().sessions.owners().find(key)
    }

    /// Reads the owner of a session again, unless it belongs to this node: another one may have created, shared or deleted
    /// it. Does nothing without a cluster.
    ///
    /// # Errors
    /// The store's error; the caller must not go on then.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn refresh_owner(&self, key: &SessionKey) -> Result<(), StoreError> {
        match self.cluster() {
            Some(cluster) if !cluster.owns_session(key) => {
                self.inner().sessions.owners().refresh(&self.inner().store, key).await
            }
            _ => Ok(()),
        }
    }

    /// True if the caller may read the session. Also true if there is none: then there is nothing to read.
    pub fn may_read_session(&self, caller: &Caller, key: &SessionKey) -> bool {
        self.session_ownership(key).is_none_or(|session| caller.viewer().may_read_session(&session))
    }

    /// True if the caller may hear that something happened to the session, its deletion included.
    pub fn may_hear_of_session(&self, caller: &Caller, key: &SessionKey) -> bool {
        let viewer = caller.viewer();
        let ownership = || self.inner().sessions.owners().find_or_removed(key);
        viewer.reads_all() || ownership().is_some_and(|session| viewer.may_read_session(&session))
    }

    /// Checks a run that `principal` started in this session.
    pub fn may_read_run(&self, caller: &Caller, principal: &Principal, session: &SessionKey) -> bool {
        caller.viewer().may_read_run(principal, self.session_ownership(session).as_ref())
    }

    pub fn may_read_run_view(&self, caller: &Caller, run: &RunView) -> bool {
        self.may_read_run(caller, &run.principal, &run.session_key)
    }

    /// Checks a run that is in memory. Of a run that has left it, only readers of its session hear.
    pub fn may_follow_run(&self, caller: &Caller, run: &RunId, session: &SessionKey) -> bool {
        let viewer = caller.viewer();
        viewer.reads_all() || {
            let principal = self.inner().runs.live_run(run).map(|live_run| live_run.run.principal.clone());
            let ownership = self.session_ownership(session);
            principal == Some(viewer.principal.clone())
                || ownership.is_some_and(|ownership| viewer.may_read_session(&ownership))
        }
    }

    /// Changes whenever a session is made private again.
    pub fn subscribe_withdrawals(&self) -> watch::Receiver<()> {
        self.inner().sessions.owners().subscribe_withdrawals()
    }

    /// Waits until the caller may not read a run any more that `principal` started in this session: because the sharing
    /// of the session was taken back.
    ///
    /// # Cancel safety
    /// Safe: it has no effect.
    pub async fn wait_run_withdrawn(&self, caller: &Caller, principal: &Principal, session: &SessionKey) {
        let mut withdrawals = self.subscribe_withdrawals();
        // The sender lives as long as the engine.
        while self.may_read_run(caller, principal, session) && withdrawals.changed().await.is_ok() {}
    }

    /// The waiting calls that the caller may see: those of runs that it may read, and for an approver all.
    pub fn visible_approvals(&self, caller: &Caller) -> Vec<ApprovalRow> {
        let mut rows = self.pending_approvals();
        rows.retain(|row| self.may_see_approval(caller, row));
        rows
    }

    fn may_see_approval(&self, caller: &Caller, row: &ApprovalRow) -> bool {
        caller.may_approve() || self.may_read_run(caller, &row.principal, &row.session_key)
    }

    /// An event as a reader of its run may see it; `None` if it tells only of a sub-run's approval that the reader may not
    /// see.
    ///
    /// Who shares a session of another node may be out of date here, so of its approvals only the sender of the message and
    /// approvers hear.
    pub fn visible_event(&self, caller: &Caller, event: Arc<RunEvent>) -> Option<Arc<RunEvent>> {
        retain_visible_approvals(event, |row| {
            let is_elsewhere = self.cluster().is_some_and(|cluster| !cluster.owns_session(&row.session_key));
            let knows_sharing = !is_elsewhere || caller.principal == row.principal || caller.viewer().reads_all();
            caller.may_approve() || knows_sharing && self.may_see_approval(caller, row)
        })
    }

    /// The waiting calls of a run and of the runs below it that the caller may see, oldest first.
    pub fn visible_approvals_of_tree(&self, caller: &Caller, run: &RunId) -> Vec<ApprovalRow> {
        let mut rows = self.visible_approvals(caller);
        let is_in_tree = |row: &ApprovalRow| {
            let live_run = self.inner().runs.live_run(&row.run_id);
            live_run.is_some_and(|live_run| live_run.lineage().contains(run))
        };
        rows.retain(|row| row.run_id == *run || is_in_tree(row));
        rows
    }

    /// Leaves out of a list of active runs those that the caller may not read.
    pub fn retain_visible_runs(&self, caller: &Caller, runs: &mut Vec<RunId>) {
        if caller.viewer().reads_all() {
            return;
        }
        runs.retain(|id| {
            let live_run = self.inner().runs.live_run(id);
            live_run.is_some_and(|live_run| self.may_read_run(caller, &live_run.run.principal, &live_run.run.session))
        });
    }

    /// Claims a session for a message or a setup. Senders in a chat network reach only their own conversation, which
    /// may have several senders. It is not theirs if the holder of a token created a session with its key before them:
    /// that token would read what they write.
    ///
    /// # Errors
    /// [`SessionError::Private`]: the session belongs to somebody else. [`SessionError::Reserved`]: it lists plain model
    /// calls.
    pub(super) fn claim_session(&self, caller: &Caller, key: &SessionKey) -> Result<SessionClaim, SessionError> {
        // The servers of people work with the rights of their agents.
        if is_model_call_session(key) || key.as_str().starts_with(&self.people_session_prefix()) {
            return Err(SessionError::Reserved(key.clone()));
        }
        let claim = self.inner().sessions.owners().claim(key, &caller.principal);
        let is_allowed = claim.found().is_none_or(|session| match caller.surface {
            Surface::Channel => {
                session.sharing == Sharing::Shared || !session.owner.as_ref().is_some_and(is_named_token)
            }
            _ => caller.viewer().may_use_session(session),
        });
        if is_allowed { Ok(claim) } else { Err(SessionError::Private(key.clone())) }
    }

    /// True for a session that the holder of a token has created with the key of a chat. Shared, it would take the
    /// messages of that chat, which the token would read.
    fn is_chat_of_token(&self, key: &SessionKey) -> bool {
        let owner = self.session_ownership(key).and_then(|session| session.owner);
        owner.as_ref().is_some_and(is_named_token) && self.is_chat_session(key)
    }

    /// Shares a session with everybody who may read or send at all, or makes it private again. False if there is no
    /// such session.
    ///
    /// # Errors
    /// [`SessionError`]: the caller does not own it, it has the key of a chat, or the store's error.
    ///
    /// # Cancel safety
    /// Safe: it goes on in a task of the engine.
    pub async fn share_session(&self, caller: &Caller, key: &SessionKey, shared: bool) -> Result<bool, SessionError> {
        self.check_owner(caller, key)?;
        if shared && is_model_call_session(key) {
            return Err(SessionError::Reserved(key.clone()));
        }
        if shared && !caller.viewer().write_all && self.is_chat_of_token(key) {
            return Err(SessionError::ChatKey(key.clone()));
        }
        let (engine, requester, key) = (self.clone(), caller.clone(), key.clone());
        let done = self.run_detached(async move {
            let inner = engine.inner();
            if !shared {
                // At once, also if the write fails.
                inner.sessions.owners().set_shared(&key, false);
            }
            if !inner.store.sessions().set_shared(key.clone(), shared).await? {
                return Ok(false);
            }
            inner.sessions.owners().set_shared(&key, shared);
            let detail = if shared { "shared" } else { "private" };
            let action = AuditAction::on_target(Action::ShareSession, "session", key.as_str());
            engine.audit(&requester, action.with_detail(detail));
            inner.hub.publish(&EngineNotice::session_changed(key, "share"));
            Ok(true)
        });
        done.await.unwrap_or(Err(quell_store::StoreError::Closed.into()))
    }
}

/// The event without the approvals that are not visible; `None` if it tells of nothing else.
pub(super) fn retain_visible_approvals(
    event: Arc<RunEvent>,
    is_visible: impl Fn(&ApprovalRow) -> bool,
) -> Option<Arc<RunEvent>> {
    match &event.kind {
        EventKind::SubRunApprovalRequested { approval } | EventKind::SubRunApprovalResolved { approval } => {
            is_visible(approval).then_some(event)
        }
        EventKind::Snapshot { approvals, .. } if !approvals.iter().all(&is_visible) => {
            let mut shown = Arc::unwrap_or_clone(event);
            if let EventKind::Snapshot { approvals, .. } = &mut shown.kind {
                approvals.retain(is_visible);
            }
            Some(Arc::new(shown))
        }
        _ => Some(event),
    }
}

impl Caller {
    /// The caller, as far as ownership matters.
    pub fn viewer(&self) -> Viewer {
        let (read_all, write_all) = (self.grants.read_all, self.grants.write_all);
        let is_admin = self.is_admin();
        Viewer { principal: self.principal.clone(), read_all: is_admin || read_all, write_all: is_admin || write_all }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(id: &str) -> serde_json::Value {
        json!({
            "id": id, "runId": "r2", "sessionKey": "s2", "agent": "main", "principal": "ann", "callId": "c", "tool": "x",
            "arguments": {}, "requestedAt": "", "expiresAt": "", "state": "pending",
        })
    }

    fn event(fields: serde_json::Value) -> Arc<RunEvent> {
        let mut event = json!({"runId": "r", "sessionKey": "s", "seq": 1, "at": ""});
        event.as_object_mut().unwrap().extend(fields.as_object().cloned().unwrap());
        Arc::new(serde_json::from_value(event).unwrap())
    }

    #[test]
    fn a_reader_gets_only_approvals_that_it_may_see() {
        let is_visible = |row: &ApprovalRow| row.id == "mine";
        for name in ["sub_run.approval_requested", "sub_run.approval_resolved"] {
            let told = |id| retain_visible_approvals(event(json!({"type": name, "approval": row(id)})), is_visible);
            assert!(told("mine").is_some() && told("other").is_none(), "{name}");
        }
        let approvals = json!([row("other"), row("mine")]);
        let snapshot = event(json!({
            "type": "run.snapshot", "text": "so far", "thinking": "", "calls": [], "approvals": approvals,
        }));
        let shown = retain_visible_approvals(snapshot, is_visible).unwrap();
        let EventKind::Snapshot { text, approvals, .. } = &shown.kind else { panic!("{shown:?}") };
        assert_eq!((text.as_str(), approvals.len(), approvals[0].id.as_str()), ("so far", 1, "mine"));
    }
}
