//! The routes of the daemon, one function each.

use quell_protocol::api::{
    AgentRow, HistoryMessage, Hold, List, NewToken, RunView, SendAnswer, SendRequest, SessionRow, StopAllAnswer,
    StopAllRequest, StopAnswer, StopRunRequest, StopSessionRequest, TicketView, TokenRequest, TokenRow, TokenScopes,
};
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow, Decision};
use quell_protocol::background::{ProcessRow, ProcessView};
use quell_protocol::session::SessionView;
use quell_protocol::{Receipt, RunId, SessionKey, Verdict};
use reqwest::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Link, LinkError, Span};

/// A request whose repetition changes nothing is sent this often before a broken connection counts.
const ATTEMPTS: u32 = 3;
/// Pages of a list that are read; more would be a list that leads in circles.
const MOST_PAGES: usize = 1000;

/// Everything a list route has.
pub type ListOf<T> = Result<Vec<T>, LinkError>;

/// Answer to a message.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Sent {
    /// It became a run, or was handed to one.
    Accepted(SendAnswer),
    /// It was a stop text.
    Stopped(StopAnswer),
}

/// Answer to a stop of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StopReply {
    /// The ticket, with the receipt once there is one.
    Ticket(Box<TicketView>),
    /// The receipt alone.
    Receipt(Box<Receipt>),
}

impl StopReply {
    /// The receipt, if it has come.
    #[must_use]
    pub fn receipt(&self) -> Option<&Receipt> {
        match self {
            Self::Ticket(ticket) => ticket.receipt.as_ref(),
            Self::Receipt(receipt) => Some(receipt),
        }
    }

    /// The run's verdict.
    #[must_use]
    pub fn verdict(&self) -> &Verdict {
        match self {
            Self::Ticket(ticket) => &ticket.verdict,
            Self::Receipt(receipt) => &receipt.verdict,
        }
    }
}

/// Which runs to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunFilter {
    /// Those that are not over.
    Active,
    /// All that are remembered.
    All,
}

/// When a stop of many is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerWhen {
    /// At once.
    Asked,
    /// When everything that it covers is over.
    Settled,
}

impl AnswerWhen {
    /// One attempt: a repeat would answer that nothing was left to stop, and the withdrawn texts would be lost.
    fn of_one_attempt(self) -> (&'static [(&'static str, &'static str)], Effort) {
        match self {
            Self::Asked => (&[], Effort::ONCE),
            Self::Settled => (&[("wait", "1")], Effort { span: Span::Open, ..Effort::ONCE }),
        }
    }
}

impl Link {
    /// Asks whether the daemon is there and takes requests (`GET /readyz`).
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn health(&self) -> Result<(), LinkError> {
        self.answer(self.request(Method::GET, &["readyz"], &[])?, Span::Ordinary).await.map(drop)
    }

