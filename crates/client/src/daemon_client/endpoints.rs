//! One method per HTTP route.
//!
//! Dropping a call discards its answer: a read changes nothing, and a change that was sent is not withdrawn.

use quell_protocol::agents::{AgentNode, AgentView, AgentsDeleted, NewAgent};
use quell_protocol::api::{
    AgentRow, HistoryMessage, Hold, NewToken, Page, RunView, SendAnswer, SendRequest, SessionRow, SharingRequest,
    StopAllAnswer, StopAllRequest, StopAnswer, StopRunRequest, StopSessionRequest, TicketView, TokenRequest,
    TokenRotationRequest, TokenRow,
};
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow, ApprovalRule};
use quell_protocol::audit::AuditRow;
use quell_protocol::background::{ProcessRow, ProcessView};
use quell_protocol::channel::{ChannelDelivery, ChannelRow, ChannelSend, ChannelTest};
use quell_protocol::cluster::{ClusterView, DrainRequest, DrainView};
use quell_protocol::mcp::{McpContent, McpContentRequest, McpList, McpListKind, McpPromptRequest, McpResourceRequest};
use quell_protocol::memory::{NoteRow, NotesForgotten, SenderRow};
use quell_protocol::schedule::{SchedulePatch, ScheduleRequest, ScheduleView};
use quell_protocol::session::SessionView;
use quell_protocol::undo::{UndoReport, UndoRequest};
use quell_protocol::web_ui::{ModelRow, SessionPatch, SignInLink};
use quell_protocol::{AgentId, Receipt, RunId, SessionKey, Verdict};
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use url::Url;

use super::{ClientError, ClientRequestTimeout, DaemonClient};

/// Attempts of an idempotent request when the connection breaks.
const MAX_ATTEMPTS: u32 = 3;
/// Most pages of a list that are read; a longer list is taken for a loop.
const MAX_PAGES: usize = 1000;
const AUDIT_PAGE_ROWS: &str = "1000";

