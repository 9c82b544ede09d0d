//! Version 1 of the protocol: which request does what.
//!
//! Handlers run inside the dispatch loop of the connection, which must not wait: they note what was asked for and spawn
//! the work. So a cancellation is handled as soon as it arrives.

mod encode;

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use self::encode::{encode_end, encode_modes, encode_options, encode_permission, encode_update, read_blocks};
use crate::agent::{AcpAgent, SessionPlace};
use crate::connection::answer;
use crate::content::join_prompt;
use crate::editor::{EditorTurn, EditorUpdate, PermissionOutcome, PermissionRequest, RunActivity};
use crate::errors::session_unknown;
use crate::replay::replay_history;
use crate::settings::{patch_for_mode, patch_for_option};
use crate::turn::EditorPrompt;
use crate::wire::v1::*;
use crate::wire::{Agent, ConnectTo, Editor, ProtocolVersion, RpcError, on_receive_notification, on_receive_request};

/// Serves an editor that speaks version 1.
pub(crate) struct V1Server(pub(crate) Arc<AcpAgent>);

impl ConnectTo<Editor> for V1Server {
    async fn connect_to(self, transport: impl ConnectTo<Agent>) -> Result<(), RpcError> {
        let agent = self.0;
        let [on_new, on_load, on_resume, on_close, on_list, on_mode, on_option, on_prompt, on_cancel] =
            std::array::from_fn(|_| Arc::clone(&agent));
        Agent
            .v1()
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
                async move |request: LoadSessionRequest, responder, editor: EditorConnection| {
                    editor.spawn(answer(responder, load_session(Arc::clone(&on_load), request, editor.clone())))
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |request: ResumeSessionRequest, responder, editor: EditorConnection| {
                    editor.spawn(answer(responder, resume_session(Arc::clone(&on_resume), request)))
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
                async move |request: SetSessionModeRequest, responder, editor: EditorConnection| {
                    editor.spawn(answer(responder, set_mode(Arc::clone(&on_mode), request, editor.clone())))
                },
                on_receive_request!(),
            )
            .on_receive_request(
                async move |request: SetSessionConfigOptionRequest, responder, editor: EditorConnection| {
                    editor.spawn(answer(responder, set_option(Arc::clone(&on_option), request, editor.clone())))
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
                async move |cancel: CancelNotification, _: EditorConnection| {
                    on_cancel.cancel(&cancel.session_id.0);
                    Ok(())
                },
                on_receive_notification!(),
            )
            .connect_with(transport, async move |editor: EditorConnection| {
                editor.incoming_closed().await;
                agent.close().await;
                Ok(())
            })
            .await
    }
}

fn introduction() -> InitializeResponse {
    let prompts = PromptCapabilities::new().image(true).embedded_context(true);
    let sessions = SessionCapabilities::new()
        .list(SessionListCapabilities::new())
        .resume(SessionResumeCapabilities::new())
        .close(SessionCloseCapabilities::new());
    let capabilities =
        AgentCapabilities::new().load_session(true).prompt_capabilities(prompts).session_capabilities(sessions);
    InitializeResponse::new(ProtocolVersion::V1)
        .agent_capabilities(capabilities)
        .agent_info(Implementation::new("quell", env!("CARGO_PKG_VERSION")).title("Quell".to_owned()))
}

async fn new_session(agent: Arc<AcpAgent>, request: NewSessionRequest) -> Result<NewSessionResponse, RpcError> {
    let place = place_of(request.cwd, &request.additional_directories, &request.mcp_servers);
    let (key, settings) = agent.new_session(place).await?;
    Ok(NewSessionResponse::new(key.to_string())
        .modes(encode_modes(settings.agent_setting()))
        .config_options(encode_options(settings.options())))
}

async fn load_session(
    agent: Arc<AcpAgent>,
    request: LoadSessionRequest,
    editor: EditorConnection,
) -> Result<LoadSessionResponse, RpcError> {
    let place = place_of(request.cwd.clone(), &request.additional_directories, &request.mcp_servers);
    let settings = agent.open_session(&request.session_id.0, place).await?;
    let history = agent.history(&request.session_id.0).await?;
    for update in replay_history(&history, &request.cwd) {
        send_update(&editor, &request.session_id, update)?;
    }
    Ok(LoadSessionResponse::new()
        .modes(encode_modes(settings.agent_setting()))
        .config_options(encode_options(settings.options())))
}

async fn resume_session(
    agent: Arc<AcpAgent>,
    request: ResumeSessionRequest,
) -> Result<ResumeSessionResponse, RpcError> {
    let place = place_of(request.cwd, &request.additional_directories, &request.mcp_servers);
    let settings = agent.open_session(&request.session_id.0, place).await?;
    Ok(ResumeSessionResponse::new()
        .modes(encode_modes(settings.agent_setting()))
        .config_options(encode_options(settings.options())))
}

async fn close_session(agent: Arc<AcpAgent>, request: CloseSessionRequest) -> Result<CloseSessionResponse, RpcError> {
    if agent.close_session(&request.session_id.0).await {
        Ok(CloseSessionResponse::new())
    } else {
        Err(session_unknown(&request.session_id.0))
    }
}

async fn list_sessions(agent: Arc<AcpAgent>, request: ListSessionsRequest) -> Result<ListSessionsResponse, RpcError> {
    let page = agent.list_sessions(request.cursor.as_deref(), request.cwd).await?;
    let sessions = page
        .sessions
        .into_iter()
        .map(|session| SessionInfo::new(session.key, session.workdir).updated_at(session.last_used_at));
    Ok(ListSessionsResponse::new(sessions.collect()).next_cursor(page.next_cursor))
}

async fn set_mode(
    agent: Arc<AcpAgent>,
    request: SetSessionModeRequest,
    editor: EditorConnection,
) -> Result<SetSessionModeResponse, RpcError> {
    let settings = agent.change_session(&request.session_id.0, patch_for_mode(&request.mode_id.0)?).await?;
    // Another agent brings its own model.
    let update = SessionUpdate::ConfigOptionUpdate(ConfigOptionUpdate::new(encode_options(settings.options())));
    editor.send_notification(SessionNotification::new(request.session_id, update))?;
    Ok(SetSessionModeResponse::new())
}

async fn set_option(
    agent: Arc<AcpAgent>,
    request: SetSessionConfigOptionRequest,
    editor: EditorConnection,
) -> Result<SetSessionConfigOptionResponse, RpcError> {
    let value = match &request.value {
        SessionConfigOptionValue::ValueId { value } => Some(&*value.0),
        _ => None,
    };
    let patch = patch_for_option(&request.config_id.0, value)?;
    let new_mode = patch.agent.clone();
    let settings = agent.change_session(&request.session_id.0, patch).await?;
    if let Some(mode) = new_mode {
        let update = SessionUpdate::CurrentModeUpdate(CurrentModeUpdate::new(mode.to_string()));
        editor.send_notification(SessionNotification::new(request.session_id, update))?;
    }
    Ok(SetSessionConfigOptionResponse::new(encode_options(settings.options())))
}

/// Starts a prompt, whose request is answered at its end.
fn start_prompt(
    agent: &AcpAgent,
    request: PromptRequest,
    responder: Responder<PromptResponse>,
    editor: &EditorConnection,
) -> Result<(), RpcError> {
    let begun = (|| {
        let content = join_prompt(read_blocks(request.prompt)?)?;
        let (key, prompt) = agent.begin_prompt(&request.session_id.0)?;
        let turn = V1Turn { editor: editor.clone(), session: request.session_id };
        Ok((EditorPrompt::new(agent.client()?, Arc::new(turn), key, prompt), content))
    })();
    let (mut turn, content) = match begun {
        Ok(begun) => begun,
        Err(error) => return responder.respond_with_error(error),
    };
    editor.spawn(async move {
        let answer = turn.run(content, responder.cancellation()).await;
        turn.prompt.leave();
        // Fails when the editor has gone.
        let _ = responder.respond_with_result(answer.map(encode_end));
        Ok(())
    })
}

struct V1Turn {
    editor: EditorConnection,
    session: SessionId,
}

impl EditorTurn for V1Turn {
    fn send(&self, update: EditorUpdate) -> Result<(), RpcError> {
        send_update(&self.editor, &self.session, update)
    }

    fn ask(&self, request: PermissionRequest) -> BoxFuture<'static, Result<PermissionOutcome, RpcError>> {
        let asked = self.editor.send_request(encode_permission(self.session.clone(), request));
        Box::pin(async move {
            Ok(match asked.block_task().await?.outcome {
                RequestPermissionOutcome::Selected(selected) => {
                    PermissionOutcome::Selected(selected.option_id.to_string())
                }
                _ => PermissionOutcome::Cancelled,
            })
        })
    }

    /// The open request says enough.
    fn report(&self, _: RunActivity) -> Result<(), RpcError> {
        Ok(())
    }
}

fn send_update(editor: &EditorConnection, session: &SessionId, update: EditorUpdate) -> Result<(), RpcError> {
    editor.send_notification(SessionNotification::new(session.clone(), encode_update(update)))
}

fn place_of(cwd: PathBuf, additional_directories: &[PathBuf], mcp_servers: &[McpServer]) -> SessionPlace {
    let name = |server: &McpServer| match server {
        McpServer::Stdio(server) => server.name.clone(),
        McpServer::Http(server) => server.name.clone(),
        McpServer::Sse(server) => server.name.clone(),
        _ => "one of an unknown kind".to_owned(),
    };
    let mcp_servers = mcp_servers.iter().map(name).collect();
    SessionPlace { cwd, has_more_directories: !additional_directories.is_empty(), mcp_servers }
}
