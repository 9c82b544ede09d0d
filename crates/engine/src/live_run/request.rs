//! A run as it is requested, by a client or by another run.

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::api_key::ApiKey;
use quell_kernel::attachment::MessageFile;
use quell_kernel::client_request::AnswerOptions;
use quell_kernel::expiry::ExpiryLimits;
use quell_kernel::permissions::RunPermissions;
use quell_kernel::turn::{AnsweredCall, ModelMessage, Turn, TurnDraft};
use quell_protocol::api::OnBusy;
use quell_protocol::{AgentId, Principal, RunId, SessionKey, Surface};
use quell_scope::PointProbe;

use crate::channel_origin::ChannelOrigin;
use crate::journal::Journal;

#[derive(Debug, Clone)]
pub struct RunDefaults {
    /// Bounds of a run's expiry (row A5 in `docs/design/requirements.md`).
    pub expiry: ExpiryLimits,
    /// Time limit of a run that sets none.
    pub run_timeout: Duration,
    pub journal: Journal,
    /// Called at every point that a run reaches; for tests.
    pub probe: PointProbe,
}

/// What a run does.
#[derive(Debug, Clone)]
pub enum RunWork {
    /// Answers its message, which may come with files.
    Answer { files: Arc<[MessageFile]> },
    /// Answers the conversation that a client brought along, in the name of its agent.
    AnswerClient(Arc<ClientWork>),
    /// Calls a model once with the conversation that a client brought along. No agent and no session take part, and it
    /// is stored at its end. The conversation is not kept with the run.
    ModelCall,
    /// Summarises the conversation before it.
    Compact,
    /// Adds this message to the conversation, in the assistant's name. No model is called.
    AddMessage(String),
}

/// What a client of a model API asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientWork {
    /// Texts of the client's system and developer; they follow the prompt of an agent.
    pub instructions: String,
    pub history: ClientHistory,
    /// The last message of the user as models read it, with its pictures.
    pub text: String,
    /// What models have answered to it so far.
    pub continuation: Vec<ModelMessage<AnsweredCall>>,
    pub answer: AnswerOptions,
}

/// What was said before the last message of the user.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientHistory {
    OfRequest(Vec<Arc<Turn>>),
    OfSession,
}

impl ClientWork {
    /// The message of the user and what follows it, as the model reads them.
    pub fn draft(&self, run: RunId) -> TurnDraft {
        draft_with(run, self.text.clone(), &self.continuation)
    }

    /// True if the client carries out calls of this tool.
    pub fn has_tool(&self, name: &str) -> bool {
        self.answer.tools.iter().any(|tool| tool.name == name)
    }
}

/// A draft of this message and of what models have answered to it, with the results that the client brought.
pub fn draft_with(run: RunId, text: String, continuation: &[ModelMessage<AnsweredCall>]) -> TurnDraft {
    let mut draft = TurnDraft::new(run, text);
    for message in continuation {
        let results: Vec<_> = message.calls().map(|call| call.result.clone()).collect();
        let calls = draft.finish_message(message.clone().map_calls(|answered| answered.call));
        for (call, result) in calls.iter().zip(results) {
            draft.finish_call(&call.id, result);
        }
    }
    draft
}

impl RunWork {
    /// True for a plain model call: it has no session and no journal, and one write stores it at its end.
    pub fn is_model_call(&self) -> bool {
        matches!(self, Self::ModelCall)
    }

    pub fn client(&self) -> Option<&ClientWork> {
        match self {
            Self::AnswerClient(client) => Some(client),
            Self::Answer { .. } | Self::ModelCall | Self::Compact | Self::AddMessage(_) => None,
        }
    }
}

impl Default for RunWork {
    /// Answers a message without files.
    fn default() -> Self {
        Self::Answer { files: Arc::default() }
    }
}

#[derive(Debug, Clone)]
pub struct RunRequest {
    /// A new id if absent.
    pub id: Option<RunId>,
    pub session: SessionKey,
    pub agent: AgentId,
    pub principal: Principal,
    /// What the token of that principal may use.
    pub key: ApiKey,
    /// True if that principal may stop any run.
    pub admin: bool,
    pub surface: Surface,
    pub parent: Option<RunId>,
    pub text: String,
    pub work: RunWork,
    /// What to do if the session is busy.
    pub on_busy: OnBusy,
    /// Time limit from now; the default applies if absent.
    pub timeout: Option<Duration>,
    /// Hash of the request, compared for idempotency.
    pub fingerprint: String,
    /// The chat message that the run answers.
    pub channel_origin: Option<ChannelOrigin>,
    /// Upper bound of its permissions, if another run starts it.
    pub max_permissions: Option<RunPermissions>,
}
