//! The connection to the editor: which request does what.
//!
//! Handlers run inside the dispatch loop of the connection, which must not wait: they note what was asked for and spawn
//! the work. So a cancellation is handled as soon as it arrives.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quell_client::{DaemonClient, DaemonTarget};
use quell_protocol::web_ui::SessionPatch;
use quell_protocol::{RunId, SessionKey, Surface};
use tokio_util::compat::{TokioAsyncReadCompatExt as _, TokioAsyncWriteCompatExt as _};

use crate::AcpArgs;
use crate::content::read_prompt;
use crate::errors::{failed, from_client, invalid, session_unknown};
use crate::open_sessions::OpenSessions;
use crate::replay::replay_history;
use crate::settings::{EditorSettings, patch_for_mode, patch_for_option};
use crate::turn::EditorPrompt;
use crate::wire::*;

/// Time for the ends of runs after the editor has closed the connection. What is not over then is stopped by the end of
/// this process.
const CLOSE_TIME: Duration = Duration::from_secs(10);
/// Begins the keys of sessions that editors open.
const KEY_PREFIX: &str = "acp";

/// Serves the editor on standard input and output until it closes one of them.
pub(crate) async fn serve_stdio(args: AcpArgs, target: DaemonTarget) -> Result<(), RpcError> {
    let agent = Arc::new(AcpAgent { args, target, sessions: Arc::default() });
    let sessions = Arc::clone(&agent.sessions);
    let transport = ByteStreams::new(tokio::io::stdout().compat_write(), tokio::io::stdin().compat());
    let [on_new, on_load, on_resume, on_close, on_list, on_mode, on_option, on_prompt] =
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
                let agent = Arc::clone(&on_new);
                spawn_answer(&editor, responder, async move { agent.new_session(request).await })
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: LoadSessionRequest, responder, editor: EditorConnection| {
                let (agent, to) = (Arc::clone(&on_load), editor.clone());
                spawn_answer(&editor, responder, async move { agent.load_session(request, &to).await })
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: ResumeSessionRequest, responder, editor: EditorConnection| {
                let agent = Arc::clone(&on_resume);
                spawn_answer(&editor, responder, async move { agent.resume_session(request).await })
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: CloseSessionRequest, responder, editor: EditorConnection| {
                let agent = Arc::clone(&on_close);
                spawn_answer(&editor, responder, async move { agent.close_session(request).await })
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: ListSessionsRequest, responder, editor: EditorConnection| {
                let agent = Arc::clone(&on_list);
                spawn_answer(&editor, responder, async move { agent.list_sessions(request).await })
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: SetSessionModeRequest, responder, editor: EditorConnection| {
                let (agent, to) = (Arc::clone(&on_mode), editor.clone());
                spawn_answer(&editor, responder, async move { agent.set_mode(request, &to).await })
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: SetSessionConfigOptionRequest, responder, editor: EditorConnection| {
                let (agent, to) = (Arc::clone(&on_option), editor.clone());
                spawn_answer(&editor, responder, async move { agent.set_option(request, &to).await })
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: PromptRequest, responder, editor: EditorConnection| {
                on_prompt.start_prompt(request, responder, editor)
            },
            on_receive_request!(),
        )
        .on_receive_notification(
            async move |cancel: CancelNotification, _: EditorConnection| {
                agent.sessions.cancel(&cancel.session_id.0);
                Ok(())
            },
            on_receive_notification!(),
        )
        .connect_with(transport, async move |editor: EditorConnection| {
            editor.incoming_closed().await;
            let _ = tokio::time::timeout(CLOSE_TIME, sessions.close_all()).await;
            Ok(())
        })
        .await
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

/// Answers a request outside of the dispatch loop. If the editor cancels the request, the work is dropped.
fn spawn_answer<T>(
    editor: &EditorConnection,
    responder: Responder<T>,
    work: impl Future<Output = Result<T, RpcError>> + Send + 'static,
) -> Result<(), RpcError>
where
    T: agent_client_protocol::JsonRpcResponse,
{
    editor.spawn(async move {
        let cancellation = responder.cancellation();
        let answer = cancellation.run_until_cancelled(work).await;
        // Fails when the editor has gone.
        let _ = responder.respond_with_result(answer);
        Ok(())
    })
}

struct AcpAgent {
    args: AcpArgs,
    target: DaemonTarget,
    sessions: Arc<OpenSessions>,
}

/// What a request says about the place that its session works in.
struct SessionPlace<'a> {
    cwd: &'a Path,
    additional_directories: &'a [std::path::PathBuf],
    mcp_servers: &'a [McpServer],
}

impl AcpAgent {
    /// The daemon may have been started again since the last request.
    fn client(&self) -> Result<DaemonClient, RpcError> {
        let client = DaemonClient::discover(&self.target).map_err(|error| from_client(&error))?;
        Ok(client.with_surface(Surface::Acp))
    }

    async fn new_session(&self, request: NewSessionRequest) -> Result<NewSessionResponse, RpcError> {
        let key = SessionKey::parse(format!("{KEY_PREFIX}:{}", uuid::Uuid::now_v7()))
            .map_err(|bad| failed(bad.to_string()))?;
        let NewSessionRequest { cwd, additional_directories, mcp_servers, .. } = &request;
        let place = SessionPlace { cwd, additional_directories, mcp_servers };
        let settings = self.open_session(&key, &place, true).await?;
        Ok(NewSessionResponse::new(key.to_string()).modes(settings.modes()).config_options(settings.options()))
    }

    async fn load_session(
        &self,
        request: LoadSessionRequest,
        editor: &EditorConnection,
    ) -> Result<LoadSessionResponse, RpcError> {
        let key = parse_key(&request.session_id)?;
        let LoadSessionRequest { cwd, additional_directories, mcp_servers, .. } = &request;
        let place = SessionPlace { cwd, additional_directories, mcp_servers };
        let settings = self.open_session(&key, &place, false).await?;
        let history = self.client()?.get_history(&key).await.map_err(|error| from_client(&error))?;
        for update in replay_history(&history, cwd) {
            editor.send_notification(SessionNotification::new(request.session_id.clone(), update))?;
        }
        Ok(LoadSessionResponse::new().modes(settings.modes()).config_options(settings.options()))
    }

    async fn resume_session(&self, request: ResumeSessionRequest) -> Result<ResumeSessionResponse, RpcError> {
        let key = parse_key(&request.session_id)?;
        let ResumeSessionRequest { cwd, additional_directories, mcp_servers, .. } = &request;
        let settings =
            self.open_session(&key, &SessionPlace { cwd, additional_directories, mcp_servers }, false).await?;
        Ok(ResumeSessionResponse::new().modes(settings.modes()).config_options(settings.options()))
    }

    /// Sets the workdir of a session and opens it for prompts.
    async fn open_session(
        &self,
        key: &SessionKey,
        place: &SessionPlace<'_>,
        is_new: bool,
    ) -> Result<EditorSettings, RpcError> {
        self.check_place(place)?;
        let client = self.client()?;
        if !is_new {
            // A change would create a session that does not exist.
            client.get_session(key).await.map_err(|error| from_client(&error))?;
        }
        let workdir = place.cwd.to_str().ok_or_else(|| invalid("cwd is not UTF-8"))?.to_owned();
        let agent = self.args.agent.clone().filter(|_| is_new);
        let patch = SessionPatch { workdir: Some(workdir), agent, ..SessionPatch::default() };
        client.patch_session(key, &patch).await.map_err(|error| from_client(&error))?;
        let settings = EditorSettings::fetch(&client, key).await.map_err(|error| from_client(&error))?;
        self.sessions.open(key.as_str(), place.cwd.to_owned());
        Ok(settings)
    }

    fn check_place(&self, place: &SessionPlace<'_>) -> Result<(), RpcError> {
        if !place.additional_directories.is_empty() {
            return Err(invalid(
                "additionalDirectories are not supported; name them as `writable` or `readable` of the agent in quell.toml",
            ));
        }
        if place.mcp_servers.is_empty() || self.args.ignore_mcp_servers {
            return Ok(());
        }
        let names: Vec<&str> = place.mcp_servers.iter().map(mcp_server_name).collect();
        Err(invalid(format!(
            "the editor names MCP servers of its own ({}), which Quell does not start; configure them as [mcp.NAME] in quell.toml, and start `quell acp --ignore-mcp-servers`",
            names.join(", ")
        )))
    }

    async fn close_session(&self, request: CloseSessionRequest) -> Result<CloseSessionResponse, RpcError> {
        if self.sessions.close(&request.session_id.0).await {
            Ok(CloseSessionResponse::new())
        } else {
            Err(session_unknown(&request.session_id.0))
        }
    }

    /// One page of the sessions that have a workdir of their own.
    async fn list_sessions(&self, request: ListSessionsRequest) -> Result<ListSessionsResponse, RpcError> {
        let page = self.client()?.list_sessions_page(request.cursor.as_deref()).await;
        let page = page.map_err(|error| from_client(&error))?;
        let wanted = request.cwd.map(|cwd| cwd.canonicalize().unwrap_or(cwd));
        let sessions = page.items.into_iter().filter_map(|row| {
            let workdir = row.workdir.filter(|workdir| wanted.as_ref().is_none_or(|cwd| cwd == Path::new(workdir)))?;
            Some(SessionInfo::new(row.key.to_string(), workdir).updated_at(row.last_used_at))
        });
        Ok(ListSessionsResponse::new(sessions.collect()).next_cursor(page.next_cursor))
    }

    async fn set_mode(
        &self,
        request: SetSessionModeRequest,
        editor: &EditorConnection,
    ) -> Result<SetSessionModeResponse, RpcError> {
        let settings = self.change_session(&request.session_id, patch_for_mode(&request.mode_id.0)?).await?;
        // Another agent brings its own model.
        let update = SessionUpdate::ConfigOptionUpdate(ConfigOptionUpdate::new(settings.options()));
        editor.send_notification(SessionNotification::new(request.session_id, update))?;
        Ok(SetSessionModeResponse::new())
    }

    async fn set_option(
        &self,
        request: SetSessionConfigOptionRequest,
        editor: &EditorConnection,
    ) -> Result<SetSessionConfigOptionResponse, RpcError> {
        let patch = patch_for_option(&request.config_id.0, &request.value)?;
        let new_mode = patch.agent.clone();
        let settings = self.change_session(&request.session_id, patch).await?;
        if let Some(mode) = new_mode {
            let update = SessionUpdate::CurrentModeUpdate(CurrentModeUpdate::new(mode.to_string()));
            editor.send_notification(SessionNotification::new(request.session_id, update))?;
        }
        Ok(SetSessionConfigOptionResponse::new(settings.options()))
    }

    async fn change_session(&self, session: &SessionId, patch: SessionPatch) -> Result<EditorSettings, RpcError> {
        if !self.sessions.is_open(&session.0) {
            return Err(session_unknown(&session.0));
        }
        let (key, client) = (parse_key(session)?, self.client()?);
        client.patch_session(&key, &patch).await.map_err(|error| from_client(&error))?;
        EditorSettings::fetch(&client, &key).await.map_err(|error| from_client(&error))
    }

    /// Registers the prompt before the next message of the editor is handled, so that a cancellation behind it counts.
    fn start_prompt(
        &self,
        request: PromptRequest,
        responder: Responder<PromptResponse>,
        editor: EditorConnection,
    ) -> Result<(), RpcError> {
        let begun = (|| {
            let (key, content) = (parse_key(&request.session_id)?, read_prompt(&request.prompt)?);
            let prompt =
                self.sessions.begin_prompt(&request.session_id.0, RunId::from_number(uuid::Uuid::now_v7().as_u128()));
            let prompt = prompt.ok_or_else(|| session_unknown(&request.session_id.0))?;
            Ok((EditorPrompt::new(self.client()?, editor.clone(), request.session_id.clone(), key, prompt), content))
        })();
        let (mut turn, content) = match begun {
            Ok(begun) => begun,
            Err(error) => return responder.respond_with_error(error),
        };
        editor.spawn(async move {
            let (by_session, by_request) = (turn.prompt.cancel_token(), responder.cancellation());
            let cancelled = async move {
                tokio::select! {
                    () = by_session.cancelled() => {}
                    () = by_request.cancelled() => {}
                }
            };
            let answer = turn.run(content, cancelled).await;
            turn.prompt.leave();
            // Fails when the editor has gone.
            let _ = responder.respond_with_result(answer);
            Ok(())
        })
    }
}

fn parse_key(session: &SessionId) -> Result<SessionKey, RpcError> {
    SessionKey::parse(&*session.0).map_err(|_| session_unknown(&session.0))
}

fn mcp_server_name(server: &McpServer) -> &str {
    match server {
        McpServer::Stdio(server) => &server.name,
        McpServer::Http(server) => &server.name,
        McpServer::Sse(server) => &server.name,
        _ => "one of an unknown kind",
    }
}
