//! A hook that is a URL: the event as a signed POST. A redirect is no answer, and the daemon's own machine is reached without a
//! proxy.

use std::time::Duration;

use quell_kernel::retry::RetryPolicy;
use quell_protocol::ResourceKind;
use reqwest::header::RETRY_AFTER;
use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use super::command::first_line;
use super::config::shown_url;
use super::signature::Signer;
use super::{Errand, Failure, Inner};
use crate::address::AddressPolicy;
use crate::llm;
use crate::scope::Scope;

/// The longest wait for a connection; a machine that is there answers sooner.
const CONNECT: Duration = Duration::from_secs(5);
/// Of an answer's body this much is read for its reason.
const BODY: usize = 16 * 1024;
/// Between two tries while somebody waits.
const AGAIN: RetryPolicy =
    RetryPolicy { max_retries: u32::MAX, base: Duration::from_millis(100), cap: Duration::from_secs(1) };

/// Where webhooks go.
pub(super) struct Receiver {
    pub(super) url: Url,
    client: Client,
    signer: Signer,
}

/// One webhook.
#[derive(Debug, Clone, Copy)]
pub(super) struct Letter<'a> {
    pub(super) event: &'a str,
    pub(super) id: &'a str,
    pub(super) body: &'a str,
    /// So many bytes of an answer that agrees are read; nothing when it does not matter what it says.
    pub(super) wanted: usize,
}

/// What a receiver answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// 2xx, with the beginning of its body: at most a byte more than was wanted.
    Taken(Vec<u8>),
    /// Anything else.
    Refused {
        status: StatusCode,
        /// Its words, where it sent `{"reason": ...}`.
        reason: Option<String>,
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// Nothing that can be read.
    None(String),
}

impl Receiver {
    pub(super) fn new(url: Url, limit: Duration, signer: Signer) -> Result<Self, String> {
        let client = llm::http_client(&url, AddressPolicy::Any, limit.min(CONNECT))?;
        Ok(Self { url, client, signer })
    }
}

/// Sends a webhook once, and waits at most `limit` for its answer.
///
/// # Cancel safety
/// Safe: dropping it closes the connection; whether the receiver took it is not known then.
pub(super) async fn post(hooks: &Inner, receiver: &Receiver, letter: Letter<'_>, limit: Duration) -> Answer {
    let request = receiver.client.post(receiver.url.clone());
    let request = receiver.signer.seal(request, (letter.event, letter.id), letter.body.to_owned());
    let exchange = async {
        // waits: within the limit below; whoever calls this for a run races it against the run's scope.
        match request.send().await {
            Ok(response) => read(response, letter.wanted).await,
            Err(error) => Answer::None(words_of(error)),
        }
    };
    // waits: within the same limit.
    let answer = timeout(limit, exchange).await;
    answer
        .unwrap_or_else(|_| Answer::None(format!("its receiver did not answer within {} ms", hooks.limit.as_millis())))
}

async fn read(mut response: Response, wanted: usize) -> Answer {
    let status = response.status();
    if status.is_success() {
        // waits: within the limit of `post`.
        return match beginning(&mut response, wanted).await {
            Ok(body) => Answer::Taken(body),
            Err(error) => Answer::None(words_of(error)),
        };
    }
    let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    // waits: within the limit of `post`. A body that breaks off has no reason in it.
    let body = beginning(&mut response, BODY).await.unwrap_or_default();
    let refusal: Option<Refusal> = serde_json::from_slice(&body).ok();
    let reason = refusal.and_then(|refusal| first_line(&refusal.reason));
    Answer::Refused { status, reason, retry_after: seconds.map(Duration::from_secs) }
}

/// The beginning of a body: a byte more than `most` shows that it is longer.
async fn beginning(response: &mut Response, most: usize) -> reqwest::Result<Vec<u8>> {
    let mut body = Vec::new();
    while most > 0 && body.len() <= most {
        // waits: within the limit of `post`.
        let Some(chunk) = response.chunk().await? else { break };
        let room = (most + 1 - body.len()).min(chunk.len());
        body.extend_from_slice(chunk.get(..room).unwrap_or_default());
    }
    Ok(body)
}

#[derive(Deserialize)]
struct Refusal {
    reason: String,
}

/// Asks a receiver, and answers the beginning of what it says when it agrees. Tried again while there is time when nobody
/// answers or the receiver is in trouble.
///
/// # Cancel safety
/// Safe: dropping it closes the connection.
pub(super) async fn ask(
    hooks: &Inner,
    receiver: &Receiver,
    errand: &Errand,
    wanted: usize,
    scope: &Scope,
) -> Result<Vec<u8>, Failure> {
    let held = scope.hold(ResourceKind::HttpRequest, shown_url(&receiver.url));
    let until = Instant::now() + hooks.limit;
    let letter = Letter { event: errand.body.event.word(), id: &errand.body.id, body: &errand.json, wanted };
    for attempt in 1.. {
        // waits: within the limit of all; `Hooks::ask` and `Hooks::ask_message` race it against the scope.
        let answer = post(hooks, receiver, letter, until - Instant::now()).await;
        let (failure, retry_after) = match answer {
            Answer::Taken(body) => {
                held.release("finished");
                return Ok(body);
            }
            Answer::Refused { status, reason, .. } if status.is_client_error() => {
                held.release("finished");
                return Err(Failure { said: reason, how: format!("its receiver answered {status}") });
            }
            Answer::Refused { status, retry_after, .. } if status.is_server_error() => {
                (format!("its receiver answered {status}"), retry_after)
            }
            Answer::Refused { status, .. } => {
                held.release("finished");
                return Err(Failure { said: None, how: format!("its receiver answered {status}, which is no answer") });
            }
            Answer::None(how) => (how, None),
        };
        let wait = AGAIN.delay(attempt, retry_after).unwrap_or_default();
        if Instant::now() + wait >= until {
            held.release("failed");
            return Err(Failure { said: None, how: failure });
        }
        // waits: within the limit; the same.
        sleep(wait).await;
    }
    unreachable!("the numbers do not end")
}

/// The cause of a failed exchange, without the URL: that may hold a token of its receiver's.
fn words_of(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    format!("its receiver cannot be reached: {cause}")
}
