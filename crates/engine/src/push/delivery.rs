//! Send the notifications of one run to one target: in order, one at a time.

use std::time::Duration;

use quell_kernel::retry::RetryPolicy;
use quell_protocol::RunId;
use quell_scope::clock::Clock;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::{PushNotifier, PushPlace, PushTarget};
use crate::webhook_delivery::{WebhookOutcome, WebhookPatience, WebhookResponse, decide_outcome, send_once};

/// The maximum time for a connection; a reachable machine answers sooner.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum time of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest body. The answer of a run is shorter.
const MAX_BODY_BYTES: usize = 8 * 1024 * 1024;

/// For what happens before the end of a run: it is soon followed by something newer.
const UPDATE_PATIENCE: WebhookPatience = WebhookPatience {
    retry_policy: RetryPolicy { max_retries: 2, base: Duration::from_millis(500), cap: Duration::from_secs(1) },
    max_age_s: i64::MAX,
};
/// For the end of a run: about an hour and a half of one daemon, and a day in total.
const END_PATIENCE: WebhookPatience = WebhookPatience {
    retry_policy: RetryPolicy { max_retries: 16, base: Duration::from_secs(1), cap: Duration::from_secs(600) },
    max_age_s: 24 * 3600,
};

/// One target, while notifications are sent to it.
#[derive(Debug)]
pub struct PushDelivery {
    notifier: PushNotifier,
    /// The number of the target in the database.
    number: i64,
    run: RunId,
    target: PushTarget,
    place: PushPlace,
    is_end_tried: bool,
}

/// Something that a receiver is to know.
pub struct PushNotice<'a> {
    /// The number of the event in its run, or none for the end, which has one id also after a crash.
    pub seq: Option<u64>,
    /// Makes the body; `None` if the receiver need not know of it after all. It is called for each attempt.
    pub body: &'a (dyn Fn() -> Option<Value> + Send + Sync),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushOutcome {
    Delivered,
    GivenUp(String),
    /// The receiver need not know, or may not.
    NotSent,
    /// The target was deleted or replaced, or its run was deleted.
    TargetGone,
    /// Something newer is to be sent.
    Superseded,
}

impl PushDelivery {
    /// Counts as load until it is dropped.
    #[must_use]
    pub fn new(notifier: PushNotifier, number: i64, run: RunId, target: PushTarget, place: PushPlace) -> Self {
        notifier.0.load.send_modify(|load| {
            load.deliveries += 1;
            load.untried += 1;
        });
        Self { notifier, number, run, target, place, is_end_tried: false }
    }

    /// Sends what happened before the end of the run. It is tried a few times, until `superseded` resolves.
    ///
    /// # Cancel safety
    /// If it is dropped, it is unknown whether the receiver has it.
    pub async fn send_update(&self, notice: &PushNotice<'_>, superseded: impl Future<Output = ()>) -> PushOutcome {
        let mut superseded = std::pin::pin!(superseded);
        for attempts in 0.. {
            // waits: in a task of the notifier, like all here.
            let answer = match self.attempt(notice).await {
                Ok(answer) => answer,
                Err(outcome) => return outcome,
            };
            match decide_outcome(answer, attempts, 0, &UPDATE_PATIENCE) {
                WebhookOutcome::Delivered => return PushOutcome::Delivered,
                WebhookOutcome::GivenUp(why) => {
                    tracing::debug!(run = %self.run, seq = notice.seq, why, "a notification is given up");
                    return PushOutcome::GivenUp(why);
                }
                // waits: in a task of the notifier.
                WebhookOutcome::RetryAfter(wait, _) => tokio::select! {
                    () = sleep(wait) => {}
                    () = &mut superseded => return PushOutcome::Superseded,
                },
            }
        }
        unreachable!("the numbers do not end")
    }

    /// Sends the end of the run, and marks the target when its receiver has it or is given up. It is tried until the end
    /// is a day old.
    ///
    /// # Cancel safety
    /// If it is dropped, the next daemon sends the end, perhaps again.
    pub async fn send_end(mut self, notice: &PushNotice<'_>, ended_at_s: i64) -> PushOutcome {
        // waits: in a task of the notifier, like all here.
        let outcome = self.try_end(notice, ended_at_s).await;
        if let PushOutcome::GivenUp(why) = &outcome {
            tracing::warn!(run = %self.run, why, "the end of a run could not be sent to its receiver; it is given up");
        }
        // waits: for the database.
        self.notifier.settle(self.number, &self.run).await;
        outcome
    }

