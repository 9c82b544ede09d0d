//! Send one webhook, read the response, and decide what becomes of the webhook.

use std::time::Duration;

use quell_kernel::retry::RetryPolicy;
use quell_net::{AddressRefused, error_sources};
use reqwest::header::RETRY_AFTER;
use reqwest::{RequestBuilder, Response, StatusCode};
use serde::Deserialize;

/// How much of an error body is read for its reason.
const MAX_ERROR_BODY_BYTES: usize = 16 * 1024;

const SECONDS_PER_DAY: i64 = 24 * 3600;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WebhookResponse {
    /// 2xx, with the beginning of its body: at most one byte more than requested.
    Accepted(Vec<u8>),
    Rejected {
        status: StatusCode,
        /// The reason, if the body is `{"reason": ...}`.
        reason: Option<String>,
        /// The delay that the receiver asks for.
        retry_after: Option<Duration>,
    },
    /// No response, or an unreadable one.
    NoResponse(String),
    /// Nothing was sent, because the receiver is at an address that may not be reached.
    RefusedAddress(String),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WebhookOutcome {
    Delivered,
    GivenUp(String),
    RetryAfter(Duration, String),
}

/// How long a webhook is tried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WebhookPatience {
    pub(crate) retry_policy: RetryPolicy,
    /// The age at which it is given up.
    pub(crate) max_age_s: i64,
}

/// Sends a request once, and reads at most `max_answer_bytes` and one more of a 2xx body. The caller limits the time.
///
/// # Cancel safety
/// Safe: dropping it closes the connection; it is then unknown whether the receiver accepted the webhook.
pub(crate) async fn send_once(request: RequestBuilder, max_answer_bytes: usize) -> WebhookResponse {
    // waits: within the limit of the caller, who races it against the scope of a run if one waits for it.
    match request.send().await {
        Ok(response) => read_response(response, max_answer_bytes).await,
        Err(error) => failed_exchange(error),
    }
}

async fn read_response(mut response: Response, max_answer_bytes: usize) -> WebhookResponse {
    let status = response.status();
    if status.is_success() {
        // waits: within the limit of `send_once`.
        return match read_body_prefix(&mut response, max_answer_bytes).await {
            Ok(body) => WebhookResponse::Accepted(body),
            Err(error) => failed_exchange(error),
        };
    }
    let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    // waits: within the limit of `send_once`. A body that breaks off gives no reason.
    let body = read_body_prefix(&mut response, MAX_ERROR_BODY_BYTES).await.unwrap_or_default();
    let error_body: Option<WebhookErrorBody> = serde_json::from_slice(&body).ok();
    let reason = error_body.map(|refusal| refusal.reason);
    WebhookResponse::Rejected { status, reason, retry_after: seconds.map(Duration::from_secs) }
}

/// The beginning of a body: one byte more than `max_bytes` shows that it is longer.
async fn read_body_prefix(response: &mut Response, max_bytes: usize) -> reqwest::Result<Vec<u8>> {
    let mut body = Vec::new();
    while max_bytes > 0 && body.len() <= max_bytes {
        // waits: within the limit of `send_once`.
        let Some(chunk) = response.chunk().await? else { break };
        let room = (max_bytes + 1 - body.len()).min(chunk.len());
        body.extend_from_slice(chunk.get(..room).unwrap_or_default());
    }
    Ok(body)
}

#[derive(Deserialize)]
struct WebhookErrorBody {
    reason: String,
}

/// The cause of a failed exchange, without the URL, which may contain a token.
fn failed_exchange(error: reqwest::Error) -> WebhookResponse {
    let error = error.without_url();
    let cause = error_sources(&error).last().map_or_else(|| error.to_string(), ToString::to_string);
    if error_sources(&error).any(|cause| cause.is::<AddressRefused>()) {
        return WebhookResponse::RefusedAddress(cause);
    }
    WebhookResponse::NoResponse(format!("its receiver cannot be reached: {cause}"))
}

