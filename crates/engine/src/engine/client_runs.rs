//! Start runs for clients of model APIs: they bring a conversation, and wait for one answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_kernel::api_key::KeyRefusal;
use quell_kernel::client_request::{AnswerOptions, ClientConversation, ClientRequestProblem};
use quell_kernel::image::without_image_data;
use quell_kernel::turn::PartialPolicy;
use quell_llm::UnknownModel;
use quell_protocol::api::OnBusy;
use quell_protocol::{AgentId, ErrorCode, RunId, SessionKey};
use quell_store::StoreError;

use super::{Caller, Engine, StopTextMode, Submission, SubmitError};
use crate::agent::MODEL_CALLS;
use crate::live_run::{ClientHistory, ClientWork, LiveRun, RunRequest, RunWork};
use crate::runs::{ImmediateStart, abort_at_deadline};

/// The prefix of a `model` that names an agent: `agent/ID`.
pub const AGENT_PREFIX: &str = "agent/";

/// A request of a client of a model API.
#[derive(Debug, Clone)]
pub struct ClientRun {
    /// A new id. The caller chooses it, so that it can stop the run before it has started.
    pub id: RunId,
    /// `agent/ID` or `PROVIDER/MODEL`.
    pub model: String,
    pub conversation: ClientConversation,
    pub answer: AnswerOptions,
    /// The session that the conversation is bound to; its history counts then, and not that of the request. Without, the
    /// run of an agent gets a session of its own.
    pub session: Option<SessionKey>,
}

/// Why a client's request was not started.
#[derive(Debug, thiserror::Error)]
pub enum ClientRunError {
    #[error(transparent)]
    UnknownModel(#[from] UnknownModel),
    #[error("a plain model call has no session; leave the session out, or name an agent as agent/ID")]
    SessionOfModelCall,
    /// A request that is bound to a session has nothing new.
    #[error(transparent)]
    Request(#[from] ClientRequestProblem),
    #[error(
        "the session {0:?} is on another node of the cluster; name it in the header X-Quell-Session, by which requests find their node"
    )]
    OtherNode(SessionKey),
    #[error(transparent)]
    Submit(SubmitError),
}

impl From<SubmitError> for ClientRunError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Store(StoreError::OtherNode(key)) => Self::OtherNode(key),
            error => Self::Submit(error),
        }
    }
}

impl ClientRunError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownModel(_) => ErrorCode::ModelNotFound,
            Self::SessionOfModelCall | Self::Request(_) | Self::OtherNode(_) => ErrorCode::InvalidRequest,
            Self::Submit(SubmitError::UnknownAgent(_)) => ErrorCode::ModelNotFound,
            Self::Submit(error) => error.code(),
        }
    }
}

impl Engine {
    /// Starts the run that answers a client. Its caller follows the run and stops it when the client is gone.
    ///
    /// # Errors
    /// [`ClientRunError`]; nothing has started then.
    ///
    /// # Cancel safety
    /// Safe if the run is stopped by its id when this is dropped: a stop that comes first ends the run.
    pub async fn start_client_run(&self, caller: &Caller, request: ClientRun) -> Result<Arc<LiveRun>, ClientRunError> {
        match request.model.strip_prefix(AGENT_PREFIX) {
            Some(agent) => {
                let agent = AgentId::parse(agent).map_err(|_| unknown_agent_name(&request.model))?;
                // waits: for the database, as any message; a stop of the id ends the run once it is accepted.
                self.submit_client_message(caller, agent, request).await
            }
            None if request.session.is_some() => Err(ClientRunError::SessionOfModelCall),
            None => self.start_model_call(caller, request),
        }
    }

    /// What a client may name as a model: each agent, and the models that agents use, if its token is for them.
    pub fn client_models(&self, caller: &Caller) -> Vec<String> {
        let agents = self.agent_registry().snapshot();
        let allowed_agents = agents.keys().filter(|id| caller.key.may_use_agent(id));
        let named = allowed_agents.map(|id| format!("{AGENT_PREFIX}{id}"));
        let used: BTreeSet<&str> = agents.values().flat_map(|agent| agent.config.model.names()).collect();
        let used = used.into_iter().filter(|name| caller.key.may_use_model(name));
        named.chain(used.map(str::to_owned)).collect()
    }

    /// True for an agent, and for any model of a configured provider, that the token of the caller is for.
    pub fn is_client_model(&self, caller: &Caller, name: &str) -> bool {
        match name.strip_prefix(AGENT_PREFIX) {
            _ if self.check_client_model(caller, name).is_err() => false,
            Some(agent) => AgentId::parse(agent).is_ok_and(|id| self.agent_registry().get(&id).is_some()),
            None => self.inner().models.resolve(name).is_ok(),
        }
    }

    /// Checks that the token of the caller may name an agent or a model.
    ///
    /// # Errors
    /// [`KeyRefusal`].
    pub fn check_client_model(&self, caller: &Caller, name: &str) -> Result<(), KeyRefusal> {
        match name.strip_prefix(AGENT_PREFIX).map(AgentId::parse) {
            Some(Ok(agent)) => caller.key.check_agent(&agent),
            // No such agent exists.
            Some(Err(_)) => Ok(()),
            None => caller.key.check_model(name),
        }
    }