    /// What the daemon has at this path, as text.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn text(&self, path: &[&str]) -> Result<String, LinkError> {
        let body = self.answer(self.request(Method::GET, path, &[])?, Span::Ordinary).await?;
        String::from_utf8(body).map_err(|_| self.foreign("it is not text".into()))
    }

    /// Sends a message. With an idempotency key a broken connection is tried again, since a repeat starts no second run.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it may leave the message accepted; its run goes on.
    pub async fn send(&self, session: &SessionKey, message: &SendRequest) -> Result<Sent, LinkError> {
        let path = ["api", "sessions", session.as_str(), "runs"];
        let attempts = if message.idempotency_key.is_some() { ATTEMPTS } else { 1 };
        self.post(&path, &[], message, Effort { attempts, span: Span::Ordinary }).await
    }

    /// What a session runs in the background.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn processes(&self, session: &SessionKey) -> ListOf<ProcessRow> {
        self.list(&["api", "sessions", session.as_str(), "processes"], &[]).await
    }

    /// What all sessions run in the background.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn all_processes(&self) -> ListOf<ProcessRow> {
        self.list(&["api", "processes"], &[]).await
    }

    /// A background process with what it printed.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn process(&self, session: &SessionKey, id: &str) -> Result<ProcessView, LinkError> {
        self.get(&["api", "sessions", session.as_str(), "processes", id]).await
    }

    /// Ends a background process and waits until it is dead.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Once sent, dropping it takes nothing back.
    pub async fn end_process(&self, session: &SessionKey, id: &str, force: bool) -> Result<ProcessRow, LinkError> {
        let query: &[(&str, &str)] = if force { &[("force", "1")] } else { &[] };
        let path = ["api", "sessions", session.as_str(), "processes", id];
        self.ask(self.request(Method::DELETE, &path, query)?, Span::Ordinary).await
    }

    /// The calls that wait for a person.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn approvals(&self) -> ListOf<ApprovalRow> {
        self.list(&["api", "approvals"], &[]).await
    }

    /// Allows or denies a call that waits.
    ///
    /// # Errors
    /// Every [`LinkError`]; one that was settled before is refused.
    ///
    /// # Cancel safety
    /// Dropping it may leave the answer given.
    pub async fn answer_approval(&self, id: &str, decision: Decision) -> Result<ApprovalRow, LinkError> {
        let effort = Effort { attempts: 1, span: Span::Ordinary };
        self.post(&["api", "approvals", id], &[], &ApprovalAnswer { decision }, effort).await
    }

    /// One run, with its receipt once it is over.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn run(&self, run: &RunId) -> Result<RunView, LinkError> {
        self.get(&["api", "runs", run.as_str()]).await
    }

    /// The runs.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn runs(&self, filter: RunFilter) -> ListOf<RunView> {
        match filter {
            RunFilter::Active => self.list(&["api", "runs"], &[("state", "active")]).await,
            RunFilter::All => self.list(&["api", "runs"], &[]).await,
        }
    }

    /// Asks for the stop of a run and answers with the ticket at once.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it may or may not leave the stop asked for.
    pub async fn stop_run(&self, run: &RunId, request: &StopRunRequest) -> Result<StopReply, LinkError> {
        self.wake();
        let effort = Effort { attempts: ATTEMPTS, span: Span::Ordinary };
        self.post(&["api", "runs", run.as_str(), "stop"], &[], request, effort).await
    }

    /// Asks for the stop of a run and waits until it is settled.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it may or may not leave the stop asked for; it does not take a stop back.
    pub async fn stop_run_and_wait(&self, run: &RunId, request: &StopRunRequest) -> Result<StopReply, LinkError> {
        self.wake();
        let effort = Effort { attempts: ATTEMPTS, span: Span::Open };
        self.post(&["api", "runs", run.as_str(), "stop"], &[("wait", "1")], request, effort).await
    }

    /// Stops a session: its runs, its queue, its background processes. With [`AnswerWhen::Settled`] it answers when all of them
    /// are over.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it may or may not leave the stop asked for.
    pub async fn stop_session(
        &self,
        session: &SessionKey,
        request: &StopSessionRequest,
        when: AnswerWhen,
    ) -> Result<StopAnswer, LinkError> {
        self.wake();
        let (query, effort) = when.of_one_attempt();
        self.post(&["api", "sessions", session.as_str(), "stop"], query, request, effort).await
    }

    /// Stops everything. With [`AnswerWhen::Settled`] it answers when all of it is over.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it may or may not leave the stop asked for.
    pub async fn stop_all(&self, request: &StopAllRequest, when: AnswerWhen) -> Result<StopAllAnswer, LinkError> {
        self.wake();
        let (query, effort) = when.of_one_attempt();
        self.post(&["api", "stop"], query, request, effort).await
    }

    /// Whether new runs are refused.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn hold(&self) -> Result<Hold, LinkError> {
        self.get(&["api", "hold"]).await
    }

    /// Refuses new runs from now on.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it may or may not leave the hold set.
    pub async fn set_hold(&self, reason: Option<String>) -> Result<Hold, LinkError> {
        let hold = Hold { held: true, reason, ..Hold::default() };
        self.ask(self.request(Method::PUT, &["api", "hold"], &[])?.json(&hold), Span::Ordinary).await
    }

    /// Takes new runs again.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it may or may not leave the hold lifted.
    pub async fn lift_hold(&self) -> Result<Hold, LinkError> {
        self.ask(self.request(Method::DELETE, &["api", "hold"], &[])?, Span::Ordinary).await
    }

    /// The sessions.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn sessions(&self) -> ListOf<SessionRow> {
        self.list(&["api", "sessions"], &[]).await
    }

    /// One session.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn session(&self, session: &SessionKey) -> Result<SessionView, LinkError> {
        self.get(&["api", "sessions", session.as_str()]).await
    }

    /// What was said in a session, oldest first.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn history(&self, session: &SessionKey) -> ListOf<HistoryMessage> {
        // A page reads forward, but the first page is the newest one.
        let pages = self.pages(&["api", "sessions", session.as_str(), "history"], &[]).await?;
        Ok(pages.into_iter().rev().flatten().collect())
    }

    /// One page of what was said in a session: the newest, or the one that ends before `cursor`; each oldest first.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn history_page(
        &self,
        session: &SessionKey,
        turns: u32,
        cursor: Option<&str>,
    ) -> Result<List<HistoryMessage>, LinkError> {
        let turns = turns.to_string();
        let mut query = vec![("turns", turns.as_str())];
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        let path = ["api", "sessions", session.as_str(), "history"];
        self.ask(self.request(Method::GET, &path, &query)?, Span::Ordinary).await
    }

    /// Empties a session's history.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it may or may not leave the history emptied.
    pub async fn reset_session(&self, session: &SessionKey) -> Result<(), LinkError> {
        let request = self.request(Method::POST, &["api", "sessions", session.as_str(), "reset"], &[])?;
        self.answer(request, Span::Ordinary).await.map(drop)
    }

    /// Removes a session.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it may or may not leave the session removed.
    pub async fn delete_session(&self, session: &SessionKey) -> Result<(), LinkError> {
        let request = self.request(Method::DELETE, &["api", "sessions", session.as_str()], &[])?;
        self.answer(request, Span::Ordinary).await.map(drop)
    }

    /// The agents.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn agents(&self) -> ListOf<AgentRow> {
        self.list(&["api", "agents"], &[]).await
    }

    /// The tokens, without their secrets.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn tokens(&self) -> ListOf<TokenRow> {
        self.list(&["api", "tokens"], &[]).await
    }

    /// Makes a token; its secret is in this answer and nowhere else.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it may leave a token that nobody has read; revoke it by its name.
    pub async fn create_token(&self, name: &str, scope: TokenScopes) -> Result<NewToken, LinkError> {
        self.post(&["api", "tokens"], &[], &TokenRequest { name: name.into(), scope }, Effort::ONCE).await
    }

    /// Revokes a token.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it may or may not leave the token revoked.
    pub async fn revoke_token(&self, name: &str) -> Result<(), LinkError> {
        let request = self.request(Method::DELETE, &["api", "tokens", name], &[])?;
        self.answer(request, Span::Ordinary).await.map(drop)
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, LinkError> {
        self.ask(self.request(Method::GET, path, &[])?, Span::Ordinary).await
    }

    /// Reads a list to its end.
    pub(super) async fn list<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, &str)]) -> ListOf<T> {
        Ok(self.pages(path, query).await?.into_iter().flatten().collect())
    }

    async fn pages<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, &str)]) -> ListOf<Vec<T>> {
        let mut pages = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let mut query = query.to_vec();
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let page: List<T> = self.ask(self.request(Method::GET, path, &query)?, Span::Ordinary).await?;
            pages.push(page.items);
            match page.next_cursor {
                Some(next) if cursor.as_ref() != Some(&next) => cursor = Some(next),
                _ => return Ok(pages),
            }
        }
        Err(self.foreign("its list does not end".into()))
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: &[(&str, &str)],
        body: &impl Serialize,
        effort: Effort,
    ) -> Result<T, LinkError> {
        let mut attempt = 1;
        loop {
            let request = self.request(Method::POST, path, query)?.json(body);
            match self.ask(request, effort.span).await {
                Err(LinkError::Lost { .. }) if attempt < effort.attempts => attempt += 1,
                answer => return answer,
            }
            tokio::time::sleep(self.patience.first).await;
        }
    }
}

/// How much a request is worth.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effort {
    attempts: u32,
    span: Span,
}

impl Effort {
    pub(super) const ONCE: Self = Self { attempts: 1, span: Span::Ordinary };
}