pub type ListResult<T> = Result<Vec<T>, ClientError>;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum SendReply {
    /// The message started a run, or was handed to a run.
    Accepted(SendAnswer),
    /// The message was a stop text.
    Stopped(StopAnswer),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StopReply {
    /// The ticket, with the receipt if the run has ended.
    Ticket(Box<TicketView>),
    Receipt(Box<Receipt>),
}

impl StopReply {
    pub fn receipt(&self) -> Option<&Receipt> {
        match self {
            Self::Ticket(ticket) => ticket.receipt.as_ref(),
            Self::Receipt(receipt) => Some(receipt),
        }
    }

    pub fn verdict(&self) -> &Verdict {
        match self {
            Self::Ticket(ticket) => &ticket.verdict,
            Self::Receipt(receipt) => &receipt.verdict,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientRunFilter {
    /// Runs that have not ended.
    Active,
    /// All runs that the daemon has.
    All,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotesOwner {
    Session(SessionKey),
    /// Known in all sessions of the agent.
    Agent(AgentId),
    /// A sender in a chat network: channel, colon, the network's id of the sender.
    Sender(String),
}

impl NotesOwner {
    fn path(&self) -> [&str; 4] {
        match self {
            Self::Session(key) => ["api", "sessions", key.as_str(), "memory"],
            Self::Agent(id) => ["api", "agents", id.as_str(), "memory"],
            Self::Sender(sender) => ["api", "senders", sender, "memory"],
        }
    }
}

/// When the answer to a stop is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopWait {
    /// At once.
    UntilRequested,
    /// When everything that the stop covers has ended.
    UntilSettled,
}

impl StopWait {
    fn query_and_timeout(self) -> (&'static [(&'static str, &'static str)], ClientRequestTimeout) {
        match self {
            Self::UntilRequested => (&[], ClientRequestTimeout::Default),
            Self::UntilSettled => (&[("wait", "1")], ClientRequestTimeout::Unlimited),
        }
    }
}

/// Runs, stops, the hold and approvals.
impl DaemonClient {
    /// Sends a message. With an idempotency key it is sent again after a broken connection: a repeat starts no second
    /// run.
    ///
    /// # Cancel safety
    /// If dropped, the message may have been accepted; its run then continues.
    pub async fn send_message(&self, session: &SessionKey, message: &SendRequest) -> Result<SendReply, ClientError> {
        let path = ["api", "sessions", session.as_str(), "runs"];
        let attempts = if message.idempotency_key.is_some() { MAX_ATTEMPTS } else { 1 };
        self.post_json_with(&path, &[], message, attempts, ClientRequestTimeout::Default).await
    }

    /// Gets a run, with its receipt once it has ended.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn get_run(&self, run: &RunId) -> Result<RunView, ClientError> {
        self.get_json(&["api", "runs", run.as_str()]).await
    }

    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_runs(&self, filter: ClientRunFilter) -> ListResult<RunView> {
        match filter {
            ClientRunFilter::Active => self.list_items(&["api", "runs"], &[("state", "active")]).await,
            ClientRunFilter::All => self.list_items(&["api", "runs"], &[]).await,
        }
    }

    /// Stops a run; sent again after a broken connection, which changes nothing if the first request arrived.
    ///
    /// # Cancel safety
    /// If dropped, the stop may or may not have been requested; a requested stop is not withdrawn.
    pub async fn stop_run(
        &self,
        run: &RunId,
        request: &StopRunRequest,
        when: StopWait,
    ) -> Result<StopReply, ClientError> {
        self.wake_daemon();
        let (query, timeout) = when.query_and_timeout();
        self.post_json_with(&["api", "runs", run.as_str(), "stop"], query, request, MAX_ATTEMPTS, timeout).await
    }

    /// Stops a session: its runs, its queue, its background processes. One attempt only: a retry would be answered with
    /// nothing left to stop, and the withdrawn texts would be lost.
    ///
    /// # Cancel safety
    /// If dropped, the stop may or may not have been requested.
    pub async fn stop_session(
        &self,
        session: &SessionKey,
        request: &StopSessionRequest,
        when: StopWait,
    ) -> Result<StopAnswer, ClientError> {
        self.wake_daemon();
        let (query, timeout) = when.query_and_timeout();
        self.post_json_with(&["api", "sessions", session.as_str(), "stop"], query, request, 1, timeout).await
    }

    /// Stops everything, with one attempt only, as in [`DaemonClient::stop_session`].
    pub(crate) async fn stop_all(
        &self,
        request: &StopAllRequest,
        when: StopWait,
    ) -> Result<StopAllAnswer, ClientError> {
        self.wake_daemon();
        let (query, timeout) = when.query_and_timeout();
        self.post_json_with(&["api", "stop"], query, request, 1, timeout).await
    }

    /// Gets the hold: whether new runs are refused.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn get_hold(&self) -> Result<Hold, ClientError> {
        self.get_json(&["api", "hold"]).await
    }

    /// Refuses new runs from now on.
    ///
    /// # Cancel safety
    /// If dropped, the hold may or may not have been set.
    pub async fn set_hold(&self, reason: Option<String>) -> Result<Hold, ClientError> {
        let hold = serde_json::json!({"held": true, "reason": reason});
        let request = self.build_request(Method::PUT, &["api", "hold"], &[])?.json(&hold);
        self.fetch_json(request, ClientRequestTimeout::Default).await
    }

    /// Accepts new runs again.
    ///
    /// # Cancel safety
    /// If dropped, the hold may or may not have been lifted.
    pub async fn lift_hold(&self) -> Result<Hold, ClientError> {
        self.request_json(Method::DELETE, &["api", "hold"], &[]).await
    }

    /// Gets the nodes of the cluster; refused by a daemon that is not in one.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub(crate) async fn get_cluster(&self) -> Result<ClusterView, ClientError> {
        self.get_json(&["api", "cluster"]).await
    }

    /// Lets the node take no new sessions. May be repeated.
    ///
    /// # Cancel safety
    /// If dropped, the drain may or may not have begun.
    pub(crate) async fn drain(&self, request: &DrainRequest) -> Result<DrainView, ClientError> {
        self.post_json(&["api", "drain"], request).await
    }

    /// Lets the node take new sessions again.
    ///
    /// # Cancel safety
    /// If dropped, the drain may or may not have ended.
    pub(crate) async fn end_drain(&self) -> Result<DrainView, ClientError> {
        self.request_json(Method::DELETE, &["api", "drain"], &[]).await
    }

    /// Lists the calls that wait for approval.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_approvals(&self) -> ListResult<ApprovalRow> {
        self.list_items(&["api", "approvals"], &[]).await
    }

    /// Allows or denies a waiting call; refused if it was decided before.
    ///
    /// # Cancel safety
    /// If dropped, the approval may have been answered.
    pub async fn answer_approval(&self, id: &str, answer: &ApprovalAnswer) -> Result<ApprovalRow, ClientError> {
        self.post_json(&["api", "approvals", id], answer).await
    }

    /// Lists the remembered allowances.
    pub(crate) async fn list_approval_rules(&self) -> ListResult<ApprovalRule> {
        self.list_items(&["api", "approval-rules"], &[]).await
    }

    /// Deletes a remembered allowance.
    pub(crate) async fn forget_approval_rule(&self, id: &str) -> Result<(), ClientError> {
        self.request_done(Method::DELETE, &["api", "approval-rules", id]).await
    }
}

