//! The client of `fetch_url`: GET over HTTP(S) with checked addresses, limited redirects and a size limit.
//!
//! The resolver returns only checked addresses, so the checked address is the one that is connected to. Addresses
//! written in a URL are checked here. Redirects are followed here, each with the same checks as the first URL.
//! Connections are not pooled, so none is open when the ledger says that the request is over.

mod body;
mod html;

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::network_access::NetworkAccess;
use quell_net::{AddressFilter, AddressRefused, CheckedResolver, check_url, is_public};
use quell_protocol::ResourceKind;
use quell_scope::{Interrupted, Point, Release, Scope};
use reqwest::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, LOCATION};
use reqwest::{Client, Response, StatusCode, redirect};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use url::Url;

use crate::text::{quoted, truncate};
use body::MediaType;
pub(crate) use body::response_text;

const MAX_REDIRECTS: usize = 5;
/// The media types to ask for, readable ones first.
const ACCEPTED_TYPES: &str = "text/markdown, text/plain;q=0.9, text/html;q=0.8, application/json;q=0.8, */*;q=0.1";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchSettings {
    /// Allows private, loopback and other special addresses.
    pub allow_private: bool,
    /// The maximum duration of one call, redirects included.
    pub time_limit: Duration,
    /// The maximum number of bytes that are read of a body.
    pub body_limit: usize,
}

impl Default for FetchSettings {
    fn default() -> Self {
        Self { allow_private: false, time_limit: Duration::from_secs(30), body_limit: 2 * 1024 * 1024 }
    }
}

/// The client of `fetch_url`. It is built at the first use, because most daemons never need it.
#[derive(Debug)]
pub(super) struct Fetcher {
    settings: FetchSettings,
    may_reach: AddressFilter,
    client: OnceCell<Client>,
}

/// A failure is an error text for the model.
pub(super) type FetchError = Interrupted<String>;

/// What one call may get, and from whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct FetchLimits<'a> {
    /// The most bytes of the body.
    pub(super) max_bytes: usize,
    pub(super) network: &'a NetworkAccess,
}

/// Checks a URL against the network of the agent.
fn check_network(url: &Url, network: &NetworkAccess) -> Result<(), FetchError> {
    match network {
        NetworkAccess::On => Ok(()),
        NetworkAccess::Off => Err(FetchError::Failed(format!(
            "{} was not fetched: this agent has no network. A person can permit servers with `network` in its configuration",
            redacted_url(url)
        ))),
        NetworkAccess::List(rules) => {
            let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default());
            let checked = rules.check_target(host, port);
            checked.map(drop).map_err(|refusal| FetchError::Failed(refusal.to_string()))
        }
    }
}

/// A response before it is converted to text.
pub(super) struct FetchedResponse {
    url: Url,
    pub(super) status: StatusCode,
    media: MediaType,
    /// From the `Content-Length` header.
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

    /// The limit for a body of which the caller wants `max_bytes` bytes.
    pub(super) fn body_limit(&self, max_bytes: Option<u64>) -> usize {
        let max_bytes = max_bytes.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        max_bytes.min(self.settings.body_limit).max(1)
    }

    /// Gets the URL, and its body within the limits.
    ///
    /// # Cancel safety
    /// Safe: dropping it closes the request.
    pub(super) async fn fetch(
        &self,
        url: Url,
        limits: FetchLimits<'_>,
        scope: &Scope,
    ) -> Result<FetchedResponse, FetchError> {
        check_url(&url, self.may_reach).map_err(|why| FetchError::Failed(url_error(&url, &why)))?;
        let client = self.client(scope).await?;
        let held = scope.hold(ResourceKind::HttpRequest, format!("GET {}", redacted_url(&url)));
        let deadline = Instant::now() + self.settings.time_limit;
        // A stop drops this future, which closes the socket; `held` is then released as `closed`.
        let work = tokio::time::timeout_at(deadline, self.fetch_following_redirects(&client, url, limits, scope));
        // waits: `fetch_following_redirects` races each request and each chunk.
        let result = match work.await {
            Ok(result) => result,
            Err(_) => Err(FetchError::Failed(format!(
                "no complete answer within {} s",
                self.settings.time_limit.as_secs_f32()
            ))),
        };
        match &result {
            Ok(_) => held.release(Release::Finished),
            Err(FetchError::Failed(_)) => held.release(Release::Failed),
            Err(FetchError::Cancelled) => held.release(Release::Closed),
        }
        result
    }

    async fn fetch_following_redirects(
        &self,
        client: &Client,
        mut url: Url,
        limits: FetchLimits<'_>,
        scope: &Scope,
    ) -> Result<FetchedResponse, FetchError> {
        for _ in 0..=MAX_REDIRECTS {
            check_url(&url, self.may_reach).map_err(|why| FetchError::Failed(url_error(&url, &why)))?;
            check_network(&url, limits.network)?;
            let request = client.get(url.clone()).header(ACCEPT, ACCEPTED_TYPES).send();
            let response =
                scope.race(Point::Fetch, request).await?.map_err(|e| FetchError::Failed(request_error(&url, &e)))?;
            match redirect_target(&url, &response).map_err(FetchError::Failed)? {
                Some(target) => url = target,
                None => return read_response(url, response, limits.max_bytes, scope).await,
            }
        }
        Err(FetchError::Failed(format!("more than {MAX_REDIRECTS} redirects, the last to {}", quoted(url.as_str()))))
    }