    /// What models see of the texts that a stop cut off, for what a client names as a model.
    pub fn client_partial_policy(&self, name: &str) -> PartialPolicy {
        let agent = name.strip_prefix(AGENT_PREFIX).and_then(|agent| AgentId::parse(agent).ok());
        agent.and_then(|id| self.agent_registry().get(&id)).map(|agent| agent.config.partial).unwrap_or_default()
    }

    async fn submit_client_message(
        &self,
        caller: &Caller,
        agent: AgentId,
        request: ClientRun,
    ) -> Result<Arc<LiveRun>, ClientRunError> {
        let ClientRun { id, conversation, answer, session, .. } = request;
        let (key, work) = match session {
            Some(key) => (key, work_in_session(conversation, answer)?),
            None => {
                // Without a new message the agent has nothing to do, and most providers refuse its request.
                conversation.new_message()?;
                (own_session_key(caller), work_of_request(conversation, answer))
            }
        };
        let submission = Submission {
            session: key,
            text: without_image_data(&work.text),
            work: RunWork::AnswerClient(Arc::new(work)),
            agent: Some(agent),
            idempotency_key: Some(id),
            on_busy: OnBusy::Queue,
            timeout: None,
            stop_text_mode: StopTextMode::Literal,
            channel_origin: None,
        };
        Ok(self.submit_live_run(caller, submission, None).await.map(|(live_run, _)| live_run)?)
    }

    fn start_model_call(&self, caller: &Caller, request: ClientRun) -> Result<Arc<LiveRun>, ClientRunError> {
        // Before it is known whether the model exists: a token does not learn of models that it may not use.
        self.check_client_model(caller, &request.model).map_err(SubmitError::from)?;
        let model = self.inner().models.resolve(&request.model)?;
        caller.key.check_price(model.name(), model.price()).map_err(SubmitError::from)?;
        self.check_ready()?;
        let client = work_of_request(request.conversation, request.answer);
        let session = model_call_session(caller);
        // Not by `claim_session`: only model calls use these sessions.
        let claim = self.inner().sessions.owners().claim(&session, &caller.principal);
        if claim.found().is_some_and(|found| found.owner.as_ref() != Some(&caller.principal)) {
            return Err(SubmitError::PrivateSession(session).into());
        }
        let live_run = self.inner().sessions.new_live_run(RunRequest {
            id: Some(request.id),
            session,
            agent: MODEL_CALLS.clone(),
            principal: caller.principal.clone(),
            key: caller.key.clone(),
            admin: caller.is_admin(),
            surface: caller.surface,
            parent: None,
            text: without_image_data(&client.text),
            work: RunWork::ModelCall,
            on_busy: OnBusy::Queue,
            timeout: None,
            fingerprint: String::new(),
            channel_origin: None,
            max_permissions: None,
        });
        let runs = &self.inner().runs;
        if runs.start_at_once(&live_run).map_err(SubmitError::from)? == ImmediateStart::StoppedBefore {
            return Ok(live_run);
        }
        let (run, model_name) = (live_run.id(), model.name());
        tracing::info!(%run, model = model_name, principal = %caller.principal, "model call started");
        runs.spawn(abort_at_deadline(runs.clone(), Arc::clone(&live_run), live_run.deadline));
        runs.spawn({
            let (runs, live_run) = (runs.clone(), Arc::clone(&live_run));
            async move {
                runs.call_to_completion(&live_run, &model, client).await;
                // The session is in the database now, unless it was deleted or nothing could be written.
                claim.confirm(runs.store()).await;
            }
        });
        Ok(live_run)
    }
}

/// The session that lists the plain model calls of a principal. It holds no conversation.
fn model_call_session(caller: &Caller) -> SessionKey {
    session_key(format!("{MODEL_CALL_SESSIONS}{}", caller.principal))
}

/// The beginning of the keys of sessions that list plain model calls.
const MODEL_CALL_SESSIONS: &str = "model-calls:";

/// True for a session that lists plain model calls. Nothing else may use or create it.
pub(super) fn is_model_call_session(key: &SessionKey) -> bool {
    key.as_str().starts_with(MODEL_CALL_SESSIONS)
}

/// The session of one request to an agent.
fn own_session_key(caller: &Caller) -> SessionKey {
    session_key(format!("{}:{}", caller.surface.as_str(), uuid::Uuid::now_v7()))
}

fn session_key(text: String) -> SessionKey {
    let Ok(key) = SessionKey::parse(text) else { unreachable!("a principal and a UUID make a valid key") };
    key
}

fn unknown_agent_name(model: &str) -> UnknownModel {
    UnknownModel { name: model.to_owned(), providers: Vec::new() }
}

/// The work of a request that brings the whole conversation.
fn work_of_request(conversation: ClientConversation, answer: AnswerOptions) -> ClientWork {
    let ClientConversation { instructions, turns, text, continuation } = conversation;
    ClientWork { instructions, history: ClientHistory::OfRequest(turns), text, continuation, answer }
}

/// The work of a request in a session, which holds what was said before.
///
/// # Errors
/// The request has nothing new.
fn work_in_session(
    conversation: ClientConversation,
    answer: AnswerOptions,
) -> Result<ClientWork, ClientRequestProblem> {
    let text = conversation.new_message()?;
    let (instructions, history) = (conversation.instructions, ClientHistory::OfSession);
    Ok(ClientWork { instructions, history, text, continuation: Vec::new(), answer })
}