    async fn try_end(&mut self, notice: &PushNotice<'_>, ended_at_s: i64) -> PushOutcome {
        for attempts in 0.. {
            // waits: in a task of the notifier, like all here.
            let answer = match self.attempt(notice).await {
                Ok(answer) => answer,
                Err(outcome) => return outcome,
            };
            let age_s = Clock::wall_seconds().saturating_sub(ended_at_s);
            match decide_outcome(answer, attempts, age_s, &END_PATIENCE) {
                WebhookOutcome::Delivered => return PushOutcome::Delivered,
                WebhookOutcome::GivenUp(why) => return PushOutcome::GivenUp(why),
                WebhookOutcome::RetryAfter(wait, why) => {
                    tracing::debug!(run = %self.run, attempts, why, "the end of a run was not accepted; it is sent again");
                    self.note_end_tried();
                    // waits: in a task of the notifier.
                    sleep(wait).await;
                }
            }
        }
        unreachable!("the numbers do not end")
    }

    /// Sends a notice once.
    ///
    /// # Errors
    /// Why there is nothing to send.
    async fn attempt(&self, notice: &PushNotice<'_>) -> Result<WebhookResponse, PushOutcome> {
        let inner = &self.notifier.0;
        // Before a place among the requests of all, which it would take away from others while it waits.
        let _own_permit = self.place.acquire_request().await;
        // waits: for requests with a timeout. The semaphore is never closed.
        let _permit = inner.requests.acquire().await.ok();
        // Deleted by its owner, on any node, or with the run.
        // waits: for the database.
        if inner.store.push_targets().exists(self.number).await == Ok(false) {
            return Err(PushOutcome::TargetGone);
        }
        let body = (notice.body)().ok_or(PushOutcome::NotSent)?;
        let body = serde_json::to_string(&body).unwrap_or_default();
        if body.len() > MAX_BODY_BYTES {
            tracing::warn!(run = %self.run, bytes = body.len(), "a notification is too long and is not sent");
            return Err(PushOutcome::NotSent);
        }
        let id = match notice.seq {
            Some(seq) => format!("{}:{}:{seq}", self.run, self.number),
            None => format!("{}:{}:end", self.run, self.number),
        };
        let request = match self.build_request(&id, body) {
            Ok(request) => request,
            Err(why) => return Ok(WebhookResponse::RefusedAddress(why)),
        };
        // waits: within the timeout.
        let answer = timeout(REQUEST_TIMEOUT, send_once(request, 0)).await;
        Ok(answer.unwrap_or_else(|_| {
            let limit = REQUEST_TIMEOUT.as_secs();
            WebhookResponse::NoResponse(format!("its receiver did not answer within {limit} s"))
        }))
    }

    /// # Errors
    /// Why nothing can be sent to this target.
    fn build_request(&self, id: &str, body: String) -> Result<reqwest::RequestBuilder, String> {
        let inner = &self.notifier.0;
        let (Some(keys), Some(translator)) = (&inner.keys, inner.translator.get()) else {
            return Err("nothing can be signed".to_owned());
        };
        // Again, because the policy may have changed since it was stored.
        let url = self.target.check(inner.address_policy).map_err(|error| error.to_string())?;
        let client = inner.clients.get_or_build(&url, inner.address_policy, CONNECT_TIMEOUT)?;
        let request = client.post(url).header(CONTENT_TYPE, translator.media_type());
        let mut request = keys.signer.sign_request(request, id, Clock::wall_seconds(), &body);
        if let Some(token) = &self.target.token {
            request = request.header(translator.token_header(), secret_header(token)?);
        }
        if let Some(authentication) = &self.target.authentication {
            let credentials = authentication.credentials.as_ref().map(|text| format!(" {text}")).unwrap_or_default();
            let value = format!("{}{credentials}", authentication.scheme);
            request = request.header(AUTHORIZATION, secret_header(&value)?);
        }
        Ok(request.body(body))
    }

    fn note_end_tried(&mut self) {
        if !std::mem::replace(&mut self.is_end_tried, true) {
            self.notifier.0.load.send_modify(|load| load.untried -= 1);
        }
    }
}

/// A value that no log shows.
fn secret_header(text: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(text).map_err(|_| "a secret has characters that no header may have")?;
    value.set_sensitive(true);
    Ok(value)
}

impl Drop for PushDelivery {
    fn drop(&mut self) {
        self.note_end_tried();
        self.notifier.0.load.send_modify(|load| load.deliveries -= 1);
    }
}
