//! `fetch_url`: one GET over HTTP or HTTPS, to public addresses only unless configured, as readable text.
//!
//! Names are resolved by a resolver that hands out checked addresses only, so what was checked is what is connected to;
//! addresses written in a URL are checked here. Redirects are followed by hand, each as strictly as the first URL. Sockets are
//! not kept, so that nothing is open when the ledger says that the request is over.

mod body;
mod html;

use std::sync::Arc;
use std::time::Duration;

use quell_protocol::ResourceKind;
use reqwest::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, LOCATION};
use reqwest::{Client, Response, StatusCode, redirect};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use url::Url;

use crate::address::{AddressRefused, CheckedResolver, MayReach, is_public, permitted};
use crate::llm::ToolSpec;
use crate::scope::{Cancelled, Point, Scope};
use crate::tools::arguments::{self, Arguments};
use crate::tools::text::{cut, quoted};
use crate::tools::{ToolOutput, Workbench};
use body::Media;

/// The tool's name.
pub(super) const NAME: &str = "fetch_url";
/// Redirects followed.
const MOST_REDIRECTS: usize = 5;
/// What is asked for, the readable first.
const WANTED: &str = "text/markdown, text/plain;q=0.9, text/html;q=0.8, application/json;q=0.8, */*;q=0.1";

/// What `fetch_url` may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchSettings {
    /// Lets it reach private, loopback and other special addresses.
    pub allow_private: bool,
    /// The longest that one call may take, redirects included.
    pub time_limit: Duration,
    /// The most bytes of a body that are ever read.
    pub body_limit: usize,
}

impl Default for FetchSettings {
    fn default() -> Self {
        Self { allow_private: false, time_limit: Duration::from_secs(30), body_limit: 2 * 1024 * 1024 }
    }
}

/// Arguments of `fetch_url`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FetchUrl {
    /// An http or https URL.
    url: String,
    /// The most bytes to read of the answer's body.
    max_bytes: Option<u64>,
}

impl Arguments for FetchUrl {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "Reads a web page or file by GET and returns it as text; HTML is turned into readable text. Public addresses only, \
                                 unless configured otherwise.";
    const EXAMPLE: &'static str = r#"{"url": "https://example.com/page", "max_bytes": 100000}"#;
}

/// The tool as the model sees it.
pub(super) fn spec() -> ToolSpec {
    arguments::spec::<FetchUrl>()
}

/// Fetches. Its client is made at the first use: most daemons that start never need it.
#[derive(Debug)]
pub(super) struct Fetcher {
    settings: FetchSettings,
    may_reach: MayReach,
    client: OnceCell<Client>,
}

/// Why there is nothing to read.
enum Failure {
    Cancelled,
    /// For the model.
    Told(String),
}

impl From<Cancelled> for Failure {
    fn from(_: Cancelled) -> Self {
        Self::Cancelled
    }
}

/// What came back, before it is made readable.
struct Answer {
    url: Url,
    status: StatusCode,
    media: Media,
    /// As announced.
    length: Option<u64>,
    encoding: Option<String>,
    body: Vec<u8>,
    is_cut: bool,
}

impl Fetcher {
    pub(super) fn new(settings: FetchSettings) -> Self {
        let may_reach = if settings.allow_private { |_| true } else { is_public };
        Self { settings, may_reach, client: OnceCell::new() }
    }

    /// Calls the tool.
    ///
    /// # Cancel safety
    /// Safe: the request closes.
    pub(super) async fn fetch_url(&self, given: &Value, cx: &mut Workbench<'_>) -> Result<ToolOutput, Cancelled> {
        let (scope, limit) = (cx.scope, cx.output_limit);
        let given: FetchUrl = match arguments::parse(given) {
            Ok(given) => given,
            Err(problem) => return Ok(ToolOutput::error(problem)),
        };
        let url = match Url::parse(&given.url) {
            Ok(url) => url,
            Err(error) => return Ok(ToolOutput::error(format!("{} is not a URL: {error}", quoted(&given.url)))),
        };
        let most = given.max_bytes.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        let most = most.min(self.settings.body_limit).max(1);
        match self.fetch(url, most, scope).await {
            Ok(answer) => readable(answer, limit, scope).await,
            Err(Failure::Told(text)) => Ok(ToolOutput::error(text)),
            Err(Failure::Cancelled) => Err(Cancelled),
        }
    }

    async fn fetch(&self, url: Url, most: usize, scope: &Scope) -> Result<Answer, Failure> {
        permitted(&url, self.may_reach).map_err(|why| Failure::Told(told(&url, &why)))?;
        let client = self.client(scope).await?;
        let held = scope.hold(ResourceKind::HttpRequest, format!("GET {}", label(&url)));
        let deadline = Instant::now() + self.settings.time_limit;
        // Dropped at a stop, which closes the socket; so is `held`, which then says `closed`.
        let work = tokio::time::timeout_at(deadline, self.follow(&client, url, most, scope));
        // waits: raced in `follow`, request by request and chunk by chunk.
        let result = match work.await {
            Ok(result) => result,
            Err(_) => {
                Err(Failure::Told(format!("no complete answer within {} s", self.settings.time_limit.as_secs_f32())))
            }
        };
        match &result {
            Ok(_) => held.release("finished"),
            Err(Failure::Told(_)) => held.release("failed"),
            Err(Failure::Cancelled) => held.release("closed"),
        }
        result
    }

