//! One method per HTTP route: runs, sessions, stops, approvals, hold, processes, tokens.

use quell_protocol::api::{
    AgentRow, HistoryMessage, Hold, NewToken, Page, RunView, SendAnswer, SendRequest, SessionRow, StopAllAnswer,
    StopAllRequest, StopAnswer, StopRunRequest, StopSessionRequest, TicketView, TokenRequest, TokenRow, TokenScopes,
};
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow, Decision};
use quell_protocol::background::{ProcessRow, ProcessView};
use quell_protocol::session::SessionView;
use quell_protocol::{Receipt, RunId, SessionKey, Verdict};
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{ClientError, ClientRequestTimeout, DaemonClient};

/// Attempts of an idempotent request when the connection breaks.
const MAX_ATTEMPTS: u32 = 3;
/// Most pages of a list that are read; a longer list is taken for a loop.
const MAX_PAGES: usize = 1000;

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
    #[must_use]
    pub fn receipt(&self) -> Option<&Receipt> {
        match self {
            Self::Ticket(ticket) => ticket.receipt.as_ref(),
            Self::Receipt(receipt) => Some(receipt),
        }
    }

    #[must_use]
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

/// When the answer to a stop of several runs is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopWait {
    /// At once.
    UntilRequested,
    /// When everything that the stop covers has ended.
    UntilSettled,
}

impl StopWait {
    /// One attempt only: a retry would be answered with nothing left to stop, and the withdrawn texts would be lost.
    fn query_and_options(self) -> (&'static [(&'static str, &'static str)], ClientRequestOptions) {
        match self {
            Self::UntilRequested => (&[], ClientRequestOptions::ONCE),
            Self::UntilSettled => (
                &[("wait", "1")],
                ClientRequestOptions { timeout: ClientRequestTimeout::Unlimited, ..ClientRequestOptions::ONCE },
            ),
        }
    }
}

impl DaemonClient {
    /// Checks that the daemon accepts requests (`GET /readyz`).
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn check_ready(&self) -> Result<(), ClientError> {
        self.fetch_body(self.build_request(Method::GET, &["readyz"], &[])?, ClientRequestTimeout::Default)
            .await
            .map(drop)
    }

