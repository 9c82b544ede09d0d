//! One call on the wire: attempts, back-off, and the answer's beginning. Every wait is raced against the run's scope, and a
//! response lives inside the race, so a stop closes its socket by dropping it. How an answer is read is in `receive`.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use quell_kernel::view::Shown;
use quell_protocol::{ResourceKind, Usage};
use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use tokio::time::{sleep, timeout};

use super::answer::{Partial, estimate_with};
use super::error::{ModelError, Wait};
use super::failure::{Again, Failure};
use super::provider::Provider;
use super::report::Report;
use super::retry_after::retry_after;
use super::{Model, ModelAnswer, ModelRequest, ModelSink};
use crate::scope::{Cancelled, Point, Scope};

/// How much of an error answer is read, and for how long: its reason stands at its beginning.
const MAX_ERROR_BYTES: usize = 64 * 1024;
const ERROR_WAIT: Duration = Duration::from_secs(10);

/// One call of one model.
#[derive(Clone, Copy)]
pub(super) struct Exchange<'a> {
    pub(super) model: &'a Model,
    pub(super) provider: &'a Provider,
    pub(super) scope: &'a Scope,
}

/// How far a call has come.
struct Progress {
    /// What is sent, again and again.
    body: Bytes,
    input_tokens: u64,
    stage: Stage,
    partial: Partial,
}

/// What an attempt reached; it decides what the attempt is taken to have cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing left.
    Unsent,
    /// The request left, no answer yet.
    Sent,
    /// The provider answered with an error.
    Refused,
    /// The provider answers.
    Answering,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(model: &'a Model, scope: &'a Scope) -> Self {
        Self { model, provider: &model.provider, scope }
    }

    /// Attempts until one succeeds, the rule of retries ends, or the scope is cancelled.
    pub(super) async fn run(
        &self,
        request: &ModelRequest<'_>,
        sink: &mut dyn ModelSink,
    ) -> Result<ModelAnswer, ModelError> {
        let mut progress = Progress::new(self.body(request)?, request.conversation.pictures);
        let mut number = 1;
        loop {
            let failure = match self.attempt(number, &mut progress, sink).await {
                Ok(()) => return Ok(progress.partial.complete()),
                Err(failure) if request.conversation.pictures.count > 0 => failure.of_pictures(),
                Err(failure) => failure,
            };
            // An error that surfaces after the stop is part of the stop.
            if self.scope.is_cancelled() {
                return Err(ModelError::Cancelled);
            }
            let Again::After(wish) = failure.again else { return Err(failure.error) };
            let Some(delay) = self.provider.retries.delay(number, wish) else { return Err(failure.error) };
            let why = failure.error.to_string();
            tracing::debug!(model = %self.model.name, attempt = number, ?delay, %why, "model call is tried again");
            sink.retrying(number, delay, &why);
            self.back_off(number, delay).await?;
            number += 1;
        }
    }

    fn body(&self, request: &ModelRequest<'_>) -> Result<String, ModelError> {
        let body = self.provider.dialect.body(self.provider, self.model.id(), request);
        body.map_err(|error| ModelError::Rejected {
            provider: self.provider.name.clone(),
            status: None,
            message: format!("nothing was sent, because the request cannot be written as JSON: {error}"),
            retryable: false,
        })
    }

    async fn back_off(&self, number: u32, delay: Duration) -> Result<(), Cancelled> {
        let label = format!("{}: wait after attempt {number}", self.model.name);
        let held = self.scope.hold(ResourceKind::Timer, label);
        self.scope.race(Point::ModelBackoff, sleep(delay)).await?;
        held.release("finished");
        Ok(())
    }

    /// One attempt, in the ledger from before it leaves until its response is dropped.
    async fn attempt(&self, number: u32, progress: &mut Progress, sink: &mut dyn ModelSink) -> Result<(), Failure> {
        progress.stage = Stage::Unsent;
        progress.partial = Partial::default();
        let held = self.scope.hold(ResourceKind::ModelRequest, format!("{} (attempt {number})", self.model.name));
        // The response is a local of this future: when that is done or dropped, it is gone, and only then `held`.
        let outcome = self.exchange(progress, sink).await;
        match &outcome {
            Ok(()) => held.release("finished"),
            Err(Failure { error: ModelError::Cancelled, .. }) => drop(held),
            Err(_) => held.release("failed"),
        }
        match progress.usage(outcome.as_ref().err()) {
            Some(usage) => sink.usage(usage),
            None if progress.stage != Stage::Unsent => sink.cost_nothing(),
            None => {}
        }
        outcome
    }

    async fn exchange(&self, progress: &mut Progress, sink: &mut dyn ModelSink) -> Result<(), Failure> {
        let response = self.send(progress, sink).await?;
        if !response.status().is_success() {
            progress.stage = Stage::Refused;
            return Err(self.refusal(response).await?);
        }
        progress.stage = Stage::Answering;
        let received = match content_type(&response).as_str() {
            "text/html" => Err(self.provider.unreadable("a web page")),
            // waits: for the next bytes, raced in `receive`.
            "application/json" => self.receive_whole(response, &mut progress.partial, sink).await,
            // waits: for the next bytes, too.
            _ => self.receive(response, &mut progress.partial, sink).await,
        };
        // An answer that said nothing but that it may be asked for again is a refusal.
        if matches!(received, Err(Failure { again: Again::After(_), .. })) {
            progress.stage = Stage::Refused;
        }
        received
    }

    async fn send(&self, progress: &mut Progress, sink: &mut dyn ModelSink) -> Result<Response, Failure> {
        let provider = self.provider;
        let request = provider.client.post(provider.endpoint.clone()).headers(provider.headers.clone());
        let request = request.body(progress.body.clone());
        let sending = async {
            progress.stage = Stage::Sent;
            sink.input_sent(progress.input_tokens);
            // waits: raced below, as `sending`.
            timeout(provider.header_timeout, request.send()).await
        };
        match self.scope.race(Point::ModelSend, sending).await? {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(provider.no_answer(&error)),
            Err(_elapsed) => Err(provider.no_headers()),
        }
    }

    /// Reads the reason of an error answer.
    async fn refusal(&self, mut response: Response) -> Result<Failure, Cancelled> {
        let status = response.status().as_u16();
        let wish = retry_after(response.headers(), Timestamp::now());
        let mut body = Vec::new();
        let reading = async {
            // waits: raced below, as `reading`.
            while body.len() < MAX_ERROR_BYTES
                && let Ok(Some(chunk)) = response.chunk().await
            {
                body.extend_from_slice(&chunk);
            }
        };
        // Too slow or broken: what has come of the reason is better than none.
        let _ = self.scope.race(Point::ModelError, timeout(ERROR_WAIT, reading)).await?;
        let report = Report::from_body(&String::from_utf8_lossy(&body));
        Ok(self.provider.refused(status, &report, wish))
    }
}

