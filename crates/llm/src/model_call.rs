//! Run one model call: attempts, back-off, ledger entries and the usage of each attempt; every wait is raced against
//! the run's scope.
//!
//! A response lives inside the raced future, so a stop closes its socket by dropping it. Reading an answer is in
//! `response`.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use quell_kernel::model_chain::AnswerProgress;
use quell_kernel::prompt::ImageUsage;
use quell_protocol::{ResourceKind, Usage};
use quell_scope::{Cancelled, Point, Release, Scope};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Response, Url};
use tokio::time::{sleep, timeout};

use super::attempt_failure::{AttemptFailure, RetryDecision};
use super::dialect::EncodedRequest;
use super::error::{ModelError, ModelTimeout};
use super::partial_answer::{PartialAnswer, estimate_body_tokens};
use super::provider::Provider;
use super::retry_after::retry_after;
use super::{ModelAnswer, ModelCallRequest, ModelHandle, ModelSink};

/// How much of an error body is read, and for how long; the reason is at its start.
const MAX_ERROR_BYTES: usize = 64 * 1024;
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy)]
pub(super) struct ModelCall<'a> {
    pub(super) model: &'a ModelHandle,
    pub(super) provider: &'a Provider,
    pub(super) scope: &'a Scope,
}

/// The state of a call across its attempts.
pub(super) struct CallProgress<'a> {
    pub(super) sink: &'a mut dyn ModelSink,
    pub(super) partial: PartialAnswer,
    url: Url,
    /// The request body, the same for each attempt.
    body: Bytes,
    input_tokens: u64,
    attempt_stage: AttemptStage,
    answer: AnswerProgress,
}

/// How far an attempt came. This decides the estimate of its cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttemptStage {
    Unsent,
    /// The request was sent, no answer yet.
    Sent,
    /// The provider answered with an error.
    Refused,
    /// The provider has begun its answer.
    Answering,
}

impl<'a> ModelCall<'a> {
    pub(super) fn new(model: &'a ModelHandle, scope: &'a Scope) -> Self {
        Self { model, provider: &model.provider, scope }
    }

    /// Attempts the request until one succeeds, the retry policy ends, or the scope is cancelled.
    pub(super) async fn run(
        &self,
        request: &ModelCallRequest<'_>,
        sink: &mut dyn ModelSink,
    ) -> Result<ModelAnswer, ModelError> {
        let mut progress = CallProgress::new(self.model.encode_request(request)?, request.conversation.pictures, sink);
        let mut number = 1;
        loop {
            let failure = match self.run_attempt(number, &mut progress).await {
                Ok(()) => {
                    progress.send_citation_links(self.scope);
                    return Ok(progress.partial.into_answer());
                }
                Err(failure) if request.conversation.pictures.count > 0 => failure.classify_picture_refusal(),
                Err(failure) => failure,
            };
            // An error that arrives after the stop is reported as the stop.
            if self.scope.is_cancelled() {
                return Err(ModelError::Cancelled);
            }
            let RetryDecision::After(server_delay) = failure.retry else { return Err(failure.error) };
            let Some(delay) = self.model.retry_policy.delay(number, server_delay) else { return Err(failure.error) };
            let why = failure.error.to_string();
            tracing::debug!(model = %self.model.name, attempt = number, ?delay, %why, "model call is tried again");
            progress.sink.on_retry(number, delay, &why);
            self.back_off(number, delay).await?;
            number += 1;
        }
    }

    async fn back_off(&self, number: u32, delay: Duration) -> Result<(), Cancelled> {
        let label = format!("{}: wait after attempt {number}", self.model.name);
        let held = self.scope.hold(ResourceKind::Timer, label);
        self.scope.race(Point::ModelBackoff, sleep(delay)).await?;
        held.release(Release::Finished);
        Ok(())
    }

    /// One attempt. The ledger holds it from before it is sent until its response is dropped.
    async fn run_attempt(&self, number: u32, progress: &mut CallProgress<'_>) -> Result<(), AttemptFailure> {
        progress.attempt_stage = AttemptStage::Unsent;
        progress.partial = PartialAnswer::default();
        let held = self.scope.hold(ResourceKind::ModelRequest, format!("{} (attempt {number})", self.model.name));
        // The response is a local variable of this future, so it is dropped before `held`.
        let outcome = self.send_and_receive(progress).await;
        match &outcome {
            Ok(()) => held.release(Release::Finished),
            Err(AttemptFailure { error: ModelError::Cancelled, .. }) => drop(held),
            Err(_) => held.release(Release::Failed),
        }
        match progress.attempt_usage(outcome.as_ref().err()) {
            Some(usage) => progress.sink.on_usage(usage),
            None if progress.attempt_stage != AttemptStage::Unsent => progress.sink.on_request_not_billed(),
            None => {}
        }
        outcome
    }

