//! Resources and prompts of MCP servers for people: asked as an agent, without a run.
//!
//! The servers are those of the agent, in its workdir and its sandbox. People share one instance of a server for each
//! agent, apart from those of sessions; it closes when it is idle.

use std::collections::HashSet;
use std::sync::Arc;

use quell_kernel::StopLevel;
use quell_kernel::api_key::KeyRefusal;
use quell_kernel::registry::{BackgroundPolicy, StopRequester, StopScope};
use quell_mcp::{McpBrowseAnswer, McpBrowseError, McpBrowseRequest, McpClient, ServerStop};
use quell_process::CommandNetwork;
use quell_protocol::mcp::{McpContentRequest, McpList, McpListKind, McpUnavailableServer};
use quell_protocol::{AgentId, ErrorCode, Principal, RunId, SessionKey};
use sha2::{Digest, Sha256};

use super::{Caller, Engine};
use crate::runs::StopResult;

/// Why a person does not get a list or a content of an MCP server.
#[derive(Debug, thiserror::Error)]
pub enum McpRequestError {
    #[error("there is no agent {0:?}; `quell agents` lists them")]
    UnknownAgent(AgentId),
    #[error("new runs are on hold, and no server is started for a person; lift the hold first: `quell hold off`")]
    Held,
    #[error(transparent)]
    Forbidden(#[from] KeyRefusal),
    #[error(transparent)]
    Server(#[from] McpBrowseError),
}

impl McpRequestError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownAgent(_) => ErrorCode::AgentNotFound,
            Self::Held => ErrorCode::Held,
            Self::Forbidden(_) => ErrorCode::Forbidden,
            Self::Server(McpBrowseError::UnknownServer { .. }) => ErrorCode::NotFound,
            Self::Server(McpBrowseError::Refused { .. }) => ErrorCode::InvalidRequest,
            Self::Server(McpBrowseError::Unavailable { .. } | McpBrowseError::Stopped) => ErrorCode::McpUnavailable,
        }
    }
}

impl Engine {
    /// The resources or prompts of all servers that an agent may use; `None` is the default agent.
    ///
    /// # Errors
    /// [`McpRequestError`]. A server that cannot be asked is named in the list.
    ///
    /// # Cancel safety
    /// Safe: servers whose answers are not waited for are ended.
    pub async fn list_mcp(
        &self,
        caller: &Caller,
        agent: Option<&AgentId>,
        kind: McpListKind,
    ) -> Result<McpList, McpRequestError> {
        let client = self.mcp_client_of_people(caller, agent)?;
        // Watched before the check for a hold, so that a stop with a hold is seen in one of them.
        let stops = self.inner().services.mcp.watch_browse_stops();
        if self.is_held() {
            let refused = |server: &str| McpUnavailableServer {
                server: server.to_owned(),
                problem: McpRequestError::Held.to_string(),
            };
            return Ok(McpList { items: Vec::new(), unavailable: client.server_names().map(refused).collect() });
        }
        Ok(client.list_for_person(kind, &stops).await?)
    }

    /// A resource, or a prompt with its arguments filled in, as the text of a message.
    ///
    /// # Errors
    /// [`McpRequestError`]: why the server could not be asked, or what it refused.
    ///
    /// # Cancel safety
    /// Safe: a server whose answer is not waited for is ended.
    pub async fn read_mcp(
        &self,
        caller: &Caller,
        agent: Option<&AgentId>,
        server: &str,
        request: McpContentRequest,
    ) -> Result<String, McpRequestError> {
        let client = self.mcp_client_of_people(caller, agent)?;
        // Watched before the check for a hold, so that a stop with a hold is seen in one of them.
        let stops = self.inner().services.mcp.watch_browse_stops();
        if self.is_held() && client.server_names().any(|known| known == server) {
            return Err(McpRequestError::Held);
        }
        match client.browse(server, McpBrowseRequest::Content(request), stops).await? {
            McpBrowseAnswer::Text(text) => Ok(text),
            McpBrowseAnswer::Items(_) => Ok(String::new()),
        }
    }