impl Progress {
    fn new(body: String, pictures: Shown) -> Self {
        let input_tokens = estimate_with(&body, pictures);
        Self { body: Bytes::from(body), input_tokens, stage: Stage::Unsent, partial: Partial::default() }
    }

    /// What the attempt cost: the provider's count if the answer is complete, else an estimate; nothing when the provider
    /// refused, or when nothing reached it.
    fn usage(&self, error: Option<&Failure>) -> Option<Usage> {
        let cut = matches!(
            error.map(|failure| &failure.error),
            Some(ModelError::Cancelled | ModelError::TimedOut { what: Wait::Headers, .. })
        );
        match (self.stage, self.partial.usage) {
            (Stage::Answering, Some(begun)) if begun.estimated => {
                let output_tokens = begun.output_tokens.max(self.partial.estimate());
                Some(Usage { output_tokens, ..begun })
            }
            (Stage::Answering, Some(counted)) => Some(Usage { estimated: error.is_some(), ..counted }),
            (Stage::Answering, None) => Some(self.estimate()),
            (Stage::Sent, _) if cut => Some(self.estimate()),
            (Stage::Sent | Stage::Unsent | Stage::Refused, _) => None,
        }
    }

    fn estimate(&self) -> Usage {
        Usage { input_tokens: self.input_tokens, output_tokens: self.partial.estimate(), estimated: true }
    }
}

fn content_type(response: &Response) -> String {
    let value = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}