    async fn send_and_receive(&self, progress: &mut CallProgress<'_>) -> Result<(), AttemptFailure> {
        let provider = self.provider;
        let request = provider.client.post(progress.url.clone()).headers(provider.headers.clone());
        let request = request.body(progress.body.clone());
        let sending = async {
            progress.attempt_stage = AttemptStage::Sent;
            progress.sink.on_request_sent(progress.input_tokens);
            // waits: raced below, as `sending`.
            timeout(provider.header_timeout, request.send()).await
        };
        let response = match self.scope.race(Point::ModelSend, sending).await? {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(provider.send_failure(&progress.url, &error)),
            Err(_elapsed) => return Err(provider.header_timeout_failure()),
        };
        if !response.status().is_success() {
            progress.attempt_stage = AttemptStage::Refused;
            return Err(self.read_refusal(response).await?);
        }
        progress.attempt_stage = AttemptStage::Answering;
        let received = match content_type(&response).as_str() {
            "text/html" => Err(self.provider.unreadable_failure("a web page")),
            // waits: for the next bytes, raced in `response`.
            "application/json" => self.read_whole_response(response, progress).await,
            // waits: for the next bytes, raced in `response`.
            _ => self.read_stream(response, progress).await,
        };
        // An answer that held only a retryable error is a refusal.
        if matches!(received, Err(AttemptFailure { retry: RetryDecision::After(_), .. })) {
            progress.attempt_stage = AttemptStage::Refused;
        }
        received
    }

    /// Reads the reason of an error response.
    async fn read_refusal(&self, mut response: Response) -> Result<AttemptFailure, Cancelled> {
        let status = response.status().as_u16();
        let server_delay = retry_after(response.headers(), Timestamp::now());
        let mut body = Vec::new();
        let reading = async {
            // waits: raced below, as `reading`.
            while body.len() < MAX_ERROR_BYTES
                && let Ok(Some(chunk)) = response.chunk().await
            {
                body.extend_from_slice(&chunk);
            }
        };
        // After a timeout or a broken connection, the part of the reason that arrived is used.
        let _ = self.scope.race(Point::ModelError, timeout(ERROR_BODY_TIMEOUT, reading)).await?;
        let report = self.provider.dialect.parse_error(&String::from_utf8_lossy(&body));
        Ok(self.provider.refusal_failure(status, &report, server_delay))
    }
}

impl<'a> CallProgress<'a> {
    fn new(request: EncodedRequest, pictures: ImageUsage, sink: &'a mut dyn ModelSink) -> Self {
        let EncodedRequest { url, body } = request;
        let input_tokens = estimate_body_tokens(&body, pictures);
        let (body, partial) = (Bytes::from(body), PartialAnswer::default());
        Self {
            sink,
            partial,
            url,
            body,
            input_tokens,
            attempt_stage: AttemptStage::Unsent,
            answer: AnswerProgress::NotBegun,
        }
    }

    /// Passes on the pieces of the answer that came since the last call.
    pub(super) fn send_deltas(&mut self) {
        if self.answer == AnswerProgress::NotBegun && !self.partial.is_empty() {
            self.answer = AnswerProgress::Begun;
            self.sink.on_answer_begun();
        }
        self.partial.send_deltas(self.sink);
    }

    /// Passes on the links below a complete answer; nothing reaches the sink after a stop.
    fn send_citation_links(&mut self, scope: &Scope) {
        if !scope.is_cancelled() {
            self.partial.append_citation_links();
            self.send_deltas();
        }
    }

    /// The cost of the attempt: the provider's count if the answer is complete, otherwise an estimate. None when the
    /// provider refused the request or did not receive it.
    fn attempt_usage(&self, error: Option<&AttemptFailure>) -> Option<Usage> {
        let cut = matches!(
            error.map(|failure| &failure.error),
            Some(ModelError::Cancelled | ModelError::TimedOut { timeout: ModelTimeout::Headers, .. })
        );
        match (self.attempt_stage, self.partial.usage) {
            (AttemptStage::Answering, Some(begun)) if begun.estimated => {
                let output_tokens = begun.output_tokens.max(self.partial.estimate_tokens());
                Some(Usage { output_tokens, ..begun })
            }
            (AttemptStage::Answering, Some(counted)) => Some(Usage { estimated: error.is_some(), ..counted }),
            (AttemptStage::Answering, None) => Some(self.estimated_usage()),
            (AttemptStage::Sent, _) if cut => Some(self.estimated_usage()),
            (AttemptStage::Sent | AttemptStage::Unsent | AttemptStage::Refused, _) => None,
        }
    }

    fn estimated_usage(&self) -> Usage {
        Usage {
            input_tokens: self.input_tokens,
            output_tokens: self.partial.estimate_tokens(),
            cached_tokens: 0,
            estimated: true,
        }
    }
}

fn content_type(response: &Response) -> String {
    let value = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}
