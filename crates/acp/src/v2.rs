//! The draft of version 2 of the protocol: which request does what.
//!
//! Here `session/prompt` is answered when the message has entered the conversation, and states of the session tell how
//! the run goes on. As in [`crate::v1`], handlers note what was asked for and spawn the work.

mod encode;
mod prompt;
mod session_states;

use std::sync::Arc;

use self::encode::{encode_options, encode_update};
use self::prompt::start_prompt;
use self::session_states::SessionStates;
use crate::agent::{AcpAgent, SessionPlace};
use crate::connection::answer;
use crate::editor::EditorUpdate;
use crate::errors::invalid;
use crate::replay::replay_history;
use crate::settings::patch_for_option;
use crate::wire::v2::*;
use crate::wire::{Agent, ConnectTo, Editor, ProtocolVersion, RpcError, on_receive_notification, on_receive_request};

/// Serves an editor that speaks version 2.
pub(crate) struct V2Server(pub(crate) Arc<AcpAgent>);

/// What the handlers share.
struct V2Agent {
    agent: Arc<AcpAgent>,
    states: Arc<SessionStates>,
}

impl ConnectTo<Editor> for V2Server {
    async fn connect_to(self, transport: impl ConnectTo<Agent>) -> Result<(), RpcError> {
        let agent = Arc::new(V2Agent { agent: self.0, states: Arc::default() });
        let [on_new, on_resume, on_close, on_list, on_option, on_prompt, on_cancel] =
            std::array::from_fn(|_| Arc::clone(&agent));
        Agent
            .v2()
            .name("quell")
            .on_receive_request(
                async move |_: InitializeRequest, responder: Responder<InitializeResponse>, _: EditorConnection| {
                    responder.respond(introduction())
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |request: NewSessionRequest, responder, editor: EditorConnection| {
                    editor.spawn(answer(responder, new_session(Arc::clone(&on_new), request)))
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |request: ResumeSessionRequest, responder, editor: EditorConnection| {
                    editor.spawn(answer(responder, resume_session(Arc::clone(&on_resume), request, editor.clone())))
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |request: CloseSessionRequest, responder, editor: EditorConnection| {
                    editor.spawn(answer(responder, close_session(Arc::clone(&on_close), request)))
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |request: ListSessionsRequest, responder, editor: EditorConnection| {
                    editor.spawn(answer(responder, list_sessions(Arc::clone(&on_list), request)))
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |request: SetSessionConfigOptionRequest, responder, editor: EditorConnection| {
                    editor.spawn(answer(responder, set_option(Arc::clone(&on_option), request)))
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |request: PromptRequest, responder, editor: EditorConnection| {
                    start_prompt(&on_prompt, request, responder, &editor)
                },
                on_receive_request!(),
            )
            .on_receive_notification(
                async move |cancel: CancelSessionNotification, _: EditorConnection| {
                    on_cancel.agent.cancel(&cancel.session_id.0);
                    Ok(())
                },
                on_receive_notification!(),
            )
            .connect_with(transport, async move |editor: EditorConnection| {
                editor.incoming_closed().await;
                agent.agent.close().await;
                Ok(())
            })
            .await
    }
}

fn introduction() -> InitializeResponse {
    let prompts = PromptCapabilities::new()
        .image(PromptImageCapabilities::new())
        .embedded_context(PromptEmbeddedContextCapabilities::new());
    let capabilities = AgentCapabilities::new().session(SessionCapabilities::new().prompt(prompts));
    let info = Implementation::new("quell", env!("CARGO_PKG_VERSION")).title("Quell".to_owned());
    InitializeResponse::new(ProtocolVersion::V2, info).capabilities(capabilities)
}

async fn new_session(agent: Arc<V2Agent>, request: NewSessionRequest) -> Result<NewSessionResponse, RpcError> {
    let NewSessionRequest { cwd, additional_directories, mcp_servers, .. } = request;
    let place = place_of(cwd, &additional_directories, &mcp_servers);
    let (key, settings) = agent.agent.new_session(place).await?;
    Ok(NewSessionResponse::new(key.to_string()).config_options(encode_options(settings.options())))
}

/// The history, if the editor wants it, and then the state of the session come before the answer.
async fn resume_session(
    agent: Arc<V2Agent>,
    request: ResumeSessionRequest,
    editor: EditorConnection,
) -> Result<ResumeSessionResponse, RpcError> {
    let ResumeSessionRequest { session_id, cwd, additional_directories, mcp_servers, replay_from, .. } = request;
    let is_replay_wanted = match replay_from {
        None => false,
        Some(ReplayFrom::Start(_)) => true,
        Some(_) => return Err(invalid("replayFrom can only be {\"type\": \"start\"}")),
    };
    let place = place_of(cwd, &additional_directories, &mcp_servers);
    let workdir = place.cwd.clone();
    let settings = agent.agent.open_session(&session_id.0, place).await?;
    if is_replay_wanted {
        for update in replay_history(&agent.agent.history(&session_id.0).await?, &workdir) {
            send_update(&editor, &session_id, update)?;
        }
    }
    agent.states.repeat(&editor, &session_id)?;
    Ok(ResumeSessionResponse::new().config_options(encode_options(settings.options())))
}

/// A session that is not open is closed already.
async fn close_session(agent: Arc<V2Agent>, request: CloseSessionRequest) -> Result<CloseSessionResponse, RpcError> {
    let session = &request.session_id.0;
    if agent.agent.close_session(session).await {
        agent.agent.stop_session(session).await?;
    }
    Ok(CloseSessionResponse::new())
}

async fn list_sessions(agent: Arc<V2Agent>, request: ListSessionsRequest) -> Result<ListSessionsResponse, RpcError> {
    let cursor = request.cursor.as_ref().map(|cursor| &*cursor.0);
    let page = agent.agent.list_sessions(cursor, request.cwd.map(AbsolutePath::into_inner)).await?;
    let sessions = page
        .sessions
        .into_iter()
        .map(|session| SessionInfo::new(session.key, session.workdir).updated_at(session.last_used_at));
    Ok(ListSessionsResponse::new(sessions.collect()).next_cursor(page.next_cursor.map(SessionListCursor::new)))
}

async fn set_option(
    agent: Arc<V2Agent>,
    request: SetSessionConfigOptionRequest,
) -> Result<SetSessionConfigOptionResponse, RpcError> {
    let patch = patch_for_option(&request.config_id.0, request.value.as_id().map(|value| &*value.0))?;
    let settings = agent.agent.change_session(&request.session_id.0, patch).await?;
    Ok(SetSessionConfigOptionResponse::new(encode_options(settings.options())))
}

fn send_update(editor: &EditorConnection, session: &SessionId, update: EditorUpdate) -> Result<(), RpcError> {
    editor.send_notification(UpdateSessionNotification::new(session.clone(), encode_update(update)))
}

fn place_of(cwd: AbsolutePath, additional_directories: &[AbsolutePath], mcp_servers: &[McpServer]) -> SessionPlace {
    let name = |server: &McpServer| match server {
        McpServer::Stdio(server) => server.name.clone(),
        McpServer::Http(server) => server.name.clone(),
        _ => "one of an unknown kind".to_owned(),
    };
    let mcp_servers = mcp_servers.iter().map(name).collect();
    SessionPlace { cwd: cwd.into_inner(), has_more_directories: !additional_directories.is_empty(), mcp_servers }
}
