//! Accept a message: stop text, agent, idempotency, admission, durable acceptance.

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::admission::{Admission, AdmissionError};
use quell_kernel::api_key::KeyRefusal;
use quell_kernel::registry::{AcceptOutcome, StopRequest, StopScope};
use quell_kernel::{StopLevel, stop_text};
use quell_protocol::api::{OnBusy, SendAnswer, StopAnswer, Withdrawn};
use quell_protocol::{AgentId, ErrorCode, RunId, SessionKey, StopReason};
use quell_store::{AcceptRunOutcome, RunRow, StoreError, StoredRunState, StoredSchedule};
use sha2::{Digest, Sha256};

use super::{Caller, Engine, SessionError, StopResult};
use crate::channel_origin::ChannelOrigin;
use crate::live_run::{Acceptance, LiveRun, RunRequest, RunWork};
use crate::session::SessionClaim;

/// The largest message. It is more than any model reads, and each message is held several times in memory during its
/// run.
pub(super) const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopTextMode {
    /// A client for people: a stop text stops.
    Recognise,
    /// A client for programs, or the caller asked for it: every text is a message.
    Literal,
}

#[derive(Debug, Clone)]
pub struct Submission {
    /// An unknown session is created.
    pub session: SessionKey,
    pub text: String,
    pub work: RunWork,
    pub agent: Option<AgentId>,
    /// Becomes the run id.
    pub idempotency_key: Option<RunId>,
    /// What to do if the session is busy.
    pub on_busy: OnBusy,
    /// Time limit of the whole run, from now. The configured limit applies if it is absent or zero.
    pub timeout: Option<Duration>,
    pub stop_text_mode: StopTextMode,
    /// The chat message that the run answers.
    pub channel_origin: Option<ChannelOrigin>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubmitOutcome {
    /// A new run, or a message for the active one.
    Accepted(SendAnswer),
    /// A repeat of an earlier message, with the current state of that run.
    Duplicate(SendAnswer),
    Stopped(StopAnswer),
}

#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Refused by the gate or the queue.
    #[error(transparent)]
    Refused(#[from] AdmissionError),
    #[error("the text is empty; send some text")]
    Empty,
    #[error("the text has {0} bytes, and {MAX_MESSAGE_BYTES} are the most; put it into a file that the agent can read")]
    TooLong(usize),
    #[error("there is no agent {0:?}; `quell agents` lists them")]
    UnknownAgent(AgentId),
    /// The token of the caller is not for this.
    #[error(transparent)]
    KeyRefused(#[from] KeyRefusal),
    #[error("the session {0:?} is private; its owner can share it with `quell sessions share`")]
    PrivateSession(SessionKey),
    #[error("the session {0:?} lists plain model calls and takes no messages; choose another key")]
    ReservedSession(SessionKey),
    /// The idempotency key was used for another message.
    #[error("the idempotency key {0:?} was used before for another message; take a new one")]
    Conflict(RunId),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The database could not be written since the start.
    #[error(
        "the database could not be written since the daemon started, so no message is accepted: {0}; make room on the disk of \
         the data directory, or end the program that locks the database; no restart is needed then"
    )]
    NotReady(StoreError),
    #[error("the schedule was paused or changed at the moment of its firing, or new runs are held")]
    NotDue,
    #[error("the daemon is shutting down; send again after its restart")]
    Closed,
}

impl SubmitError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(AdmissionError::Held) => ErrorCode::Held,
            Self::Refused(AdmissionError::ShuttingDown) | Self::Closed => ErrorCode::ShuttingDown,
            Self::Refused(AdmissionError::Busy) => ErrorCode::Busy,
            Self::Refused(AdmissionError::QueueFull { .. }) => ErrorCode::QueueFull,
            Self::Refused(AdmissionError::TooManyClientRuns { .. }) => ErrorCode::TooManyRequests,
            Self::Refused(AdmissionError::SpendLimit { .. } | AdmissionError::KeySpendLimit { .. }) => {
                ErrorCode::SpendLimit
            }
            // Transports request no sub-runs; a run that does gets the text.
            Self::Refused(AdmissionError::SubRun(_)) | Self::Empty | Self::ReservedSession(_) => {
                ErrorCode::InvalidRequest
            }
            Self::TooLong(_) => ErrorCode::BodyTooLarge,
            Self::UnknownAgent(_) | Self::Refused(AdmissionError::NoAgent { .. }) => ErrorCode::AgentNotFound,
            Self::PrivateSession(_) | Self::KeyRefused(_) => ErrorCode::Forbidden,
            Self::Conflict(_) | Self::NotDue => ErrorCode::Conflict,
            Self::Store(_) | Self::NotReady(_) => ErrorCode::StoreUnavailable,
        }
    }
}