    async fn follow(&self, client: &Client, mut url: Url, most: usize, scope: &Scope) -> Result<Answer, Failure> {
        for _ in 0..=MOST_REDIRECTS {
            permitted(&url, self.may_reach).map_err(|why| Failure::Told(told(&url, &why)))?;
            let request = client.get(url.clone()).header(ACCEPT, WANTED).send();
            let response = scope.race(Point::Fetch, request).await?.map_err(|e| Failure::Told(explain(&url, &e)))?;
            match next(&url, &response).map_err(Failure::Told)? {
                Some(target) => url = target,
                None => return read(url, response, most, scope).await,
            }
        }
        Err(Failure::Told(format!("more than {MOST_REDIRECTS} redirects, the last to {}", quoted(url.as_str()))))
    }

    async fn client(&self, scope: &Scope) -> Result<Client, Failure> {
        let may_reach = self.may_reach;
        // On a thread, because the system's certificates are read from files.
        let make = || async {
            scope
                .blocking(Point::Blocking, "fetch_url set-up", move |_| build(may_reach))
                .await?
                .map_err(|e| Failure::Told(format!("the HTTP client cannot be made: {e}")))
        };
        // Raced, because another run may be making it: that one's wait is none of this run's.
        scope.race(Point::Fetch, self.client.get_or_try_init(make)).await?.cloned()
    }
}

fn build(may_reach: MayReach) -> Result<Client, String> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        return Err("no TLS provider is installed".into());
    }
    Client::builder()
        .user_agent(concat!("quell/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .retry(reqwest::retry::never())
        // A proxy would connect to addresses that nobody here has checked.
        .no_proxy()
        .pool_max_idle_per_host(0)
        .dns_resolver(Arc::new(CheckedResolver::new(may_reach)))
        .build()
        .map_err(|e| e.to_string())
}

fn told(url: &Url, why: &str) -> String {
    format!("{}: {why}", quoted(label(url).as_str()))
}

/// Where a redirect leads, when the answer is one.
fn next(url: &Url, response: &Response) -> Result<Option<Url>, String> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(LOCATION) else { return Ok(None) };
    let target = String::from_utf8_lossy(location.as_bytes());
    url.join(&target).map(Some).map_err(|e| format!("redirected to {}, which is not a URL: {e}", quoted(&target)))
}

async fn read(url: Url, mut response: Response, most: usize, scope: &Scope) -> Result<Answer, Failure> {
    let header = |name| response.headers().get(name).and_then(|v| v.to_str().ok());
    let media = Media::parse(header(CONTENT_TYPE).unwrap_or_default());
    let encoding = header(CONTENT_ENCODING).filter(|e| !e.eq_ignore_ascii_case("identity")).map(str::to_owned);
    let (status, length) = (response.status(), response.content_length());
    let mut answer = Answer { url, status, media, length, encoding, body: Vec::new(), is_cut: false };
    if !answer.media.is_text() || answer.encoding.is_some() {
        return Ok(answer);
    }
    while answer.body.len() < most {
        let chunk = scope.race(Point::Fetch, response.chunk()).await?;
        let chunk = match chunk {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Ok(answer),
            Err(error) => return Err(Failure::Told(explain(&answer.url, &error))),
        };
        let room = most - answer.body.len();
        answer.is_cut = chunk.len() > room;
        answer.body.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    if !answer.is_cut {
        // Full to the byte: whether that was all shows only the next read.
        let more = scope.race(Point::Fetch, response.chunk()).await?;
        answer.is_cut = !matches!(more, Ok(None));
    }
    Ok(answer)
}

/// Makes the answer readable, on a thread, and puts a line about it first.
async fn readable(answer: Answer, limit: usize, scope: &Scope) -> Result<ToolOutput, Cancelled> {
    let is_error = answer.status.is_client_error() || answer.status.is_server_error();
    let text = scope.blocking(Point::Blocking, "fetch_url text", move |stop| body::text(&answer, limit, stop)).await?;
    Ok(if is_error { ToolOutput::error(text) } else { ToolOutput::ok(text) })
}

/// A URL without what may be secret in it.
fn label(url: &Url) -> String {
    let mut plain = url.clone();
    plain.set_query(None);
    plain.set_fragment(None);
    // Both fail only for URLs that cannot have them.
    let _ = plain.set_username("");
    let _ = plain.set_password(None);
    cut(plain.as_str(), 200).to_owned()
}

fn explain(url: &Url, error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    loop {
        if let Some(refused) = cause.downcast_ref::<AddressRefused>() {
            return refused.to_string();
        }
        match cause.source() {
            Some(deeper) => cause = deeper,
            None => return format!("GET {} failed: {cause}", quoted(&label(url))),
        }
    }
}

#[cfg(test)]
impl Fetcher {
    /// A fetcher with a rule of its own.
    pub(super) fn reaching(settings: FetchSettings, may_reach: MayReach) -> Self {
        Self { settings, may_reach, client: OnceCell::new() }
    }

    /// Another call that makes the client and does not get on with it.
    pub(super) async fn make_slowly(&self) {
        let _ = self.client.get_or_try_init(std::future::pending::<Result<_, Failure>>).await;
    }

    /// Why a URL could not be fetched.
    pub(super) async fn refusal(&self, url: &str, scope: &Scope) -> String {
        self.outcome(url, scope).await.expect("it is not cancelled")
    }

    /// Why a URL could not be fetched, unless that is a stop.
    pub(super) async fn outcome(&self, url: &str, scope: &Scope) -> Result<String, Cancelled> {
        match self.fetch(Url::parse(url).unwrap(), self.settings.body_limit, scope).await {
            Err(Failure::Told(text)) => Ok(text),
            Err(Failure::Cancelled) => Err(Cancelled),
            Ok(answer) => panic!("got {} bytes", answer.body.len()),
        }
    }
}