    /// Gets the body at this path as text.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn get_text(&self, path: &[&str]) -> Result<String, ClientError> {
        let body = self.fetch_body(self.build_request(Method::GET, path, &[])?, ClientRequestTimeout::Default).await?;
        String::from_utf8(body).map_err(|_| self.unexpected_answer("it is not text".into()))
    }

    /// Sends a message. With an idempotency key it is sent again after a broken connection: a repeat starts no second
    /// run.
    ///
    /// # Cancel safety
    /// If dropped, the message may have been accepted; its run then continues.
    pub async fn send_message(&self, session: &SessionKey, message: &SendRequest) -> Result<SendReply, ClientError> {
        let path = ["api", "sessions", session.as_str(), "runs"];
        let attempts = if message.idempotency_key.is_some() { MAX_ATTEMPTS } else { 1 };
        self.post_json(
            &path,
            &[],
            message,
            ClientRequestOptions { max_attempts: attempts, timeout: ClientRequestTimeout::Default },
        )
        .await
    }

    /// Lists the background processes of a session.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn list_processes(&self, session: &SessionKey) -> ListResult<ProcessRow> {
        self.list_items(&["api", "sessions", session.as_str(), "processes"], &[]).await
    }

    /// Lists the background processes of all sessions.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn list_all_processes(&self) -> ListResult<ProcessRow> {
        self.list_items(&["api", "processes"], &[]).await
    }

    /// Gets a background process with its output.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn get_process(&self, session: &SessionKey, id: &str) -> Result<ProcessView, ClientError> {
        self.get_json(&["api", "sessions", session.as_str(), "processes", id]).await
    }

    /// Ends a background process and waits until it is dead.
    ///
    /// # Cancel safety
    /// Dropping it does not withdraw a request that has been sent.
    pub async fn end_process(&self, session: &SessionKey, id: &str, force: bool) -> Result<ProcessRow, ClientError> {
        let query: &[(&str, &str)] = if force { &[("force", "1")] } else { &[] };
        let path = ["api", "sessions", session.as_str(), "processes", id];
        self.fetch_json(self.build_request(Method::DELETE, &path, query)?, ClientRequestTimeout::Default).await
    }

    /// Lists the calls that wait for approval.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn list_approvals(&self) -> ListResult<ApprovalRow> {
        self.list_items(&["api", "approvals"], &[]).await
    }

    /// Allows or denies a waiting call; refused if it was decided before.
    ///
    /// # Cancel safety
    /// If dropped, the approval may have been answered.
    pub async fn answer_approval(&self, id: &str, decision: Decision) -> Result<ApprovalRow, ClientError> {
        let options = ClientRequestOptions { max_attempts: 1, timeout: ClientRequestTimeout::Default };
        self.post_json(&["api", "approvals", id], &[], &ApprovalAnswer { decision }, options).await
    }

    /// Gets a run, with its receipt once it has ended.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn get_run(&self, run: &RunId) -> Result<RunView, ClientError> {
        self.get_json(&["api", "runs", run.as_str()]).await
    }

    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn list_runs(&self, filter: ClientRunFilter) -> ListResult<RunView> {
        match filter {
            ClientRunFilter::Active => self.list_items(&["api", "runs"], &[("state", "active")]).await,
            ClientRunFilter::All => self.list_items(&["api", "runs"], &[]).await,
        }
    }

    /// Requests the stop of a run; answered at once with the ticket.
    ///
    /// # Cancel safety
    /// If dropped, the stop may or may not have been requested.
    pub async fn stop_run(&self, run: &RunId, request: &StopRunRequest) -> Result<StopReply, ClientError> {
        self.wake_daemon();
        let options = ClientRequestOptions { max_attempts: MAX_ATTEMPTS, timeout: ClientRequestTimeout::Default };
        self.post_json(&["api", "runs", run.as_str(), "stop"], &[], request, options).await
    }

    /// Requests the stop of a run and waits until it has settled.
    ///
    /// # Cancel safety
    /// If dropped, the stop may or may not have been requested; a requested stop is not withdrawn.
    pub async fn stop_run_and_wait(&self, run: &RunId, request: &StopRunRequest) -> Result<StopReply, ClientError> {
        self.wake_daemon();
        let options = ClientRequestOptions { max_attempts: MAX_ATTEMPTS, timeout: ClientRequestTimeout::Unlimited };
        self.post_json(&["api", "runs", run.as_str(), "stop"], &[("wait", "1")], request, options).await
    }

    /// Stops a session: its runs, its queue, its background processes. With [`StopWait::UntilSettled`] it returns when
    /// all of them have ended.
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
        let (query, options) = when.query_and_options();
        self.post_json(&["api", "sessions", session.as_str(), "stop"], query, request, options).await
    }

    /// Stops everything. With [`StopWait::UntilSettled`] it returns when all of it has ended.
    ///
    /// # Cancel safety
    /// If dropped, the stop may or may not have been requested.
    pub async fn stop_all(&self, request: &StopAllRequest, when: StopWait) -> Result<StopAllAnswer, ClientError> {
        self.wake_daemon();
        let (query, options) = when.query_and_options();
        self.post_json(&["api", "stop"], query, request, options).await
    }

    /// Gets the hold: whether new runs are refused.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn get_hold(&self) -> Result<Hold, ClientError> {
        self.get_json(&["api", "hold"]).await
    }

    /// Refuses new runs from now on.
    ///
    /// # Cancel safety
    /// If dropped, the hold may or may not have been set.
    pub async fn set_hold(&self, reason: Option<String>) -> Result<Hold, ClientError> {
        let hold = Hold { held: true, reason, ..Hold::default() };
        self.fetch_json(
            self.build_request(Method::PUT, &["api", "hold"], &[])?.json(&hold),
            ClientRequestTimeout::Default,
        )
        .await
    }

    /// Accepts new runs again.
    ///
    /// # Cancel safety
    /// If dropped, the hold may or may not have been lifted.
    pub async fn lift_hold(&self) -> Result<Hold, ClientError> {
        self.fetch_json(self.build_request(Method::DELETE, &["api", "hold"], &[])?, ClientRequestTimeout::Default).await
    }

    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn list_sessions(&self) -> ListResult<SessionRow> {
        self.list_items(&["api", "sessions"], &[]).await
    }

    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn get_session(&self, session: &SessionKey) -> Result<SessionView, ClientError> {
        self.get_json(&["api", "sessions", session.as_str()]).await
    }

    /// Gets the whole history of a session, oldest first.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn get_history(&self, session: &SessionKey) -> ListResult<HistoryMessage> {
        // Messages of a page are in order, but the first page is the newest.
        let pages = self.list_pages(&["api", "sessions", session.as_str(), "history"], &[]).await?;
        Ok(pages.into_iter().rev().flatten().collect())
    }

    /// Gets one page of the history, oldest message first: the newest page, or the one that ends before `cursor`.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn get_history_page(
        &self,
        session: &SessionKey,
        turns: u32,
        cursor: Option<&str>,
    ) -> Result<Page<HistoryMessage>, ClientError> {
        let turns = turns.to_string();
        let mut query = vec![("turns", turns.as_str())];
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        let path = ["api", "sessions", session.as_str(), "history"];
        self.fetch_json(self.build_request(Method::GET, &path, &query)?, ClientRequestTimeout::Default).await
    }

    /// Clears a session's history.
    ///
    /// # Cancel safety
    /// If dropped, the history may or may not have been emptied.
    pub async fn reset_session(&self, session: &SessionKey) -> Result<(), ClientError> {
        let request = self.build_request(Method::POST, &["api", "sessions", session.as_str(), "reset"], &[])?;
        self.fetch_body(request, ClientRequestTimeout::Default).await.map(drop)
    }

    /// # Cancel safety
    /// If dropped, the session may or may not have been deleted.
    pub async fn delete_session(&self, session: &SessionKey) -> Result<(), ClientError> {
        let request = self.build_request(Method::DELETE, &["api", "sessions", session.as_str()], &[])?;
        self.fetch_body(request, ClientRequestTimeout::Default).await.map(drop)
    }

    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn list_agents(&self) -> ListResult<AgentRow> {
        self.list_items(&["api", "agents"], &[]).await
    }

    /// Lists the tokens without their secrets.
    ///
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn list_tokens(&self) -> ListResult<TokenRow> {
        self.list_items(&["api", "tokens"], &[]).await
    }

    /// Creates a token; its secret is only in this answer.
    ///
    /// # Cancel safety
    /// If dropped, a token may exist whose secret nobody has read; revoke it by its name.
    pub async fn create_token(&self, name: &str, scope: TokenScopes) -> Result<NewToken, ClientError> {
        self.post_json(&["api", "tokens"], &[], &TokenRequest { name: name.into(), scope }, ClientRequestOptions::ONCE)
            .await
    }

    /// # Cancel safety
    /// If dropped, the token may or may not have been revoked.
    pub async fn revoke_token(&self, name: &str) -> Result<(), ClientError> {
        let request = self.build_request(Method::DELETE, &["api", "tokens", name], &[])?;
        self.fetch_body(request, ClientRequestTimeout::Default).await.map(drop)
    }

    pub(super) async fn get_json<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, ClientError> {
        self.fetch_json(self.build_request(Method::GET, path, &[])?, ClientRequestTimeout::Default).await
    }

    /// Reads all pages of a list.
    pub(super) async fn list_items<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, &str)]) -> ListResult<T> {
        Ok(self.list_pages(path, query).await?.into_iter().flatten().collect())
    }

    async fn list_pages<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, &str)]) -> ListResult<Vec<T>> {
        let mut pages = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let mut query = query.to_vec();
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let page: Page<T> =
                self.fetch_json(self.build_request(Method::GET, path, &query)?, ClientRequestTimeout::Default).await?;
            pages.push(page.items);
            match page.next_cursor {
                Some(next) if cursor.as_ref() != Some(&next) => cursor = Some(next),
                _ => return Ok(pages),
            }
        }
        Err(self.unexpected_answer("its list does not end".into()))
    }

    pub(super) async fn post_json<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        body: &impl Serialize,
        options: ClientRequestOptions,
    ) -> Result<T, ClientError> {
        let mut attempt = 1;
        loop {
            let request = self.build_request(Method::POST, path, query)?.json(body);
            match self.fetch_json(request, options.timeout).await {
                Err(ClientError::ConnectionLost { .. }) if attempt < options.max_attempts => attempt += 1,
                answer => return answer,
            }
            tokio::time::sleep(self.reconnect_policy.initial_pause).await;
        }
    }
}

/// Retries and timeout of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientRequestOptions {
    max_attempts: u32,
    timeout: ClientRequestTimeout,
}

impl ClientRequestOptions {
    pub(super) const ONCE: Self = Self { max_attempts: 1, timeout: ClientRequestTimeout::Default };
}
