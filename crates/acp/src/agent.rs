//! What an editor may ask for besides a prompt, in terms of the daemon.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quell_client::daemon_client::StopWait;
use quell_client::{DaemonClient, DaemonTarget};
use quell_protocol::api::{HistoryMessage, StopSessionRequest};
use quell_protocol::web_ui::SessionPatch;
use quell_protocol::{RunId, SessionKey, Surface};

use crate::AcpArgs;
use crate::errors::{failed, from_client, invalid, session_unknown};
use crate::open_sessions::{OpenSessions, PromptGuard};
use crate::settings::EditorSettings;
use crate::wire::RpcError;

/// Time for the ends of runs after the editor has closed the connection. What is not over then is stopped by the end of
/// this process.
pub(crate) const CLOSE_TIME: Duration = Duration::from_secs(10);
/// Begins the keys of sessions that editors open.
const KEY_PREFIX: &str = "acp";

pub(crate) struct AcpAgent {
    args: AcpArgs,
    target: DaemonTarget,
    sessions: Arc<OpenSessions>,
}

/// What a request says about the place that its session works in.
pub(crate) struct SessionPlace {
    pub(crate) cwd: PathBuf,
    pub(crate) has_more_directories: bool,
    /// The names of servers that the editor wants to be started.
    pub(crate) mcp_servers: Vec<String>,
}

/// A session in a list.
pub(crate) struct ListedSession {
    pub(crate) key: String,
    pub(crate) workdir: String,
    pub(crate) last_used_at: String,
}

pub(crate) struct ListedSessions {
    pub(crate) sessions: Vec<ListedSession>,
    pub(crate) next_cursor: Option<String>,
}

impl AcpAgent {
    pub(crate) fn new(args: AcpArgs, target: DaemonTarget) -> Self {
        Self { args, target, sessions: Arc::default() }
    }

    /// The daemon may have been started again since the last request.
    pub(crate) fn client(&self) -> Result<DaemonClient, RpcError> {
        let client = DaemonClient::discover(&self.target).map_err(|error| from_client(&error))?;
        Ok(client.with_surface(Surface::Acp))
    }

    /// Opens a session with a new key.
    pub(crate) async fn new_session(&self, place: SessionPlace) -> Result<(SessionKey, EditorSettings), RpcError> {
        self.check_place(&place)?;
        let key = SessionKey::parse(format!("{KEY_PREFIX}:{}", uuid::Uuid::now_v7()))
            .map_err(|bad| failed(bad.to_string()))?;
        let agent = self.args.agent.clone();
        let settings = self.set_up_session(&key, place, SessionPatch { agent, ..SessionPatch::default() }).await?;
        Ok((key, settings))
    }

    /// Opens a session that exists.
    pub(crate) async fn open_session(&self, session: &str, place: SessionPlace) -> Result<EditorSettings, RpcError> {
        let key = parse_key(session)?;
        self.check_place(&place)?;
        // A change would create a session that does not exist.
        self.client()?.get_session(&key).await.map_err(|error| from_client(&error))?;
        self.set_up_session(&key, place, SessionPatch::default()).await
    }

    /// Sets the workdir of a session and opens it for prompts.
    async fn set_up_session(
        &self,
        key: &SessionKey,
        place: SessionPlace,
        patch: SessionPatch,
    ) -> Result<EditorSettings, RpcError> {
        let client = self.client()?;
        let workdir = place.cwd.to_str().ok_or_else(|| invalid("cwd is not UTF-8"))?.to_owned();
        let patch = SessionPatch { workdir: Some(workdir), ..patch };
        client.patch_session(key, &patch).await.map_err(|error| from_client(&error))?;
        let settings = EditorSettings::fetch(&client, key).await.map_err(|error| from_client(&error))?;
        self.sessions.open(key.as_str(), place.cwd);
        Ok(settings)
    }

    fn check_place(&self, place: &SessionPlace) -> Result<(), RpcError> {
        if place.has_more_directories {
            return Err(invalid(
                "additionalDirectories are not supported; name them as `writable` or `readable` of the agent in quell.toml",
            ));
        }
        if place.mcp_servers.is_empty() || self.args.ignore_mcp_servers {
            return Ok(());
        }
        Err(invalid(format!(
            "the editor names MCP servers of its own ({}), which Quell does not start; configure them as [mcp.NAME] in quell.toml, and start `quell acp --ignore-mcp-servers`",
            place.mcp_servers.join(", ")
        )))
    }

    pub(crate) async fn history(&self, session: &str) -> Result<Vec<HistoryMessage>, RpcError> {
        let key = parse_key(session)?;
        self.client()?.get_history(&key).await.map_err(|error| from_client(&error))
    }

    /// One page of the sessions that have a workdir of their own.
    pub(crate) async fn list_sessions(
        &self,
        cursor: Option<&str>,
        cwd: Option<PathBuf>,
    ) -> Result<ListedSessions, RpcError> {
        let page = self.client()?.list_sessions_page(cursor).await.map_err(|error| from_client(&error))?;
        let wanted = cwd.map(|cwd| cwd.canonicalize().unwrap_or(cwd));
        let sessions = page.items.into_iter().filter_map(|row| {
            let workdir = row.workdir.filter(|workdir| wanted.as_ref().is_none_or(|cwd| cwd == Path::new(workdir)))?;
            Some(ListedSession { key: row.key.to_string(), workdir, last_used_at: row.last_used_at })
        });
        Ok(ListedSessions { sessions: sessions.collect(), next_cursor: page.next_cursor })
    }

    /// Changes the settings of an open session.
    pub(crate) async fn change_session(&self, session: &str, patch: SessionPatch) -> Result<EditorSettings, RpcError> {
        if !self.sessions.is_open(session) {
            return Err(session_unknown(session));
        }
        let (key, client) = (parse_key(session)?, self.client()?);
        client.patch_session(&key, &patch).await.map_err(|error| from_client(&error))?;
        EditorSettings::fetch(&client, &key).await.map_err(|error| from_client(&error))
    }

    /// Adds a prompt to an open session, before the next message of the editor is handled, so that a cancellation
    /// behind it counts.
    pub(crate) fn begin_prompt(&self, session: &str) -> Result<(SessionKey, PromptGuard), RpcError> {
        let key = parse_key(session)?;
        let run = RunId::from_number(uuid::Uuid::now_v7().as_u128());
        let prompt = self.sessions.begin_prompt(session, run).ok_or_else(|| session_unknown(session))?;
        Ok((key, prompt))
    }

    /// Cancels the prompts of a session.
    pub(crate) fn cancel(&self, session: &str) {
        self.sessions.cancel(session);
    }

    /// Cancels the prompts of a session and closes it when they are over. False if it is not open.
    pub(crate) async fn close_session(&self, session: &str) -> bool {
        self.sessions.close(session).await
    }

    /// Stops what is left of a session: its background commands, and what others have started in it.
    pub(crate) async fn stop_session(&self, session: &str) -> Result<(), RpcError> {
        let (key, request) = (parse_key(session)?, StopSessionRequest::default());
        let stopped = self.client()?.stop_session(&key, &request, StopWait::UntilSettled).await;
        stopped.map(drop).map_err(|error| from_client(&error))
    }

    /// Ends everything, because the editor has closed the connection.
    pub(crate) async fn close(&self) {
        let _ = tokio::time::timeout(CLOSE_TIME, self.sessions.close_all()).await;
    }
}

fn parse_key(session: &str) -> Result<SessionKey, RpcError> {
    SessionKey::parse(session).map_err(|_| session_unknown(session))
}
