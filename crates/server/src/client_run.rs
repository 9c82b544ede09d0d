//! A run that answers a client of a model API: started, followed, and stopped when the client is gone.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use quell_engine::engine::{ClientAnswer, ClientRun, ClientRunError, Follower};
use quell_kernel::client_request::{AnswerOptions, ClientConversation, ClientRequestProblem};
use quell_kernel::turn::{AnsweredCall, ModelMessage, TurnItem};
use quell_protocol::{ErrorCode, EventKind, RunId, SessionKey, StopReason, Usage, Verdict};
use serde_json::Value;

use crate::budget::Reservation;
use crate::credential_end::CredentialEnd;
use crate::disconnect_stop::DisconnectStop;
use crate::http::{ApiCall, ProblemResponse, problem_response, retry_seconds};
use crate::keep_alive::KeepAliveTimer;
use crate::sent_message::new_run_id;

/// Binds a conversation to a session; as `metadata.session` in the body.
pub(crate) const SESSION_HEADER: HeaderName = HeaderName::from_static("x-quell-session");
/// The id of the run, with which anybody who may can stop it.
pub(crate) const RUN_HEADER: HeaderName = HeaderName::from_static("x-quell-run");

/// The part of a request that every model API has in its own form.
#[derive(Debug)]
pub(crate) struct AnswerRequest {
    /// `agent/ID` or `PROVIDER/MODEL`.
    pub(crate) model: String,
    pub(crate) conversation: ClientConversation,
    pub(crate) answer: AnswerOptions,
    pub(crate) session: Option<SessionKey>,
}

/// What a client of a model API hears of its run.
#[derive(Debug)]
pub(crate) enum AnswerPart {
    Text(String),
    Thinking(String),
    /// Nothing came for a while: a call waits for a person, or the model is slow.
    StillWaiting,
    Ended(Box<AnswerOutcome>),
}

/// The end of a run that answers a client.
#[derive(Debug)]
pub(crate) struct AnswerOutcome {
    pub(crate) verdict: Verdict,
    /// `None` if no answer came about.
    pub(crate) answer: Option<ClientAnswer>,
    pub(crate) usage: Usage,
}

/// Reads the answer of a run. Dropping it stops the run, unless it has ended.
#[derive(Debug)]
pub(crate) struct AnswerReader {
    follower: Follower,
    /// Both are kept from one event to the next: a stream waits once for each piece of text.
    credential_end: CredentialEnd,
    keep_alive: KeepAliveTimer,
    disconnect_stop: DisconnectStop,
    /// The credential has ended, and the run is stopped.
    is_refused: bool,
    /// Bytes of text that the client has.
    sent: usize,
    /// The client has text of an earlier step.
    between_steps: bool,
}

/// Stands between the texts of two steps of an agent.
const STEP_SEPARATOR: &str = "\n\n";

impl AnswerReader {
    /// Starts the run of a request.
    ///
    /// # Errors
    /// The answer to the client; nothing runs then.
    ///
    /// # Cancel safety
    /// Safe: dropped at any time, it stops the run, also one that has not begun.
    pub(crate) async fn start(call: &ApiCall, request: AnswerRequest) -> Result<Self, ProblemResponse> {
        Self::start_as(call, new_run_id(), request).await
    }

    /// As [`Self::start`], with an id from [`new_run_id`].
    pub(crate) async fn start_as(call: &ApiCall, id: RunId, request: AnswerRequest) -> Result<Self, ProblemResponse> {
        let AnswerRequest { model, conversation, answer, session } = request;
        let mut disconnect_stop = DisconnectStop::arm(call.engine(), &call.caller, id.clone(), None);
        let run = ClientRun { id, model, conversation, answer, session };
        let live_run = match call.engine().start_client_run(&call.caller, run).await {
            Ok(live_run) => live_run,
            Err(error) => {
                disconnect_stop.disarm();
                return Err(error.into());
            }
        };
        let follower = live_run.follow(0);
        let credential_end = CredentialEnd::watch(call);
        let keep_alive = KeepAliveTimer::start();
        let (is_refused, sent, between_steps) = (false, 0, false);
        Ok(Self { follower, credential_end, keep_alive, disconnect_stop, is_refused, sent, between_steps })
    }

