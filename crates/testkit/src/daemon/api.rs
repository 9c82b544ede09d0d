//! HTTP client for the API: any method, any JSON, a bearer token, none of Quell's types.

use std::sync::Once;

use reqwest::{Client, Method, RequestBuilder};
use serde_json::Value;

use super::events::TestRunEventStream;

/// A client without proxy and pool: each request has its own connection, so that the daemon sees a dropped one.
#[must_use]
pub fn http_client() -> Client {
    install_tls_provider();
    match Client::builder().no_proxy().pool_max_idle_per_host(0).build() {
        Ok(client) => client,
        Err(error) => panic!("no HTTP client: {error}"),
    }
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
    #[must_use]
    pub fn expect_status(self, status: u16) -> Value {
        assert_eq!(self.status, status, "unexpected status with {:#}", self.body);
        self.body
    }

    /// The `code` of a problem body.
    #[must_use]
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
    #[must_use]
    pub fn new(url: &str, token: &str) -> Self {
        Self { client: http_client(), url: url.into(), token: token.into() }
    }

    #[must_use]
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
        match answered.await {
            Ok(answer) => answer,
            Err(error) => panic!("no answer: {error:?}"),
        }
    }

    /// Opens the events of a run after `seq` `after`; 0 is the beginning.
    pub async fn run_events(&self, run_id: &str, after: u64) -> TestRunEventStream {
        let path = format!("/api/runs/{run_id}/events?after={after}");
        match self.request(Method::GET, &path).send().await {
            Ok(response) if response.status() == 200 => TestRunEventStream::new(response, after),
            Ok(response) => panic!("no events of run {run_id}: {}", response.status()),
            Err(error) => panic!("no events of run {run_id}: {error:?}"),
        }
    }
}
