//! Letting a message in: stop text, agent, idempotency, the gate, the database, the session's actor.

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::queue::{Admission, Refusal};
use quell_kernel::registry::{Accepted, StopAsk, StopScope};
use quell_kernel::{Push, stop_text};
use quell_protocol::api::{OnBusy, SendAnswer, StopAnswer, Withdrawn};
use quell_protocol::{AgentId, ErrorCode, RunId, SessionKey, StopReason};
use sha2::{Digest, Sha256};

use super::{Caller, Engine, Stop};
use crate::cell::{Acceptance, Cell};
use crate::channel::Errand;
use crate::session::Wanted;
use crate::store::{AcceptedRow, RunRow, StoreError, StoredState};

/// The longest message. It is more than any model reads, and each is held several times over while its run is at work.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Whether a message may be a stop text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopText {
    /// A person's door: a stop text stops.
    Recognise,
    /// A program's door, or the caller said so: every text is a message.
    Literal,
}

/// A message as a door hands it in.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The session; an unknown one is made.
    pub session: SessionKey,
    /// The message.
    pub text: String,
    /// The agent, if one was named.
    pub agent: Option<AgentId>,
    /// Becomes the run id.
    pub idempotency_key: Option<RunId>,
    /// Policy while the session is busy.
    pub on_busy: OnBusy,
    /// Time for the whole run, from now; without one, or with none at all, the configured one.
    pub timeout: Option<Duration>,
    /// Whether stop text counts.
    pub stop_text: StopText,
    /// What the run has to do with the chat network that the message came from.
    pub errand: Option<Errand>,
}

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    /// A new run, or a message for the active one.
    New(SendAnswer),
    /// A repeat of an earlier one: its state now.
    Repeat(SendAnswer),
    /// It was a stop text.
    Stopped(StopAnswer),
}

/// Why a message was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Refused by the gate or the queue.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Nothing to send.
    #[error("the text is empty; send some text")]
    Empty,
    /// Too much to send.
    #[error("the text has {0} bytes, and {MAX_MESSAGE_BYTES} are the most; put it into a file that the agent can read")]
    TooLong(usize),
    /// No such agent.
    #[error("there is no agent {0:?}; `quell agents` lists them")]
    UnknownAgent(AgentId),
    /// The id was used for something else.
    #[error("the idempotency key {0:?} was used before for another message; take a new one")]
    Conflict(RunId),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Nothing can be written since the start.
    #[error(
        "nothing could be written since the daemon started, and so no message is taken: {0}; make room on the disk of the data \
         directory, or end the program that locks the database: then runs are taken, without a restart"
    )]
    NotYet(StoreError),
    /// The engine closed while the message was being let in.
    #[error("the daemon is shutting down; send again after its restart")]
    Closed,
}

impl SubmitError {
    /// The code a door answers with.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(Refusal::Held) => ErrorCode::Held,
            Self::Refused(Refusal::ShuttingDown) | Self::Closed => ErrorCode::ShuttingDown,
            Self::Refused(Refusal::Busy) => ErrorCode::Busy,
            Self::Refused(Refusal::QueueFull { .. }) => ErrorCode::QueueFull,
            Self::Refused(Refusal::SpendLimit { .. }) => ErrorCode::SpendLimit,
            // Doors ask for no sub-runs; a run that does gets the words.
            Self::Refused(Refusal::SubRun(_)) | Self::Empty => ErrorCode::InvalidRequest,
            Self::TooLong(_) => ErrorCode::BodyTooLarge,
            Self::UnknownAgent(_) | Self::Refused(Refusal::NoAgent { .. }) => ErrorCode::AgentNotFound,
            Self::Conflict(_) => ErrorCode::Conflict,
            Self::Store(_) | Self::NotYet(_) => ErrorCode::StoreUnavailable,
        }
    }
}