    pub(crate) fn run_id(&self) -> &RunId {
        self.follower.live_run().id()
    }

    /// The next part of the answer. After [`AnswerPart::Ended`] there is none.
    ///
    /// # Cancel safety
    /// Safe: the cursor moves only when a part is returned.
    pub(crate) async fn next(&mut self) -> Option<AnswerPart> {
        // From the last part on, whatever is read meanwhile: what the client does not hear of keeps nothing alive.
        self.keep_alive.reset();
        loop {
            let event = tokio::select! {
                biased;
                _ = self.credential_end.wait(), if !self.is_refused => {
                    self.is_refused = true;
                    self.stop();
                    continue;
                }
                // Before the events: a run may have one ready at any moment.
                () = self.keep_alive.wait() => return Some(AnswerPart::StillWaiting),
                event = self.follower.next() => event?,
            };
            if let Some(part) = self.read_event(&event.kind) {
                return Some(part);
            }
        }
    }

    /// The next part if it is here.
    pub(crate) fn try_next(&mut self) -> Option<AnswerPart> {
        loop {
            let event = self.follower.try_next()?;
            if let Some(part) = self.read_event(&event.kind) {
                return Some(part);
            }
        }
    }

    /// Reads the answer to its end.
    pub(crate) async fn read_whole(&mut self) -> (String, Option<Box<AnswerOutcome>>) {
        let mut text = String::new();
        while let Some(part) = self.next().await {
            match part {
                AnswerPart::Text(piece) => text.push_str(&piece),
                AnswerPart::Ended(outcome) => return (text, Some(outcome)),
                AnswerPart::Thinking(_) | AnswerPart::StillWaiting => {}
            }
        }
        (text, None)
    }

    /// The last message of the model; only after the end of the run.
    pub(crate) fn model_message(&self) -> Option<ModelMessage<AnsweredCall>> {
        let turn = self.follower.live_run().sealed_turn()?;
        turn.items().iter().rev().find_map(|item| match item {
            TurnItem::Assistant(message) => Some(message.clone()),
            TurnItem::User { .. } => None,
        })
    }

    /// Bytes of the text that were cut off while they streamed; only after the end of the run.
    pub(crate) fn cut_bytes(&self) -> usize {
        let turn = self.follower.live_run().sealed_turn();
        turn.and_then(|turn| turn.partial().map(|partial| partial.text.len())).unwrap_or_default()
    }

    /// Stops the run, because its client may not use it any more, or is gone.
    pub(crate) fn stop(&self) {
        self.disconnect_stop.stop();
    }

    fn read_event(&mut self, event: &EventKind) -> Option<AnswerPart> {
        match event {
            EventKind::StepStarted { .. } => {
                self.between_steps = self.sent > 0;
                None
            }
            EventKind::TextDelta { text } => {
                self.sent += text.len();
                Some(AnswerPart::Text(self.after_step(text)))
            }
            EventKind::ThinkingDelta { text } => Some(AnswerPart::Thinking(text.clone())),
            // The reader fell behind. The snapshot has the whole answer, and the client a part of it.
            EventKind::Snapshot { earlier_text, text, .. } => {
                let whole = format!("{earlier_text}{text}");
                let rest = whole.get(self.sent..).unwrap_or_default().to_owned();
                self.sent += rest.len();
                (!rest.is_empty()).then(|| AnswerPart::Text(self.after_step(&rest)))
            }
            EventKind::Ended { verdict, receipt, .. } => {
                self.disconnect_stop.disarm();
                let answer = self.follower.live_run().client_answer();
                let (verdict, usage) = (verdict.clone(), receipt.usage);
                Some(AnswerPart::Ended(Box::new(AnswerOutcome { verdict, answer, usage })))
            }
            _ => None,
        }
    }

    fn after_step(&mut self, text: &str) -> String {
        if std::mem::take(&mut self.between_steps) { format!("{STEP_SEPARATOR}{text}") } else { text.to_owned() }
    }
}

