//! Find a daemon, send it HTTP requests, and follow the events of a run.
//!
//! A client keeps no connection open by itself: each call is one HTTP request with its answer checked. It never follows
//! a redirect, because the token would be sent along.

mod archive;
mod attached_run;
mod discovery;
mod endpoints;
mod error;
mod liveness;
mod local_daemon;
mod mcp;
mod run_events;

use std::fmt;
use std::time::Duration;

use quell_net::is_loopback;
use quell_protocol::{Problem, Surface};
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, Response, redirect};
use serde::de::DeserializeOwned;
use url::Url;

use local_daemon::LocalSocket;

pub use archive::Download;
pub(crate) use archive::UploadProgress;
pub use attached_run::AttachedSend;
pub use discovery::DaemonTarget;
pub use endpoints::{ClientRunFilter, ListResult, NotesOwner, SendReply, StopReply, StopWait};
pub use error::ClientError;
pub(crate) use liveness::HealthProbe;
pub(crate) use local_daemon::DaemonProcess;
pub(crate) use mcp::McpHeaders;
pub use run_events::{RunEventStream, RunEventStreamItem};

/// Longest answer that is read, in bytes; a daemon that sends more is broken.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// An ordinary call takes milliseconds; after this time the daemon counts as hanging.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Header that names the surface; receipts show it as the place that a stop came from.
const SURFACE_HEADER: &str = "x-quell-surface";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connect timeout for a daemon on this machine.
const LOCAL_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long to try to reconnect before giving up.
#[derive(Debug, Clone, Copy)]
pub struct ReconnectPolicy {
    /// Pause before the first new attempt; it doubles after each attempt.
    pub initial_pause: Duration,
    pub max_pause: Duration,
    /// Give up after this time without any event.
    pub give_up_after: Duration,
}

impl Default for ReconnectPolicy {
    fn default() -> Self {
        Self {
            initial_pause: Duration::from_millis(100),
            max_pause: Duration::from_secs(2),
            give_up_after: Duration::from_secs(20),
        }
    }
}

/// Sends requests to one daemon.
#[derive(Clone)]
pub struct DaemonClient {
    base_url: Url,
    url_origin: String,
    token_origin: String,
    has_token: bool,
    http: Client,
    /// Keeps the socket's path valid.
    socket: Option<LocalSocket>,
    daemon_process: Option<DaemonProcess>,
    reconnect_policy: ReconnectPolicy,
    surface: Surface,
}

impl fmt::Debug for DaemonClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DaemonClient").field("base_url", &self.base_url.as_str()).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy)]
enum ClientRequestTimeout {
    /// [`REQUEST_TIMEOUT`].
    Default,
    /// No timeout: the daemon bounds the wait itself.
    Unlimited,
}

