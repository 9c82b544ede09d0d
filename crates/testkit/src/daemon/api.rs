//! HTTP client for the API: any method, any JSON, a bearer token, none of Quell's types.

use std::sync::Once;
use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};

use super::events::TestRunEventStream;
use crate::WAIT_TIMEOUT;
use crate::or_fail::OrFail as _;

/// A client without proxy and pool: each request has its own connection, so that the daemon sees a dropped one. It knows
/// no certificates: a debug build reads those of the system slowly.
pub fn http_client() -> Client {
    install_tls_provider();
    let builder = Client::builder().tls_certs_only([]).no_proxy().pool_max_idle_per_host(0);
    builder.build().or_fail("no HTTP client")
}

pub(crate) fn install_tls_provider() {
    static PROVIDER: Once = Once::new();
    // Another part of the test process may have installed a provider; either works.
    PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

#[derive(Debug, Clone, PartialEq)]
pub struct TestApiResponse {
    pub status: u16,
    pub content_type: String,
    /// Text if it is not JSON, null if it is empty.
    pub body: Value,
}

impl TestApiResponse {
    /// The body; fails if the status is another one.
    pub fn expect_status(self, status: u16) -> Value {
        assert_eq!(self.status, status, "unexpected status with {:#}", self.body);
        self.body
    }

    /// The `code` of a problem body.
    pub fn problem_code(&self) -> Option<&str> {
        self.body.get("code").and_then(Value::as_str)
    }
}

/// API client with one token.
#[derive(Debug, Clone)]
pub struct TestApiClient {
    client: Client,
    url: String,
    token: String,
}

impl TestApiClient {
    /// An empty token sends no header.
    pub fn new(url: &str, token: &str) -> Self {
        Self { client: http_client(), url: url.into(), token: token.into() }
    }

    pub fn with_token(&self, token: &str) -> Self {
        Self { token: token.into(), ..self.clone() }
    }

    pub async fn get(&self, path: &str) -> TestApiResponse {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> TestApiResponse {
        self.send(self.request(Method::POST, path).json(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> TestApiResponse {
        self.send(self.request(Method::PUT, path).json(body)).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> TestApiResponse {
        self.send(self.request(Method::PATCH, path).json(body)).await
    }

    pub async fn delete(&self, path: &str) -> TestApiResponse {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// A request with the token, for other bodies and headers.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url));
        if self.token.is_empty() { request } else { request.bearer_auth(&self.token) }
    }

    pub async fn send(&self, request: RequestBuilder) -> TestApiResponse {
        let answered = async {
            let response = request.send().await?;
            let status = response.status().as_u16();
            let kind = response.headers().get("content-type").and_then(|kind| kind.to_str().ok());
            let content_type = kind.unwrap_or_default().to_owned();
            let text = response.text().await?;
            let body = match serde_json::from_str(&text) {
                Ok(body) => body,
                Err(_) if text.is_empty() => Value::Null,
                Err(_) => Value::String(text),
            };
            Ok::<_, reqwest::Error>(TestApiResponse { status, content_type, body })
        };
        answered.await.or_fail("no answer")
    }

    /// Posts a message to a session.
    pub async fn post_run(&self, session: &str, body: &Value) -> TestApiResponse {
        self.post(&format!("/api/sessions/{}/runs", percent_encode(session)), body).await
    }

    /// Posts a message that must be accepted; returns the id of its run.
    pub async fn start_run(&self, session: &str, body: &Value) -> String {
        let accepted = self.post_run(session, body).await.expect_status(202);
        accepted["runId"].as_str().or_fail(format_args!("no run id: {accepted:#}")).to_owned()
    }

    /// Sends a text that must be accepted; returns the id of its run.
    pub async fn send_message(&self, session: &str, text: &str) -> String {
        self.start_run(session, &json!({"text": text})).await
    }

    pub async fn run_view(&self, run_id: &str) -> Value {
        self.get(&format!("/api/runs/{run_id}")).await.expect_status(200)
    }

    /// Waits for the end of a run; returns its view.
    pub async fn wait_ended(&self, run_id: &str) -> Value {
        self.run_events(run_id, 0).await.wait_for("run.ended").await;
        self.run_view(run_id).await
    }

    /// Waits for a pending approval and returns it.
    pub async fn wait_approval(&self) -> Value {
        let pending = async || self.get("/api/approvals").await.expect_status(200)["items"].get(0).cloned();
        poll_until("an approval", pending).await
    }

    /// Stops a run and waits for its end; returns the answer.
    pub async fn stop_run(&self, run_id: &str) -> Value {
        self.post(&format!("/api/runs/{run_id}/stop?wait=1"), &json!({})).await.expect_status(200)
    }

    /// Opens the events of a run after `seq` `after`; 0 is the beginning.
    pub async fn run_events(&self, run_id: &str, after: u64) -> TestRunEventStream {
        let path = format!("/api/runs/{run_id}/events?after={after}");
        let response = self.request(Method::GET, &path).send().await.or_fail(&path);
        assert_eq!(response.status(), 200, "{path}");
        TestRunEventStream::new(response, after)
    }
}

/// Percent-encodes everything but ASCII letters, digits and `-`, `_`, `.`.
pub fn percent_encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Repeats an attempt until it returns something; `what` names it in the failure.
pub async fn poll_until<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let attempts = async {
        loop {
            if let Some(found) = attempt().await {
                return found;
            }
            // The daemon announces no event for what is polled.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, attempts).await.or_fail(format_args!("waited {WAIT_TIMEOUT:?} for {what}"))
}
