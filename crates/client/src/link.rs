//! The connection to a daemon: finding it, asking it, following a run.
//!
//! A link holds no connection open by itself and decides nothing: each call is one HTTP request with its answer checked. It
//! never follows a redirection, because the token would go along.

mod archive;
mod audit;
mod calls;
mod channels;
mod discover;
mod error;
mod follow;
mod local;
mod memory;
mod page;
mod silence;
mod society;
mod sse;

use std::fmt;
use std::time::Duration;

use quell_protocol::{Problem, Surface};
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, Response, redirect};
use serde::de::DeserializeOwned;
use url::Url;

use local::LocalSocket;

pub use archive::{Download, Sent as SentSoFar};
pub use calls::{AnswerWhen, ListOf, RunFilter, Sent, StopReply};
pub use discover::Target;
pub use error::LinkError;
pub use follow::{Followed, Following};
pub(crate) use local::DaemonProcess;
pub use memory::NotesOf;
pub(crate) use silence::Greeting;

/// Answers are read whole up to here; a daemon that sends more is broken.
const MOST_ANSWER_BYTES: usize = 64 << 20;
/// An ordinary call is over in milliseconds; past this the daemon hangs.
const ORDINARY: Duration = Duration::from_secs(30);
/// Names the door in receipts: stopped by whom, from where.
const SURFACE: &str = "x-quell-surface";
const CONNECT: Duration = Duration::from_secs(5);
/// The same on this machine.
const CONNECT_NEAR: Duration = Duration::from_secs(2);

/// How long a lost connection is worked on before the visitor gives up.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Pause before the first new attempt; it doubles from there.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// Without any event for this long, it is over.
    pub give_up: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { first: Duration::from_millis(100), longest: Duration::from_secs(2), give_up: Duration::from_secs(20) }
    }
}

/// A daemon, as the visitor knows it.
#[derive(Clone)]
pub struct Link {
    base: Url,
    base_origin: String,
    token_origin: String,
    has_token: bool,
    http: Client,
    /// Keeps the way to the socket open.
    _socket: Option<LocalSocket>,
    daemon: Option<DaemonProcess>,
    patience: Patience,
    surface: Surface,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("base", &self.base.as_str()).finish_non_exhaustive()
    }
}

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
enum Span {
    /// As long as an ordinary call.
    Ordinary,
    /// As long as the daemon takes: it bounds the wait itself.
    Open,
}

impl Link {
    /// Finds the daemon and its token; asks nobody yet.
    ///
    /// # Errors
    /// [`LinkError::NoDaemon`] and [`LinkError::NoToken`] say what was tried.
    pub fn discover(target: &Target) -> Result<Self, LinkError> {
        let found = target.find()?;
        let bad_token = || LinkError::BadToken {
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
        let http = client(&found.url, bearer, found.socket.as_ref()).map_err(|error| LinkError::BadUrl {
            url: found.url.to_string(),
            problem: format!("no HTTP client can be made for it: {}", root_cause(&error)),
        })?;
        Ok(Self {
            base: found.url,
            base_origin: found.url_origin,
            token_origin: found.token_origin,
            has_token,
            http,
            _socket: found.socket,
            daemon: found.daemon,
            patience: Patience::default(),
            surface: Surface::Cli,
        })
    }

    /// The same link with another patience for lost connections.
    #[must_use]
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// The same link in the name of another surface, which stops and messages through it are said to come from.
    #[must_use]
    pub fn with_surface(mut self, surface: Surface) -> Self {
        self.surface = surface;
        self
    }

    /// How long a lost connection is worked on.
    #[must_use]
    pub fn patience(&self) -> Patience {
        self.patience
    }

    /// False when only stops are taken from this link.
    #[must_use]
    pub fn has_token(&self) -> bool {
        self.has_token
    }

    /// The daemon's address.
    #[must_use]
    pub fn base(&self) -> &Url {
        &self.base
    }

    fn url(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Url, LinkError> {
        let mut url = self.base.clone();
        // Path segments of dots are folded away by every URL parser, however they are escaped.
        if let Some(dots) = path.iter().find(|part| matches!(**part, "." | "..")) {
            return Err(LinkError::Unspeakable((*dots).into()));
        }
        match url.path_segments_mut() {
            Ok(mut segments) => segments.pop_if_empty().extend(path),
            Err(()) => return Err(LinkError::BadUrl { url: self.base.to_string(), problem: "it has no path".into() }),
        };
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, &str)]) -> Result<RequestBuilder, LinkError> {
        Ok(self.http.request(method, self.url(path, query)?).header(SURFACE, self.surface.word()))
    }