impl DaemonClient {
    /// Lists what the MCP servers of an agent offer to people. The daemon bounds the wait: it may start the servers.
    ///
    /// # Cancel safety
    /// Safe: servers whose answers are not waited for are ended.
    pub async fn list_mcp(&self, kind: McpListKind, agent: Option<&AgentId>) -> Result<McpList, ClientError> {
        let path = match kind {
            McpListKind::Resources => ["api", "mcp", "resources"],
            McpListKind::Prompts => ["api", "mcp", "prompts"],
        };
        let query: Vec<(&str, &str)> = agent.iter().map(|agent| ("agent", agent.as_str())).collect();
        self.fetch_json(self.build_request(Method::GET, &path, &query)?, ClientRequestTimeout::Unlimited).await
    }

    /// Gets a resource or a filled prompt as text. The daemon bounds the wait.
    ///
    /// # Cancel safety
    /// Safe: a server whose answer is not waited for is ended.
    pub async fn read_mcp(
        &self,
        server: &str,
        request: McpContentRequest,
        agent: Option<AgentId>,
    ) -> Result<McpContent, ClientError> {
        let unlimited = ClientRequestTimeout::Unlimited;
        match request {
            McpContentRequest::Resource(uri) => {
                let body = McpResourceRequest { uri, agent };
                self.post_json_with(&["api", "mcp", server, "resource"], &[], &body, 1, unlimited).await
            }
            McpContentRequest::Prompt { name, arguments } => {
                let body = McpPromptRequest { name, arguments, agent };
                self.post_json_with(&["api", "mcp", server, "prompt"], &[], &body, 1, unlimited).await
            }
        }
    }

    pub(crate) async fn list_schedules(&self) -> ListResult<ScheduleView> {
        self.list_items(&["api", "schedules"], &[]).await
    }

    pub(crate) async fn find_schedule(&self, id: &str) -> Result<ScheduleView, ClientError> {
        self.get_json(&["api", "schedules", id]).await
    }

    pub(crate) async fn create_schedule(&self, request: &ScheduleRequest) -> Result<ScheduleView, ClientError> {
        self.post_json(&["api", "schedules"], request).await
    }

    pub(crate) async fn patch_schedule(&self, id: &str, patch: &SchedulePatch) -> Result<ScheduleView, ClientError> {
        let request = self.build_request(Method::PATCH, &["api", "schedules", id], &[])?.json(patch);
        self.fetch_json(request, ClientRequestTimeout::Default).await
    }

    pub(crate) async fn delete_schedule(&self, id: &str) -> Result<(), ClientError> {
        self.request_done(Method::DELETE, &["api", "schedules", id]).await
    }
}

impl DaemonClient {
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_sessions(&self) -> ListResult<SessionRow> {
        self.list_items(&["api", "sessions"], &[]).await
    }

    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn get_session(&self, session: &SessionKey) -> Result<SessionView, ClientError> {
        self.get_json(&["api", "sessions", session.as_str()]).await
    }