    /// Ends what a stop covers of MCP servers: programs with all that they started, if everything is stopped, or a
    /// session by force; and the requests of people for resources and prompts, if everything is stopped.
    pub(super) fn stop_servers(
        &self,
        scope: &StopScope,
        requester: &StopRequester,
        level: StopLevel,
        stopped: &mut StopResult,
    ) {
        let mcp = &self.inner().services.mcp;
        match scope {
            StopScope::Everything => stopped.servers.add(self.stop_all_servers(scope, requester, level)),
            StopScope::Session { key, background: BackgroundPolicy::Stop, .. }
            | StopScope::Conversation { session: key, .. }
                if level == StopLevel::Forced =>
            {
                // Sub-runs have sessions of their own.
                let runs = stopped.aborted.iter().chain(&stopped.already_ending);
                let below = runs.filter_map(|run| self.live_run(run)).map(|run| run.run.session.clone());
                for session in below.chain([key.clone()]).collect::<HashSet<_>>() {
                    stopped.servers.add(mcp.end_programs(Some(&session), principal_of(requester), level));
                }
            }
            StopScope::Session { .. }
            | StopScope::Conversation { .. }
            | StopScope::Run { .. }
            | StopScope::Agent { .. }
            | StopScope::Agents { .. }
            | StopScope::Channel { .. } => {}
        }
    }

    /// Ends all programs and the requests of people, if everything is stopped.
    pub(super) fn stop_all_servers(
        &self,
        scope: &StopScope,
        requester: &StopRequester,
        level: StopLevel,
    ) -> ServerStop {
        if *scope != StopScope::Everything {
            return ServerStop::default();
        }
        let mcp = &self.inner().services.mcp;
        if requester.admin {
            mcp.stop_browsing();
        }
        mcp.end_programs(None, principal_of(requester), level)
    }

    /// The beginning of the keys of the sessions whose servers people ask. No message reaches them.
    pub(super) fn people_session_prefix(&self) -> String {
        format!("people-{}", self.inner().people_key)
    }

    fn mcp_client_of_people(&self, caller: &Caller, agent: Option<&AgentId>) -> Result<McpClient, McpRequestError> {
        let services = &self.inner().services;
        let id = agent.cloned().unwrap_or_else(|| services.agents.default_agent());
        // A server works with the rights of the agent that it is asked for.
        caller.key.check_agent(&id)?;
        let agent = services.agents.get(&id).ok_or_else(|| McpRequestError::UnknownAgent(id.clone()))?;
        let unavailable = |problem: String| McpBrowseError::Unavailable { server: id.to_string(), problem };
        let key = |text: String| SessionKey::parse(text).map_err(|bad| unavailable(bad.to_string()));
        let base = self.people_session_prefix();
        let session = key(format!("{base}-{}", short_digest(id.as_str())))?;
        let sandbox = services.mcp.starts_programs().then(|| services.sandbox(&agent, &session));
        // After a reload that changes its rights, an agent gets other instances.
        let session = key(format!("{base}-{}", short_digest(&format!("{id:?} {:?} {sandbox:?}", agent.workdir))))?;
        let network = services.toolbox.command_network(&agent.sandbox.network);
        let network = network.map(|network| network as Arc<dyn CommandNetwork>);
        let run = RunId::parse(&base).map_err(|bad| unavailable(bad.to_string()))?;
        Ok(services.mcp.client_for_run(agent.mcp_client_options(
            &run,
            &session,
            &caller.principal,
            None,
            sandbox,
            network,
        )))
    }
}

/// Whose programs a requester may end; all, if it is an admin.
fn principal_of(requester: &StopRequester) -> Option<&Principal> {
    (!requester.admin).then_some(&requester.principal)
}

fn short_digest(text: &str) -> String {
    Sha256::digest(text).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