impl Engine {
    /// Accepts a message: creates a run, steers the active one, or stops the session if it is a stop text. When this
    /// returns, the outcome is durable.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing has changed then.
    ///
    /// # Cancel safety
    /// Safe: from the point of acceptance on it goes on in a task of the engine.
    pub async fn submit(&self, caller: &Caller, submission: Submission) -> Result<SubmitOutcome, SubmitError> {
        if submission.stop_text_mode == StopTextMode::Recognise && stop_text::is_stop_phrase(&submission.text) {
            return Ok(SubmitOutcome::Stopped(self.stop_for_text(caller, &submission.session).await));
        }
        self.submit_run(caller, submission, None).await
    }

    /// Accepts the run of a firing and replaces its schedule, as [`Engine::submit`] and in the same write.
    pub(super) async fn submit_firing_run(
        &self,
        caller: &Caller,
        submission: Submission,
        schedule: StoredSchedule,
    ) -> Result<SubmitOutcome, SubmitError> {
        self.submit_run(caller, submission, Some(schedule)).await
    }

    async fn submit_run(
        &self,
        caller: &Caller,
        submission: Submission,
        firing_of: Option<StoredSchedule>,
    ) -> Result<SubmitOutcome, SubmitError> {
        self.submit_live_run(caller, submission, firing_of).await.map(|(_, outcome)| outcome)
    }

    /// As [`Engine::submit`], with the run, which is a new one unless the outcome says otherwise.
    pub(super) async fn submit_live_run(
        &self,
        caller: &Caller,
        submission: Submission,
        firing_of: Option<StoredSchedule>,
    ) -> Result<(Arc<LiveRun>, SubmitOutcome), SubmitError> {
        if submission.text.trim().is_empty() {
            return Err(SubmitError::Empty);
        }
        if submission.text.len() > MAX_MESSAGE_BYTES {
            return Err(SubmitError::TooLong(submission.text.len()));
        }
        self.refresh_owner(&submission.session).await?;
        let claim = match self.claim_session(caller, &submission.session) {
            Ok(claim) => claim,
            Err(SessionError::Reserved(key)) => return Err(SubmitError::ReservedSession(key)),
            Err(_) => return Err(SubmitError::PrivateSession(submission.session)),
        };
        let agent = self.resolve_agent(&submission).await?;
        self.check_agent_use(caller, &agent)?;
        let live_run = self.new_live_run(caller, &submission, agent);
        let outcome = self.accept_live_run(&live_run, claim, firing_of, submission.idempotency_key.is_some()).await?;
        Ok((live_run, outcome))
    }

    async fn accept_live_run(
        &self,
        live_run: &Arc<LiveRun>,
        claim: SessionClaim,
        firing_of: Option<StoredSchedule>,
        may_be_repeat: bool,
    ) -> Result<SubmitOutcome, SubmitError> {
        if let Err(not_ready) = self.check_ready() {
            return self.duplicate_of_stored_or(live_run, not_ready).await;
        }
        let admission = match self.inner().runs.accept(live_run) {
            Ok(AcceptOutcome::New(admission)) => admission,
            Ok(AcceptOutcome::Known) => return self.duplicate_of_live(live_run).await,
            Err(refusal) if may_be_repeat => {
                return self.duplicate_of_stored_or(live_run, refusal.into()).await;
            }
            Err(refusal) => return Err(refusal.into()),
        };
        let sessions = &self.inner().sessions;
        let accepted = match firing_of {
            None => sessions.commit_acceptance(live_run, claim).await,
            Some(schedule) => sessions.commit_firing(live_run, claim, schedule).await,
        };
        match accepted {
            Ok(AcceptRunOutcome::New) => {}
            Ok(AcceptRunOutcome::Existing(row)) => return duplicate_of_stored(live_run, &row),
            Ok(AcceptRunOutcome::NotDue) => return Err(SubmitError::NotDue),
            Err(StoreError::Closed) => return Err(SubmitError::Closed),
            Err(error) => return Err(error.into()),
        }
        Ok(SubmitOutcome::Accepted(match admission {
            Admission::Steer { into } => SendAnswer {
                run_id: into,
                session_key: live_run.run.session.clone(),
                state: "steered".to_owned(),
                message_id: Some(live_run.run.id.clone()),
            },
            Admission::Queue | Admission::Interrupt => build_send_answer(live_run),
        }))
    }