impl DaemonClient {
    /// Finds the daemon and its token without sending a request.
    ///
    /// # Errors
    /// [`ClientError::NoDaemon`] and [`ClientError::NoToken`] name what was tried.
    pub fn discover(target: &DaemonTarget) -> Result<Self, ClientError> {
        let found = target.discover_daemon()?;
        let bad_token = || ClientError::BadToken {
            origin: found.token_origin.clone(),
            problem: "it holds characters that no token has".into(),
        };
        let bearer = found.token.as_ref().map(|token| {
            let mut bearer = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| bad_token())?;
            bearer.set_sensitive(true);
            Ok(bearer)
        });
        let bearer = bearer.transpose()?;
        let has_token = bearer.is_some();
        let http =
            build_http_client(&found.url, bearer, found.socket.as_ref()).map_err(|error| ClientError::BadUrl {
                url: found.url.to_string(),
                problem: format!("no HTTP client can be made for it: {}", root_cause(&error)),
            })?;
        Ok(Self {
            base_url: found.url,
            url_origin: found.url_origin,
            token_origin: found.token_origin,
            has_token,
            http,
            socket: found.socket,
            daemon_process: found.process,
            reconnect_policy: ReconnectPolicy::default(),
            surface: Surface::Cli,
        })
    }

    #[must_use]
    pub fn with_reconnect_policy(mut self, policy: ReconnectPolicy) -> Self {
        self.reconnect_policy = policy;
        self
    }

    /// Sets the surface that stops and messages of this client are recorded with.
    #[must_use]
    pub fn with_surface(mut self, surface: Surface) -> Self {
        self.surface = surface;
        self
    }

    pub fn reconnect_policy(&self) -> ReconnectPolicy {
        self.reconnect_policy
    }

    /// False when the daemon accepts only stops from this client.
    pub fn has_token(&self) -> bool {
        self.has_token
    }

    pub fn base_url(&self) -> &Url {
        &self.base_url
    }

    fn build_url(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Url, ClientError> {
        let mut url = self.base_url.clone();
        // URL parsers resolve `.` and `..` segments, however they are escaped.
        if let Some(dots) = path.iter().find(|part| matches!(**part, "." | "..")) {
            return Err(ClientError::InvalidPathSegment((*dots).into()));
        }
        match url.path_segments_mut() {
            Ok(mut segments) => segments.pop_if_empty().extend(path),
            Err(()) => {
                return Err(ClientError::BadUrl { url: self.base_url.to_string(), problem: "it has no path".into() });
            }
        };
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    fn build_request(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, &str)],
    ) -> Result<RequestBuilder, ClientError> {
        Ok(self.http.request(method, self.build_url(path, query)?).header(SURFACE_HEADER, self.surface.as_str()))
    }

    async fn fetch_json<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        timeout: ClientRequestTimeout,
    ) -> Result<T, ClientError> {
        let body = self.fetch_body(request, timeout).await?;
        serde_json::from_slice(&body).map_err(|error| self.unexpected_answer(format!("its JSON is invalid: {error}")))
    }

    /// Sends a request and returns the body of a successful answer.
    async fn fetch_body(&self, request: RequestBuilder, timeout: ClientRequestTimeout) -> Result<Vec<u8>, ClientError> {
        let request = match timeout {
            ClientRequestTimeout::Default => request.timeout(REQUEST_TIMEOUT),
            ClientRequestTimeout::Unlimited => request,
        };
        let response = request.send().await.map_err(|error| self.transport_error(&error))?;
        let mut response = self.check_status(response).await?;
        self.read_body(&mut response).await
    }

    /// Returns a successful response; else the error in its body.
    async fn check_status(&self, mut response: Response) -> Result<Response, ClientError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = self.read_body(&mut response).await?;
        let Ok(problem) = serde_json::from_slice::<Problem>(&body) else {
            // Answers of a proxy whose daemon is down or overloaded: the next attempt may succeed.
            if matches!(status.as_u16(), 429 | 502 | 503 | 504) {
                let cause = format!("the server at this URL, perhaps a proxy, answers {status}");
                return Err(ClientError::ConnectionLost { url: self.base_url.to_string(), cause });
            }
            return Err(self.unexpected_answer(format!("it answers {status}")));
        };
        if status.as_u16() == 401 && !self.has_token {
            return Err(ClientError::NoToken { url: self.base_url.to_string(), tried: self.token_origin.clone() });
        }
        if status.as_u16() == 401 {
            let problem = problem.detail.unwrap_or(problem.title);
            return Err(ClientError::BadToken { origin: self.token_origin.clone(), problem });
        }
        Err(ClientError::Refused(problem))
    }

    async fn read_body(&self, response: &mut Response) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|error| self.transport_error(&error))? {
            if body.len() + piece.len() > MAX_ANSWER_BYTES {
                return Err(self.unexpected_answer("its answer is too large".into()));
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }

    fn transport_error(&self, error: &reqwest::Error) -> ClientError {
        let cause = root_cause(error);
        if error.is_connect() {
            return ClientError::NoDaemon { tried: format!("{} (from {}): {cause}", self.base_url, self.url_origin) };
        }
        ClientError::ConnectionLost { url: self.base_url.to_string(), cause }
    }

    /// True if requests go over the Unix socket of a daemon on this machine, where no connection is lost on the way.
    pub fn is_on_unix_socket(&self) -> bool {
        self.socket.is_some()
    }

    fn unexpected_answer(&self, problem: String) -> ClientError {
        ClientError::UnexpectedAnswer { url: self.base_url.to_string(), problem }
    }
}

fn build_http_client(base: &Url, bearer: Option<HeaderValue>, socket: Option<&LocalSocket>) -> reqwest::Result<Client> {
    let mut headers = HeaderMap::new();
    headers.extend(bearer.map(|bearer| (AUTHORIZATION, bearer)));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    let mut builder = Client::builder()
        .user_agent(concat!("quell-cli/", env!("CARGO_PKG_VERSION")))
        .default_headers(headers)
        .redirect(redirect::Policy::none())
        .connect_timeout(if is_loopback(base) { LOCAL_CONNECT_TIMEOUT } else { CONNECT_TIMEOUT })
        .tcp_nodelay(true)
        .tcp_keepalive(Duration::from_secs(15));
    if is_loopback(base) {
        builder = builder.no_proxy();
    }
    if let Some(socket) = socket {
        builder = builder.unix_socket(socket.path());
    }
    if base.scheme() == "http" {
        // Plain HTTP needs no certificates. Reading those of the system costs milliseconds, and fails in a small
        // container that has none.
        builder = builder.tls_certs_only([]);
    }
    builder.build()
}

fn root_cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it did not answer in time".into();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests;