    async fn client(&self, scope: &Scope) -> Result<Client, FetchError> {
        let may_reach = self.may_reach;
        // On a blocking thread, because the certificates of the system are read from files.
        let make = || async {
            scope
                .blocking(Point::Blocking, "fetch_url set-up", move |_| build_client(may_reach))
                .await?
                .map_err(|e| FetchError::Failed(format!("the HTTP client cannot be made: {e}")))
        };
        // Raced, because another run may be building the client, and a stop of this run must not wait for that.
        scope.race(Point::Fetch, self.client.get_or_try_init(make)).await?.cloned()
    }
}

fn build_client(may_reach: AddressFilter) -> Result<Client, String> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        return Err("no TLS provider is installed".into());
    }
    Client::builder()
        .user_agent(concat!("quell/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .retry(reqwest::retry::never())
        // A proxy would connect to unchecked addresses.
        .no_proxy()
        .pool_max_idle_per_host(0)
        .dns_resolver(Arc::new(CheckedResolver::new(may_reach)))
        .build()
        .map_err(|e| e.to_string())
}

fn url_error(url: &Url, why: &str) -> String {
    format!("{}: {why}", quoted(redacted_url(url).as_str()))
}

/// The target of a redirect, if the response is one.
fn redirect_target(url: &Url, response: &Response) -> Result<Option<Url>, String> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(LOCATION) else { return Ok(None) };
    let target = String::from_utf8_lossy(location.as_bytes());
    url.join(&target).map(Some).map_err(|e| format!("redirected to {}, which is not a URL: {e}", quoted(&target)))
}

async fn read_response(
    url: Url,
    mut response: Response,
    max_bytes: usize,
    scope: &Scope,
) -> Result<FetchedResponse, FetchError> {
    let header = |name| response.headers().get(name).and_then(|v| v.to_str().ok());
    let media = MediaType::parse(header(CONTENT_TYPE).unwrap_or_default());
    let encoding = header(CONTENT_ENCODING).filter(|e| !e.eq_ignore_ascii_case("identity")).map(str::to_owned);
    let (status, length) = (response.status(), response.content_length());
    let mut answer = FetchedResponse { url, status, media, length, encoding, body: Vec::new(), is_cut: false };
    if !answer.media.is_text() || answer.encoding.is_some() {
        return Ok(answer);
    }
    while answer.body.len() < max_bytes {
        let chunk = scope.race(Point::Fetch, response.chunk()).await?;
        let chunk = match chunk {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Ok(answer),
            Err(error) => return Err(FetchError::Failed(request_error(&answer.url, &error))),
        };
        let room = max_bytes - answer.body.len();
        answer.is_cut = chunk.len() > room;
        answer.body.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    if !answer.is_cut {
        // The limit is reached exactly: only one more read shows whether this was all.
        let more = scope.race(Point::Fetch, response.chunk()).await?;
        answer.is_cut = !matches!(more, Ok(None));
    }
    Ok(answer)
}

/// The URL without its parts that may be secret.
fn redacted_url(url: &Url) -> String {
    let mut plain = url.clone();
    plain.set_query(None);
    plain.set_fragment(None);
    // Both fail only for URLs that cannot have these parts.
    let _ = plain.set_username("");
    let _ = plain.set_password(None);
    truncate(plain.as_str(), 200).to_owned()
}

fn request_error(url: &Url, error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    loop {
        if let Some(refused) = cause.downcast_ref::<AddressRefused>() {
            return refused.to_string();
        }
        match cause.source() {
            Some(deeper) => cause = deeper,
            None => return format!("GET {} failed: {cause}", quoted(&redacted_url(url))),
        }
    }
}

#[cfg(test)]
impl Fetcher {
    pub(super) fn with_address_rule(settings: FetchSettings, may_reach: AddressFilter) -> Self {
        Self { settings, may_reach, client: OnceCell::new() }
    }

    /// Simulates another call that builds the client and never finishes.
    pub(super) async fn stall_client_setup(&self) {
        let _ = self.client.get_or_try_init(std::future::pending::<Result<_, FetchError>>).await;
    }

    pub(super) async fn failure_of(&self, url: &str, scope: &Scope) -> String {
        self.outcome(url, scope).await.expect("it is not cancelled")
    }

    /// The error text of a failed fetch, unless it was stopped.
    pub(super) async fn outcome(&self, url: &str, scope: &Scope) -> Result<String, quell_scope::Cancelled> {
        let limits = FetchLimits { max_bytes: self.settings.body_limit, network: &NetworkAccess::On };
        match self.fetch(Url::parse(url).unwrap(), limits, scope).await {
            Err(error) => error.into_failure(),
            Ok(answer) => panic!("got {} bytes", answer.body.len()),
        }
    }
}