    /// Sets another model or agent for a session, from its next run on. Refused, without any change, when the model
    /// cannot be used.
    ///
    /// # Cancel safety
    /// If dropped, the session may or may not have been changed.
    pub async fn patch_session(&self, session: &SessionKey, patch: &SessionPatch) -> Result<SessionView, ClientError> {
        let request = self.build_request(Method::PATCH, &["api", "sessions", session.as_str()], &[])?.json(patch);
        self.fetch_json(request, ClientRequestTimeout::Default).await
    }

    /// Gets one page of the sessions, the most recently used first.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_sessions_page(&self, cursor: Option<&str>) -> Result<Page<SessionRow>, ClientError> {
        let query: Vec<(&str, &str)> = cursor.iter().map(|cursor| ("cursor", *cursor)).collect();
        self.request_json(Method::GET, &["api", "sessions"], &query).await
    }

    /// Gets the whole history of a session, oldest first.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn get_history(&self, session: &SessionKey) -> ListResult<HistoryMessage> {
        // Messages of a page are in order, but the first page is the newest.
        let pages = self.list_pages(&["api", "sessions", session.as_str(), "history"], &[]).await?;
        Ok(pages.into_iter().rev().flatten().collect())
    }

    /// Gets one page of the history, oldest message first: the newest page, or the one that ends before `cursor`.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn get_history_page(
        &self,
        session: &SessionKey,
        turns: u32,
        cursor: Option<&str>,
    ) -> Result<Page<HistoryMessage>, ClientError> {
        let turns = turns.to_string();
        let mut query = vec![("turns", turns.as_str())];
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        self.request_json(Method::GET, &["api", "sessions", session.as_str(), "history"], &query).await
    }

    /// Shares a session with every token, or makes it private again.
    ///
    /// # Cancel safety
    /// If dropped, the session may have been shared.
    pub(crate) async fn share_session(
        &self,
        key: &SessionKey,
        request: SharingRequest,
    ) -> Result<SessionRow, ClientError> {
        let path = ["api", "sessions", key.as_str(), "sharing"];
        let request = self.build_request(Method::PUT, &path, &[])?.json(&request);
        self.fetch_json(request, ClientRequestTimeout::Default).await
    }

    /// Takes the file changes of a run back.
    ///
    /// # Cancel safety
    /// If dropped, they may have been taken back.
    pub async fn undo_run(&self, run: &RunId, request: UndoRequest) -> Result<UndoReport, ClientError> {
        self.post_json(&["api", "runs", run.as_str(), "undo"], &request).await
    }

    /// Clears a session's history.
    pub(crate) async fn reset_session(&self, session: &SessionKey) -> Result<(), ClientError> {
        self.request_done(Method::POST, &["api", "sessions", session.as_str(), "reset"]).await
    }

    pub(crate) async fn delete_session(&self, session: &SessionKey) -> Result<(), ClientError> {
        self.request_done(Method::DELETE, &["api", "sessions", session.as_str()]).await
    }

    pub(crate) async fn list_processes(&self, session: &SessionKey) -> ListResult<ProcessRow> {
        self.list_items(&["api", "sessions", session.as_str(), "processes"], &[]).await
    }

    pub(crate) async fn list_all_processes(&self) -> ListResult<ProcessRow> {
        self.list_items(&["api", "processes"], &[]).await
    }

    /// Gets a background process with its output.
    pub(crate) async fn get_process(&self, session: &SessionKey, id: &str) -> Result<ProcessView, ClientError> {
        self.get_json(&["api", "sessions", session.as_str(), "processes", id]).await
    }

    /// Ends a background process and waits until it is dead.
    pub(crate) async fn end_process(
        &self,
        session: &SessionKey,
        id: &str,
        force: bool,
    ) -> Result<ProcessRow, ClientError> {
        let query: &[(&str, &str)] = if force { &[("force", "1")] } else { &[] };
        self.request_json(Method::DELETE, &["api", "sessions", session.as_str(), "processes", id], query).await
    }
}

impl DaemonClient {
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_agents(&self) -> ListResult<AgentRow> {
        self.list_items(&["api", "agents"], &[]).await
    }