impl Engine {
    /// Takes a message: makes a run, hands it to the active one, or stops if it is a stop text. When this answers, what it
    /// answers is durable.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing has changed then.
    ///
    /// # Cancel safety
    /// Safe: from the point of acceptance on it goes on in a task of the engine.
    pub async fn submit(&self, caller: &Caller, submission: Submission) -> Result<Submitted, SubmitError> {
        if submission.stop_text == StopText::Recognise && stop_text::is_stop(&submission.text) {
            return Ok(Submitted::Stopped(self.stop_by_text(caller, &submission.session)));
        }
        if submission.text.trim().is_empty() {
            return Err(SubmitError::Empty);
        }
        if submission.text.len() > MAX_MESSAGE_BYTES {
            return Err(SubmitError::TooLong(submission.text.len()));
        }
        let agent = self.agent_for(&submission).await?;
        let cell = self.new_cell(caller, &submission, agent);
        if let Err(not_yet) = self.may_take() {
            return self.repeat_stored_or(&cell, not_yet).await;
        }
        match self.inner().runs.accept(&cell) {
            Ok(Accepted::Known) => self.repeat_live(&cell).await,
            Ok(Accepted::New(admission)) => self.let_in(cell, admission).await,
            Err(refusal) if submission.idempotency_key.is_some() => self.repeat_stored_or(&cell, refusal.into()).await,
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// A repeat of what only the database remembers is answered, whatever refuses new messages now.
    async fn repeat_stored_or(&self, asked: &Cell, refusal: SubmitError) -> Result<Submitted, SubmitError> {
        match self.inner().store.run(asked.run.id.clone()).await? {
            Some(row) => repeat_stored(asked, &row),
            None => Err(refusal),
        }
    }

    fn stop_by_text(&self, caller: &Caller, session: &SessionKey) -> StopAnswer {
        let scope = StopScope::whole_session(session.clone());
        let ask = StopAsk { push: Push::Gentle, reason: StopReason::Command, surface: caller.surface };
        stop_answer(self.stop(caller, &scope, &ask))
    }

    /// The named agent, else the one the session key names (row A11), else the session's last, else the default.
    async fn agent_for(&self, submission: &Submission) -> Result<AgentId, SubmitError> {
        let society = &self.inner().workshop.society;
        let named = submission.agent.clone().or_else(|| agent_of_key(&submission.session));
        if let Some(agent) = named {
            return if society.get(&agent).is_some() { Ok(agent) } else { Err(SubmitError::UnknownAgent(agent)) };
        }
        let last = self.inner().store.session(submission.session.clone()).await?.map(|session| session.agent);
        let last = last.filter(|agent| society.get(agent).is_some());
        Ok(last.unwrap_or_else(|| society.default_agent().clone()))
    }

    fn new_cell(&self, caller: &Caller, submission: &Submission, agent: AgentId) -> Arc<Cell> {
        self.inner().sessions.new_cell(Wanted {
            id: submission.idempotency_key.clone(),
            session: submission.session.clone(),
            agent,
            principal: caller.principal.clone(),
            admin: caller.who().admin,
            surface: caller.surface,
            parent: None,
            text: submission.text.clone(),
            on_busy: submission.on_busy,
            time: submission.timeout.filter(|time| !time.is_zero()),
            fingerprint: fingerprint(caller, submission),
            errand: submission.errand.clone(),
            ceiling: None,
        })
    }

    async fn let_in(&self, cell: Arc<Cell>, admission: Admission) -> Result<Submitted, SubmitError> {
        match self.inner().sessions.make_durable(&cell).await {
            Ok(AcceptedRow::New) => {}
            Ok(AcceptedRow::Existing(row)) => return repeat_stored(&cell, &row),
            Err(StoreError::Closed) => return Err(SubmitError::Closed),
            Err(error) => return Err(error.into()),
        }
        Ok(Submitted::New(match admission {
            Admission::Steer { into } => SendAnswer {
                run_id: into,
                session_key: cell.run.session.clone(),
                state: "steered".to_owned(),
                message_id: Some(cell.run.id.clone()),
            },
            Admission::Queue | Admission::Interrupt => answer_of(&cell),
        }))
    }

    async fn repeat_live(&self, asked: &Cell) -> Result<Submitted, SubmitError> {
        let conflict = || SubmitError::Conflict(asked.run.id.clone());
        let Some(cell) = self.inner().runs.cell(&asked.run.id) else { return Err(conflict()) };
        if cell.fingerprint != asked.fingerprint {
            return Err(conflict());
        }
        match cell.acceptance().await {
            Acceptance::Durable => Ok(Submitted::Repeat(answer_of(&cell))),
            Acceptance::Pending | Acceptance::Refused => {
                Err(SubmitError::Store(StoreError::Unwritable("the first attempt could not be stored".to_owned())))
            }
        }
    }
}

/// A stop as the doors answer it.
#[must_use]
pub fn stop_answer(stop: Stop) -> StopAnswer {
    StopAnswer {
        aborted: stop.did_something(),
        processes: stop.processes.iter().map(|process| process.row()).collect(),
        run_ids: stop.aborted,
        ending: stop.ending,
        withdrawn: stop.withdrawn.into_iter().map(|(run_id, text)| Withdrawn { run_id, text }).collect(),
    }
}

/// `agent:<id>:...` chooses that agent (row A11).
fn agent_of_key(key: &SessionKey) -> Option<AgentId> {
    let rest = key.as_str().strip_prefix("agent:")?;
    let (id, _) = rest.split_once(':')?;
    AgentId::parse(id).ok()
}

/// What idempotency compares: principal, session, text, agent (decisions.md). Lengths keep the parts apart.
fn fingerprint(caller: &Caller, submission: &Submission) -> String {
    let agent = submission.agent.as_ref().map_or("", AgentId::as_str);
    let mut hash = Sha256::new();
    for part in [caller.principal.as_str(), submission.session.as_str(), agent, &submission.text] {
        hash.update(part.len().to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn answer_of(cell: &Cell) -> SendAnswer {
    let state = cell.view().state;
    SendAnswer { run_id: cell.run.id.clone(), session_key: cell.run.session.clone(), state, message_id: None }
}

fn repeat_stored(cell: &Cell, row: &RunRow) -> Result<Submitted, SubmitError> {
    if row.fingerprint != cell.fingerprint {
        return Err(SubmitError::Conflict(row.id.clone()));
    }
    let (run_id, state, message_id) = match &row.state {
        StoredState::Accepted => (row.id.clone(), "queued", None),
        StoredState::Started => (row.id.clone(), "running", None),
        StoredState::Ended => (row.id.clone(), "ended", None),
        StoredState::Steered { into } => (into.clone(), "steered", Some(row.id.clone())),
    };
    let session_key = row.session.clone();
    Ok(Submitted::Repeat(SendAnswer { run_id, session_key, state: state.to_owned(), message_id }))
}