    async fn ask<T: DeserializeOwned>(&self, request: RequestBuilder, span: Span) -> Result<T, LinkError> {
        let body = self.answer(request, span).await?;
        serde_json::from_slice(&body).map_err(|error| self.foreign(format!("its JSON is odd: {error}")))
    }

    /// Sends a request and gives the body of its good answer.
    async fn answer(&self, request: RequestBuilder, span: Span) -> Result<Vec<u8>, LinkError> {
        let request = match span {
            Span::Ordinary => request.timeout(ORDINARY),
            Span::Open => request,
        };
        let response = request.send().await.map_err(|error| self.broken(&error))?;
        let mut response = self.accepted(response).await?;
        self.body(&mut response).await
    }

    /// The response, if it is a good one; else the error in its body.
    async fn accepted(&self, mut response: Response) -> Result<Response, LinkError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = self.body(&mut response).await?;
        let Ok(problem) = serde_json::from_slice::<Problem>(&body) else {
            // Words of a proxy whose daemon is away or flooded: the next attempt may reach it.
            if matches!(status.as_u16(), 429 | 502 | 503 | 504) {
                let cause = format!("what is in front of it answers {status}");
                return Err(LinkError::Lost { url: self.base.to_string(), cause });
            }
            return Err(self.foreign(format!("it answers {status}")));
        };
        if status.as_u16() == 401 && !self.has_token {
            return Err(LinkError::NoToken { url: self.base.to_string(), tried: self.token_origin.clone() });
        }
        if status.as_u16() == 401 {
            let problem = problem.detail.unwrap_or(problem.title);
            return Err(LinkError::BadToken { origin: self.token_origin.clone(), problem });
        }
        Err(LinkError::Refused(problem))
    }

    async fn body(&self, response: &mut Response) -> Result<Vec<u8>, LinkError> {
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(|error| self.broken(&error))? {
            if body.len() + piece.len() > MOST_ANSWER_BYTES {
                return Err(self.foreign("its answer does not end".into()));
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }

    fn broken(&self, error: &reqwest::Error) -> LinkError {
        let cause = root_cause(error);
        if error.is_connect() {
            return LinkError::NoDaemon { tried: format!("{} (from {}): {cause}", self.base, self.base_origin) };
        }
        LinkError::Lost { url: self.base.to_string(), cause }
    }

    fn foreign(&self, problem: String) -> LinkError {
        LinkError::Foreign { url: self.base.to_string(), problem }
    }
}

fn client(base: &Url, bearer: Option<HeaderValue>, socket: Option<&LocalSocket>) -> reqwest::Result<Client> {
    let mut headers = HeaderMap::new();
    headers.extend(bearer.map(|bearer| (AUTHORIZATION, bearer)));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    let mut builder = Client::builder()
        .user_agent(concat!("quell-cli/", env!("CARGO_PKG_VERSION")))
        .default_headers(headers)
        .redirect(redirect::Policy::none())
        .connect_timeout(if discover::is_loopback(base) { CONNECT_NEAR } else { CONNECT })
        .tcp_nodelay(true)
        .tcp_keepalive(Duration::from_secs(15));
    if discover::is_loopback(base) {
        builder = builder.no_proxy();
    }
    if let Some(socket) = socket {
        builder = builder.unix_socket(socket.path());
    }
    if base.scheme() == "http" {
        // Plain HTTP needs no certificates: reading the system's costs milliseconds, and a small container has none, which
        // would be an error.
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