    /// Lists the models that agents use.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn list_models(&self) -> ListResult<ModelRow> {
        self.list_items(&["api", "models"], &[]).await
    }

    /// Gets one agent with its spending of today.
    pub(crate) async fn get_agent(&self, agent: &AgentId) -> Result<AgentView, ClientError> {
        self.get_json(&["api", "agents", agent.as_str()]).await
    }

    pub(crate) async fn get_agent_tree(&self) -> ListResult<AgentNode> {
        self.list_items(&["api", "agents", "tree"], &[]).await
    }

    pub(crate) async fn create_agent(&self, agent: &NewAgent) -> Result<AgentRow, ClientError> {
        self.post_json(&["api", "agents"], agent).await
    }

    /// Deletes an agent with all its descendants, unless one of them has runs that have not ended.
    pub(crate) async fn delete_agent(&self, agent: &AgentId) -> Result<AgentsDeleted, ClientError> {
        self.request_json(Method::DELETE, &["api", "agents", agent.as_str()], &[]).await
    }

    /// Stops all runs of an agent and of its descendants, waits for their ends, and deletes the agents.
    pub(crate) async fn stop_and_delete_agent(&self, agent: &AgentId) -> Result<AgentsDeleted, ClientError> {
        let request = self.build_request(Method::DELETE, &["api", "agents", agent.as_str()], &[("force", "1")])?;
        self.fetch_json(request, ClientRequestTimeout::Unlimited).await
    }
}

impl DaemonClient {
    /// Lists all notes, newest first.
    pub(crate) async fn list_notes(&self, owner: &NotesOwner) -> ListResult<NoteRow> {
        self.list_items(&owner.path(), &[]).await
    }

    /// Lists the notes that match `query`, most relevant first.
    pub(crate) async fn search_notes(&self, owner: &NotesOwner, query: &str, limit: usize) -> ListResult<NoteRow> {
        self.list_items(&owner.path(), &[("query", query), ("limit", &limit.to_string())]).await
    }

    /// Deletes a note; fails if there is no such note.
    pub(crate) async fn forget_note(&self, owner: &NotesOwner, key: &str) -> Result<(), ClientError> {
        self.request_done(Method::DELETE, &[&owner.path()[..], &[key]].concat()).await
    }

    /// Lists the senders that have notes, the one with the newest note first.
    pub(crate) async fn list_senders(&self) -> ListResult<SenderRow> {
        self.list_items(&["api", "senders"], &[]).await
    }

    /// Deletes all notes of a sender; fails if there are none.
    pub(crate) async fn forget_sender(&self, sender: &str) -> Result<NotesForgotten, ClientError> {
        self.request_json(Method::DELETE, &["api", "senders", sender, "memory"], &[]).await
    }
}

impl DaemonClient {
    pub(crate) async fn list_channels(&self) -> ListResult<ChannelRow> {
        self.list_items(&["api", "channels"], &[]).await
    }

    /// Asks the network of a channel which account it uses; fails if there is no such channel.
    pub(crate) async fn test_channel(&self, name: &str) -> Result<ChannelTest, ClientError> {
        self.request_json(Method::POST, &["api", "channels", name, "test"], &[]).await
    }

    /// Sends a text to a chat. It is never retried, because the chat could show it twice: after
    /// [`ClientError::ConnectionLost`] it may or may not have been shown.
    pub(crate) async fn send_to_channel(&self, message: &ChannelSend) -> Result<ChannelDelivery, ClientError> {
        self.post_json(&["api", "channels", "send"], message).await
    }
}

/// Tokens, sign-in links and the audit log.
impl DaemonClient {
    /// Lists the tokens without their secrets.
    pub(crate) async fn list_tokens(&self) -> ListResult<TokenRow> {
        self.list_items(&["api", "tokens"], &[]).await
    }

    /// Creates a token; its secret is only in this answer. If this is dropped, a token may exist whose secret nobody
    /// has read; revoke it by its name.
    pub(crate) async fn create_token(&self, request: &TokenRequest) -> Result<NewToken, ClientError> {
        self.post_json(&["api", "tokens"], request).await
    }

    /// Replaces the secret of a token; the new one is only in this answer. If this is dropped, the old secret may have
    /// ended; rotate it again.
    pub(crate) async fn rotate_token(
        &self,
        name: &str,
        request: &TokenRotationRequest,
    ) -> Result<NewToken, ClientError> {
        self.post_json(&["api", "tokens", name, "rotate"], request).await
    }

