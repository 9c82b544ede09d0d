//! Send one signed webhook and read the response.
//!
//! Redirects are not followed, and the daemon's own machine is reached without a proxy.

use std::time::Duration;

use quell_kernel::retry::RetryPolicy;
use quell_net::AddressPolicy;
use quell_protocol::ResourceKind;
use quell_scope::{Release, Scope};
use reqwest::Client;
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use super::command::first_line;
use super::config::redacted_url;
use super::signature::WebhookSigner;
use super::{HookFailure, HookJob, HooksInner};
use crate::webhook_delivery::{WebhookResponse, send_once};

/// The maximum time for a connection; a reachable machine answers sooner.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The delays between attempts while a caller waits.
const RETRY_POLICY: RetryPolicy =
    RetryPolicy { max_retries: u32::MAX, base: Duration::from_millis(100), cap: Duration::from_secs(1) };

pub(super) struct WebhookReceiver {
    pub(super) url: Url,
    client: Client,
    signer: WebhookSigner,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct WebhookRequest<'a> {
    pub(super) event: &'a str,
    pub(super) id: &'a str,
    pub(super) body: &'a str,
    /// How much of a 2xx body is read; 0 if its content does not matter.
    pub(super) max_answer_bytes: usize,
}

impl WebhookReceiver {
    pub(super) fn new(url: Url, limit: Duration, signer: WebhookSigner) -> Result<Self, String> {
        let client = quell_net::build_http_client(&url, AddressPolicy::Any, limit.min(CONNECT_TIMEOUT))?;
        Ok(Self { url, client, signer })
    }
}

/// Sends a webhook once, and waits at most `limit` for the response.
///
/// # Cancel safety
/// Safe: dropping it closes the connection; it is then unknown whether the receiver accepted the webhook.
pub(super) async fn send_webhook(
    hooks: &HooksInner,
    receiver: &WebhookReceiver,
    webhook: WebhookRequest<'_>,
    limit: Duration,
) -> WebhookResponse {
    let request = receiver.client.post(receiver.url.clone());
    let request = receiver.signer.sign_request(request, webhook.event, webhook.id, webhook.body.to_owned());
    // waits: within the limit; a caller for a run races it against the run's scope.
    let answer = timeout(limit, send_once(request, webhook.max_answer_bytes)).await;
    answer.unwrap_or_else(|_| {
        WebhookResponse::NoResponse(format!("its receiver did not answer within {} ms", hooks.timeout.as_millis()))
    })
}

/// Sends a webhook and returns the beginning of a 2xx body. It is retried within the timeout when there is no response
/// or a server error.
///
/// # Cancel safety
/// Safe: dropping it closes the connection.
pub(super) async fn send_until_answered(
    hooks: &HooksInner,
    receiver: &WebhookReceiver,
    job: &HookJob,
    max_answer_bytes: usize,
    scope: &Scope,
) -> Result<Vec<u8>, HookFailure> {
    let held = scope.hold(ResourceKind::HttpRequest, redacted_url(&receiver.url));
    let until = Instant::now() + hooks.timeout;
    let request =
        WebhookRequest { event: job.body.event.as_str(), id: &job.body.id, body: &job.json, max_answer_bytes };
    for attempt in 1.. {
        // waits: within the timeout of the hook; `Hooks::call_hooks` and `Hooks::filter_message` race it against the scope.
        let answer = send_webhook(hooks, receiver, request, until - Instant::now()).await;
        let (failure, retry_after) = match answer {
            WebhookResponse::Accepted(body) => {
                held.release(Release::Finished);
                return Ok(body);
            }
            WebhookResponse::Rejected { status, reason, .. } if status.is_client_error() => {
                held.release(Release::Finished);
                return Err(HookFailure {
                    stated_reason: reason.and_then(|reason| first_line(&reason)),
                    description: format!("its receiver answered {status}"),
                });
            }
            WebhookResponse::Rejected { status, retry_after, .. } if status.is_server_error() => {
                (format!("its receiver answered {status}"), retry_after)
            }
            WebhookResponse::Rejected { status, .. } => {
                held.release(Release::Finished);
                return Err(HookFailure {
                    stated_reason: None,
                    description: format!("its receiver answered {status}, which is no answer"),
                });
            }
            WebhookResponse::NoResponse(how) | WebhookResponse::RefusedAddress(how) => (how, None),
        };
        let wait = RETRY_POLICY.delay(attempt, retry_after).unwrap_or_default();
        if Instant::now() + wait >= until {
            held.release(Release::Failed);
            return Err(HookFailure { stated_reason: None, description: failure });
        }
        // waits: within the timeout of the hook.
        sleep(wait).await;
    }
    unreachable!("the numbers do not end")
}