/// The outcome for a webhook that failed `attempts` times before and is `age_s` seconds old.
pub(crate) fn decide_outcome(
    answer: WebhookResponse,
    attempts: u32,
    age_s: i64,
    patience: &WebhookPatience,
) -> WebhookOutcome {
    let (why, retry_after) = match answer {
        WebhookResponse::Accepted(_) => return WebhookOutcome::Delivered,
        WebhookResponse::Rejected { status: StatusCode::GONE, .. } => {
            return WebhookOutcome::GivenUp("its receiver is gone".to_owned());
        }
        WebhookResponse::RefusedAddress(why) => return WebhookOutcome::GivenUp(why),
        WebhookResponse::Rejected { status, retry_after, .. } => {
            (format!("its receiver answered {status}"), retry_after)
        }
        WebhookResponse::NoResponse(why) => (why, None),
    };
    if age_s >= patience.max_age_s {
        return WebhookOutcome::GivenUp(format!("{why}, for {} days", patience.max_age_s / SECONDS_PER_DAY));
    }
    match patience.retry_policy.delay(attempts.saturating_add(1), retry_after) {
        Some(wait) => WebhookOutcome::RetryAfter(wait, why),
        None => WebhookOutcome::GivenUp(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: WebhookPatience = WebhookPatience {
        retry_policy: RetryPolicy { max_retries: 500, base: Duration::from_secs(1), cap: Duration::from_secs(600) },
        max_age_s: 3 * SECONDS_PER_DAY,
    };

    fn rejection(status: StatusCode) -> WebhookResponse {
        WebhookResponse::Rejected { status, reason: None, retry_after: None }
    }

    fn decide(answer: WebhookResponse, attempts: u32, age_s: i64) -> WebhookOutcome {
        decide_outcome(answer, attempts, age_s, &PATIENCE)
    }

    fn retry_delay(outcome: WebhookOutcome) -> Duration {
        match outcome {
            WebhookOutcome::RetryAfter(wait, _) => wait,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_webhook_is_tried_after_longer_and_longer_waits_until_it_is_too_old() {
        let accepted = decide(WebhookResponse::Accepted(Vec::new()), 3, PATIENCE.max_age_s + 1);
        assert_eq!(accepted, WebhookOutcome::Delivered);
        let waits =
            [0, 1, 5, 30].map(|attempts| retry_delay(decide(rejection(StatusCode::NOT_FOUND), attempts, 10)).as_secs());
        assert_eq!(waits, [1, 2, 32, 600]);
        let dead = || WebhookResponse::NoResponse("dead".to_owned());
        assert_eq!(retry_delay(decide(dead(), 0, PATIENCE.max_age_s - 1)).as_secs(), 1);
        let too_old = decide(rejection(StatusCode::BAD_GATEWAY), 400, PATIENCE.max_age_s);
        assert!(matches!(too_old, WebhookOutcome::GivenUp(_)));
        assert_eq!(decide(dead(), 500, 0), WebhookOutcome::GivenUp("dead".to_owned()));
        let with_retry_after = WebhookResponse::Rejected {
            status: StatusCode::TOO_MANY_REQUESTS,
            reason: None,
            retry_after: Some(Duration::from_secs(7)),
        };
        assert_eq!(retry_delay(decide(with_retry_after, 0, 0)).as_secs(), 7);
    }

    #[test]
    fn a_receiver_that_is_gone_or_may_not_be_reached_gets_nothing_again() {
        let gone = decide(rejection(StatusCode::GONE), 0, 0);
        assert_eq!(gone, WebhookOutcome::GivenUp("its receiver is gone".to_owned()));
        let refused = decide(WebhookResponse::RefusedAddress("private".to_owned()), 0, 0);
        assert_eq!(refused, WebhookOutcome::GivenUp("private".to_owned()));
    }
}
