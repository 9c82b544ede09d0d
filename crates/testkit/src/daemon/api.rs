//! A small client of the HTTP API: any method, any JSON, the bearer token, nothing of Quell's types.

use std::sync::Once;

use reqwest::{Client, Method, RequestBuilder};
use serde_json::Value;

use super::events::EventStream;

/// A client without proxy and without pool: each request has a connection of its own, so that dropping one is seen.
///
/// # Panics
/// When the system refuses.
#[must_use]
pub fn client() -> Client {
    install_tls_provider();
    match Client::builder().no_proxy().pool_max_idle_per_host(0).build() {
        Ok(client) => client,
        Err(error) => panic!("no HTTP client: {error}"),
    }
}

/// Lets clients be built in this process.
pub(crate) fn install_tls_provider() {
    static PROVIDER: Once = Once::new();
    // Another part of the same test process may have installed one already; either will do.
    PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its content type.
    pub content_type: String,
    /// Its body; text where it is not JSON, null where it is empty.
    pub body: Value,
}

impl Answer {
    /// The body, when the status is this one.
    ///
    /// # Panics
    /// When it is another one.
    #[must_use]
    pub fn expect_status(self, status: u16) -> Value {
        assert_eq!(self.status, status, "unexpected status with {:#}", self.body);
        self.body
    }

    /// The stable code of a problem.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.body.get("code").and_then(Value::as_str)
    }
}

/// The HTTP door of a daemon, with one token.
#[derive(Debug, Clone)]
pub struct Api {
    client: Client,
    url: String,
    token: String,
}

impl Api {
    /// The door at this address with this token; an empty token sends none.
    #[must_use]
    pub fn new(url: &str, token: &str) -> Self {
        Self { client: client(), url: url.into(), token: token.into() }
    }

    /// The same door with another token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: token.into(), ..self.clone() }
    }

    /// `GET`.
    ///
    /// # Cancel safety
    /// Dropping it closes its connection.
    ///
    /// # Panics
    /// When no answer comes.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    /// `POST` with a JSON body.
    ///
    /// # Cancel safety
    /// Dropping it closes its connection; the daemon may have taken the request.
    ///
    /// # Panics
    /// When no answer comes.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request(Method::POST, path).json(body)).await
    }

    /// `PUT` with a JSON body.
    ///
    /// # Cancel safety
    /// As [`Self::post`].
    ///
    /// # Panics
    /// When no answer comes.
    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request(Method::PUT, path).json(body)).await
    }

    /// `PATCH` with a JSON body.
    ///
    /// # Cancel safety
    /// As [`Self::post`].
    ///
    /// # Panics
    /// When no answer comes.
    pub async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request(Method::PATCH, path).json(body)).await
    }

    /// `DELETE`.
    ///
    /// # Cancel safety
    /// As [`Self::post`].
    ///
    /// # Panics
    /// When no answer comes.
    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// A request with the token, to be filled further: other bodies, other headers.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.url));
        if self.token.is_empty() { request } else { request.bearer_auth(&self.token) }
    }

    /// Sends a request and reads its answer.
    ///
    /// # Cancel safety
    /// As [`Self::post`].
    ///
    /// # Panics
    /// When no answer comes.
    pub async fn send(&self, request: RequestBuilder) -> Answer {
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
            Ok::<_, reqwest::Error>(Answer { status, content_type, body })
        };
        match answered.await {
            Ok(answer) => answer,
            Err(error) => panic!("no answer: {error:?}"),
        }
    }

    /// Opens the events of a run from behind `after`; 0 is from the beginning.
    ///
    /// # Cancel safety
    /// Dropping it closes its connection.
    ///
    /// # Panics
    /// When the daemon refuses.
    pub async fn events(&self, run_id: &str, after: u64) -> EventStream {
        let path = format!("/api/runs/{run_id}/events?after={after}");
        match self.request(Method::GET, &path).send().await {
            Ok(response) if response.status() == 200 => EventStream::new(response, after),
            Ok(response) => panic!("no events of run {run_id}: {}", response.status()),
            Err(error) => panic!("no events of run {run_id}: {error:?}"),
        }
    }
}