    pub(crate) async fn revoke_token(&self, name: &str) -> Result<(), ClientError> {
        self.request_done(Method::DELETE, &["api", "tokens", name]).await
    }

    /// Creates a one-time link that opens the page signed in, at the address that this client uses. An unused link
    /// expires by itself.
    pub(crate) async fn sign_in_link(&self) -> Result<Url, ClientError> {
        let made: SignInLink = self.post_json(&["api", "sign-in-link"], &()).await?;
        let parts: Vec<&str> = made.path.trim_start_matches('/').split('/').collect();
        self.build_url(&parts, &[])
    }

    /// Lists all entries of the audit log with a number above `after`, oldest first.
    pub(crate) async fn list_audit_entries(&self, mut after: u64) -> ListResult<AuditRow> {
        let mut rows = Vec::new();
        loop {
            let (page, next) = self.list_audit_page(after).await?;
            rows.extend(page);
            let Some(next) = next else { return Ok(rows) };
            after = next;
        }
    }

    /// Lists the next entries of the audit log, and the number behind which the list goes on.
    pub(crate) async fn list_audit_page(&self, after: u64) -> Result<(Vec<AuditRow>, Option<u64>), ClientError> {
        let query = [("after", &*after.to_string()), ("limit", AUDIT_PAGE_ROWS)];
        let page: Page<AuditRow> = self.request_json(Method::GET, &["api", "audit"], &query).await?;
        match page.next_cursor.map(|next| next.parse::<u64>()) {
            // Numbers must rise, so that a list cannot loop.
            Some(Ok(next)) if next > after => Ok((page.items, Some(next))),
            Some(_) => Err(self.unexpected_answer("its list does not advance".into())),
            None => Ok((page.items, None)),
        }
    }
}

impl DaemonClient {
    /// Gets the body at this path as text.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn get_text(&self, path: &[&str]) -> Result<String, ClientError> {
        let body = self.fetch_body(self.build_request(Method::GET, path, &[])?, ClientRequestTimeout::Default).await?;
        String::from_utf8(body).map_err(|_| self.unexpected_answer("it is not text".into()))
    }

    async fn get_json<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, ClientError> {
        self.request_json(Method::GET, path, &[]).await
    }

    async fn request_json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<T, ClientError> {
        self.fetch_json(self.build_request(method, path, query)?, ClientRequestTimeout::Default).await
    }

    /// Sends a request whose answer says nothing but that it is done.
    async fn request_done(&self, method: Method, path: &[&str]) -> Result<(), ClientError> {
        self.fetch_body(self.build_request(method, path, &[])?, ClientRequestTimeout::Default).await.map(drop)
    }

    /// Reads all pages of a list.
    async fn list_items<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, &str)]) -> ListResult<T> {
        Ok(self.list_pages(path, query).await?.into_iter().flatten().collect())
    }

    async fn list_pages<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, &str)]) -> ListResult<Vec<T>> {
        let mut pages = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let mut query = query.to_vec();
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let page: Page<T> = self.request_json(Method::GET, path, &query).await?;
            pages.push(page.items);
            match page.next_cursor {
                Some(next) if cursor.as_ref() != Some(&next) => cursor = Some(next),
                _ => return Ok(pages),
            }
        }
        Err(self.unexpected_answer("its list does not end".into()))
    }

    /// Posts once.
    async fn post_json<T: DeserializeOwned>(&self, path: &[&str], body: &impl Serialize) -> Result<T, ClientError> {
        self.post_json_with(path, &[], body, 1, ClientRequestTimeout::Default).await
    }

    /// Posts up to `max_attempts` times while the connection breaks.
    async fn post_json_with<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        body: &impl Serialize,
        max_attempts: u32,
        timeout: ClientRequestTimeout,
    ) -> Result<T, ClientError> {
        let mut attempt = 1;
        loop {
            let request = self.build_request(Method::POST, path, query)?.json(body);
            match self.fetch_json(request, timeout).await {
                Err(ClientError::ConnectionLost { .. }) if attempt < max_attempts => attempt += 1,
                answer => return answer,
            }
            tokio::time::sleep(self.reconnect_policy.initial_pause).await;
        }
    }
}
