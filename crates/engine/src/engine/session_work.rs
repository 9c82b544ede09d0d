//! Change a conversation on request: summarise it, or add a message to it. Each is a run of its session, so that it has
//! its place in the order of messages, is stored as they are, and is stopped as they are.

use quell_kernel::admission::AdmissionError;
use quell_kernel::turn::{ADDED_MESSAGE_REQUEST, COMPACTION_REQUEST};
use quell_protocol::api::{OnBusy, SendAnswer};
use quell_protocol::{ErrorCode, SessionKey, Verdict};
use quell_store::StoreError;

use super::submission::MAX_MESSAGE_BYTES;
use super::{Caller, Engine, NumberedTurn, SessionError, StopTextMode, Submission, SubmitError, SubmitOutcome};
use crate::live_run::RunWork;

/// Why a conversation is not changed.
#[derive(Debug, thiserror::Error)]
pub enum SessionWorkError {
    #[error("there is no session {0:?}; `quell sessions` lists them")]
    UnknownSession(SessionKey),
    #[error("there is nothing to summarise: the session {0:?} has no message since its last summary or reset")]
    NothingToSummarise(SessionKey),
    #[error("the session {0:?} is busy with another run; ask again when that has ended, or stop it first")]
    Busy(SessionKey),
    /// The caller may read the session, and does not own it.
    #[error(transparent)]
    NotOwner(SessionError),
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

impl From<StoreError> for SessionWorkError {
    fn from(error: StoreError) -> Self {
        Self::Submit(error.into())
    }
}

impl SessionWorkError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownSession(_) => ErrorCode::SessionNotFound,
            Self::NothingToSummarise(_) => ErrorCode::Conflict,
            Self::Busy(_) => ErrorCode::Busy,
            Self::NotOwner(_) => ErrorCode::Forbidden,
            Self::Submit(error) => error.code(),
        }
    }
}

/// True for the turn of a run that has summarised the conversation on request.
fn is_summary_alone(turn: &NumberedTurn) -> bool {
    let is_request = turn.messages.first().is_some_and(|message| message.text == COMPACTION_REQUEST);
    is_request && turn.messages.last().is_some_and(|message| message.verdict == Some(Verdict::Completed))
}

impl Engine {
    /// Starts a run that summarises the conversation of a session. The summary replaces all earlier messages for the
    /// model; people still see them.
    ///
    /// # Errors
    /// [`SessionWorkError`]; the session is busy, or belongs to somebody else, for example.
    ///
    /// # Cancel safety
    /// As [`Engine::submit`].
    pub async fn compact_session(&self, caller: &Caller, key: &SessionKey) -> Result<SendAnswer, SessionWorkError> {
        self.check_session_change(caller, key).await?;
        let newest = self.newest_turns(key, i64::MAX, 1).await?;
        if newest.first().is_none_or(is_summary_alone) {
            return Err(SessionWorkError::NothingToSummarise(key.clone()));
        }
        self.submit_session_work(caller, key, COMPACTION_REQUEST, RunWork::Compact).await
    }

    /// Starts a run that adds a message to the conversation of a session, in the assistant's name. It calls no model.
    ///
    /// # Errors
    /// [`SessionWorkError`]; the session is busy, or belongs to somebody else, for example.
    ///
    /// # Cancel safety
    /// As [`Engine::submit`].
    pub async fn add_assistant_message(
        &self,
        caller: &Caller,
        key: &SessionKey,
        text: String,
    ) -> Result<SendAnswer, SessionWorkError> {
        self.check_session_change(caller, key).await?;
        if text.trim().is_empty() {
            return Err(SubmitError::Empty.into());
        }
        if text.len() > MAX_MESSAGE_BYTES {
            return Err(SubmitError::TooLong(text.len()).into());
        }
        self.submit_session_work(caller, key, ADDED_MESSAGE_REQUEST, RunWork::AddMessage(text)).await
    }

    /// Admits whoever may reset the session, because they change what its model is told.
    async fn check_session_change(&self, caller: &Caller, key: &SessionKey) -> Result<(), SessionWorkError> {
        self.refresh_owner(key).await?;
        let is_known = self.may_read_session(caller, key) && self.find_session(key).await?.is_some();
        if !is_known {
            return Err(SessionWorkError::UnknownSession(key.clone()));
        }
        self.check_owner(caller, key).map_err(SessionWorkError::NotOwner)
    }

    async fn submit_session_work(
        &self,
        caller: &Caller,
        key: &SessionKey,
        request: &str,
        work: RunWork,
    ) -> Result<SendAnswer, SessionWorkError> {
        let submission = Submission {
            session: key.clone(),
            text: request.to_owned(),
            work,
            agent: None,
            idempotency_key: None,
            on_busy: OnBusy::Reject,
            timeout: None,
            stop_text_mode: StopTextMode::Literal,
            channel_origin: None,
        };
        match self.submit(caller, submission).await {
            Ok(SubmitOutcome::Accepted(answer) | SubmitOutcome::Duplicate(answer)) => Ok(answer),
            Ok(SubmitOutcome::Stopped(_)) => unreachable!("a literal text is no stop"),
            Err(SubmitError::Refused(AdmissionError::Busy)) => Err(SessionWorkError::Busy(key.clone())),
            Err(error) => Err(error.into()),
        }
    }
}