/// The session that a request binds its conversation to.
pub(crate) fn bound_session(headers: &HeaderMap, body: &Value) -> Result<Option<SessionKey>, ProblemResponse> {
    let of_body = body.pointer("/metadata/session").and_then(Value::as_str);
    let of_header = match headers.get(&SESSION_HEADER).map(|value| std::str::from_utf8(value.as_bytes())) {
        Some(Ok(key)) => Some(key),
        Some(Err(_)) => {
            return Err(problem_response(ErrorCode::InvalidRequest, "the header X-Quell-Session must be UTF-8"));
        }
        None => None,
    };
    Ok(of_header.or(of_body).map(SessionKey::parse).transpose()?)
}

/// A place among the streams of all clients.
pub(crate) fn stream_permit(call: &ApiCall) -> Result<Reservation, ProblemResponse> {
    call.server.budgets().streams.reserve_one().ok_or_else(|| {
        let detail = "all streams are taken; close one, or raise max_connections in [server]";
        problem_response(ErrorCode::TooManyConnections, detail).retry_after(1)
    })
}

/// The headers that name the run of an answer: ours, and the one in which the clients of an API look for it.
pub(crate) fn run_headers(reader: &AnswerReader, id_header: HeaderName) -> [(HeaderName, HeaderValue); 2] {
    let Ok(id) = HeaderValue::from_str(reader.run_id().as_str()) else { unreachable!("a run id is plain ASCII") };
    [(RUN_HEADER, id.clone()), (id_header, id)]
}

impl From<ClientRequestProblem> for ProblemResponse {
    fn from(problem: ClientRequestProblem) -> Self {
        problem_response(ErrorCode::InvalidRequest, problem.to_string()).field(problem.field)
    }
}

impl From<ClientRunError> for ProblemResponse {
    fn from(error: ClientRunError) -> Self {
        if let ClientRunError::Request(problem) = error {
            return problem.into();
        }
        let problem = problem_response(error.code(), error.to_string());
        match &error {
            ClientRunError::Submit(refused) => match retry_seconds(refused) {
                Some(seconds) => problem.retry_after(seconds),
                None => problem,
            },
            _ => problem,
        }
    }
}

/// The answer to a client whose run gave none, because it failed or was stopped.
pub(crate) fn verdict_problem(verdict: &Verdict) -> ProblemResponse {
    match verdict {
        Verdict::Failed { code, message } => problem_response(failure_code(code), message.clone()),
        Verdict::Aborted { reason: StopReason::Shutdown, .. } => {
            problem_response(ErrorCode::ShuttingDown, "the daemon was shut down while it answered; send this again")
        }
        Verdict::Aborted { reason: StopReason::DailyLimit, .. } => {
            let detail =
                "the run was ended because a daily limit is reached; `quell token list` and `quell agents` show them";
            problem_response(ErrorCode::SpendLimit, detail)
        }
        Verdict::Aborted { reason, by } => {
            let by = by.as_ref().map(|by| format!(" by {} ({})", by.principal, by.surface.as_str()));
            let detail = format!("the run was stopped{}: {}", by.unwrap_or_default(), reason.as_str());
            problem_response(ErrorCode::Stopped, detail)
        }
        Verdict::Completed => problem_response(ErrorCode::Internal, "the run ended without an answer"),
    }
}

/// The code of a response whose end the database has not taken.
pub(crate) const UNSTORED: &str = "unstored";

/// The code of a failed run for its client: what a client of a model API can act on.
fn failure_code(code: &str) -> ErrorCode {
    match code {
        UNSTORED => ErrorCode::StoreUnavailable,
        "context_overflow" => ErrorCode::ContextOverflow,
        "forbidden" => ErrorCode::Forbidden,
        "rate_limit" => ErrorCode::ProviderRateLimit,
        "vision" | "refused" | "unsupported" | "request_rejected" => ErrorCode::InvalidRequest,
        "timed_out" | "unreachable" | "truncated" | "bad_stream" | "model_error" => ErrorCode::ProviderFailed,
        _ => ErrorCode::RunFailed,
    }
}