    /// Answers a repeat of a run that is only in the database, even while new messages are refused.
    async fn duplicate_of_stored_or(
        &self,
        live_run: &LiveRun,
        refusal: SubmitError,
    ) -> Result<SubmitOutcome, SubmitError> {
        match self.inner().store.runs().find(live_run.run.id.clone()).await? {
            Some(row) => duplicate_of_stored(live_run, &row),
            None => Err(refusal),
        }
    }

    async fn stop_for_text(&self, caller: &Caller, session: &SessionKey) -> StopAnswer {
        let scope = StopScope::whole_session(session.clone());
        let request = StopRequest { level: StopLevel::Gentle, reason: StopReason::Command, surface: caller.surface };
        let mut stop_result = self.stop(caller, &scope, &request);
        // waits: the stop has been carried out here, and is on its way to other nodes.
        stop_result.wait_carried_out().await;
        build_stop_answer(&stop_result)
    }

    async fn resolve_agent(&self, submission: &Submission) -> Result<AgentId, SubmitError> {
        let named = submission.agent.clone().or_else(|| agent_from_session_key(&submission.session));
        match named {
            Some(agent) if self.agent_registry().get(&agent).is_none() => Err(SubmitError::UnknownAgent(agent)),
            named => Ok(self.agent_of_message(named.as_ref(), &submission.session).await?),
        }
    }

    /// The named agent, else the one in the session key (row A11 in `docs/design/requirements.md`), else the session's
    /// last agent, else the default.
    pub(super) async fn agent_of_message(
        &self,
        named: Option<&AgentId>,
        session: &SessionKey,
    ) -> Result<AgentId, StoreError> {
        if let Some(agent) = named.cloned().or_else(|| agent_from_session_key(session)) {
            return Ok(agent);
        }
        let registry = self.agent_registry();
        let last = self.inner().store.sessions().find(session.clone()).await?.map(|session| session.agent);
        let last = last.filter(|agent| registry.get(agent).is_some());
        Ok(last.unwrap_or_else(|| registry.default_agent()))
    }

    /// Checks that the token of the caller may run an agent, and that it can pay for it.
    ///
    /// # Errors
    /// [`KeyRefusal`]. A session with a model of its own is checked when the run enters it.
    pub fn check_agent_use(&self, caller: &Caller, agent: &AgentId) -> Result<(), KeyRefusal> {
        caller.key.check_agent(agent)?;
        let Some(found) = self.inner().services.agents.get(agent) else { return Ok(()) };
        found.check_prices(&caller.key)
    }

    fn new_live_run(&self, caller: &Caller, submission: &Submission, agent: AgentId) -> Arc<LiveRun> {
        self.inner().sessions.new_live_run(RunRequest {
            id: submission.idempotency_key.clone(),
            session: submission.session.clone(),
            agent,
            principal: caller.principal.clone(),
            key: caller.key.clone(),
            admin: caller.is_admin(),
            surface: caller.surface,
            parent: None,
            text: submission.text.clone(),
            work: submission.work.clone(),
            on_busy: self.busy_policy(caller, submission),
            timeout: submission.timeout.filter(|time| !time.is_zero()),
            fingerprint: compute_fingerprint(caller, submission),
            channel_origin: submission.channel_origin.clone(),
            max_permissions: None,
        })
    }

    /// A restricted token steers only runs of its own: one of somebody else may have another agent, and another pays.
    fn busy_policy(&self, caller: &Caller, submission: &Submission) -> OnBusy {
        let is_foreign = |live_run: &Arc<LiveRun>| live_run.run.principal != caller.principal;
        let has_foreign_run = || self.inner().runs.runs_of_session(&submission.session).iter().any(is_foreign);
        match submission.on_busy {
            OnBusy::Steer if caller.key.restricts_runs() && has_foreign_run() => OnBusy::Queue,
            on_busy => on_busy,
        }
    }

    async fn duplicate_of_live(&self, requested: &LiveRun) -> Result<SubmitOutcome, SubmitError> {
        let conflict = || SubmitError::Conflict(requested.run.id.clone());
        let Some(live_run) = self.inner().runs.live_run(&requested.run.id) else {
            // It has just left the memory.
            return self.duplicate_of_stored_or(requested, conflict()).await;
        };
        if live_run.fingerprint != requested.fingerprint {
            return Err(conflict());
        }
        match live_run.wait_for_acceptance().await {
            Acceptance::Durable => Ok(SubmitOutcome::Duplicate(build_send_answer(&live_run))),
            Acceptance::Pending | Acceptance::Refused => {
                Err(SubmitError::Store(StoreError::Unwritable("the first attempt could not be stored".to_owned())))
            }
        }
    }
}

/// Converts the result of a stop to the answer of the API.
pub fn build_stop_answer(stop_result: &StopResult) -> StopAnswer {
    let withdrawn = stop_result.withdrawn.iter().cloned();
    let mut answer = StopAnswer {
        aborted: stop_result.stopped_anything(),
        processes: stop_result.process_rows(),
        run_ids: stop_result.aborted.clone(),
        ending: stop_result.already_ending.clone(),
        withdrawn: withdrawn.map(|(run_id, text)| Withdrawn { run_id, text }).collect(),
        paused_schedules: stop_result.schedules.ids(),
        unstored_pauses: !stop_result.schedules.is_stored(),
        unreached: Vec::new(),
        settled_nodes: Vec::new(),
    };
    stop_result.peers.add_to(&mut answer);
    answer
}

/// A session key `agent:ID:...` names that agent (row A11 in `docs/design/requirements.md`).
pub(super) fn agent_from_session_key(key: &SessionKey) -> Option<AgentId> {
    let rest = key.as_str().strip_prefix("agent:")?;
    let (id, _) = rest.split_once(':')?;
    AgentId::parse(id).ok()
}

/// Fingerprint for idempotency: principal, session, agent, text and files. The lengths keep the parts apart.
fn compute_fingerprint(caller: &Caller, submission: &Submission) -> String {
    let agent = submission.agent.as_ref().map_or("", AgentId::as_str);
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    };
    for part in [caller.principal.as_str(), submission.session.as_str(), agent, &submission.text] {
        add(part.as_bytes());
    }
    match &submission.work {
        RunWork::Answer { files } => {
            for file in files.iter() {
                add(file.name.as_deref().unwrap_or_default().as_bytes());
                add(&file.bytes);
            }
        }
        // Nobody repeats them: they get a new id each time.
        RunWork::AnswerClient(_) | RunWork::ModelCall | RunWork::Compact | RunWork::AddMessage(_) => {}
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn build_send_answer(live_run: &LiveRun) -> SendAnswer {
    let state = live_run.view().state;
    SendAnswer { run_id: live_run.run.id.clone(), session_key: live_run.run.session.clone(), state, message_id: None }
}

fn duplicate_of_stored(live_run: &LiveRun, row: &RunRow) -> Result<SubmitOutcome, SubmitError> {
    if row.fingerprint != live_run.fingerprint {
        return Err(SubmitError::Conflict(row.id.clone()));
    }
    let (run_id, state, message_id) = match &row.state {
        StoredRunState::Accepted => (row.id.clone(), "queued", None),
        StoredRunState::Started => (row.id.clone(), "running", None),
        StoredRunState::Ended => (row.id.clone(), "ended", None),
        StoredRunState::Steered { into } => (into.clone(), "steered", Some(row.id.clone())),
    };
    let session_key = row.session.clone();
    Ok(SubmitOutcome::Duplicate(SendAnswer { run_id, session_key, state: state.to_owned(), message_id }))
}
