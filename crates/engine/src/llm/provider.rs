//! A provider made ready: its checked endpoint, headers, times and HTTP client. What differs between dialects it asks of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_kernel::retry::RetryPolicy;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Url};
use secrecy::{ExposeSecret, SecretString};

use super::config::{BadProvider, ProviderConfig, ProviderKind};
use super::dialect::Dialect;
use crate::address::{AddressPolicy, CheckedResolver, is_public, permitted};

/// The longest time that may be configured; it keeps timers in range.
const MAX_TIMEOUT_S: f64 = 24.0 * 3600.0;

/// Shorter header values are words such as `true`; taking them out of messages would only garble these.
const MIN_SECRET_CHARS: usize = 8;

/// Idle TLS connections that are kept per host, and for how long: a handshake costs a run two round trips. HTTP/2 needs one.
const TLS_IDLE_CONNECTIONS: usize = 8;
const TLS_IDLE: Duration = Duration::from_secs(60);

/// How often a silent HTTP/2 connection is asked whether it lives, and how long it has to say so.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_WAIT: Duration = Duration::from_secs(10);

/// A provider that can be called.
#[derive(Debug)]
pub(super) struct Provider {
    pub(super) name: String,
    pub(super) dialect: Dialect,
    pub(super) endpoint: Url,
    pub(super) headers: HeaderMap,
    pub(super) client: Client,
    pub(super) retries: RetryPolicy,
    pub(super) connect_timeout: Duration,
    pub(super) header_timeout: Duration,
    pub(super) idle_timeout: Duration,
    secrets: Vec<SecretString>,
}

/// HTTP clients, one for each way to connect that is really needed, shared by all providers that connect that way. Clones are
/// the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Clients(Arc<Mutex<BTreeMap<Connecting, Client>>>);

/// What helps who names an address that a session may not reach.
const WAYS_OUT: &str = "an admin may name it, or `[tools] fetch_private = true` permits it to all";

/// A way to connect: how the host is reached, which addresses may be, and how long a connection may take.
type Connecting = (Route, AddressPolicy, Duration);

/// How a host is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Route {
    /// This machine: never through a proxy, never TLS.
    Loopback,
    /// Plain HTTP elsewhere.
    Plain,
    /// TLS, with the system's certificates.
    Tls,
}

impl Provider {
    pub(super) fn new(name: &str, config: ProviderConfig, clients: &Clients) -> Result<Self, BadProvider> {
        let bad = |problem: String| BadProvider { provider: name.to_owned(), problem };
        let endpoint = endpoint(&config).map_err(bad)?;
        if config.reach == AddressPolicy::PublicOnly {
            permitted(&endpoint, is_public).map_err(|why| bad(format!("baseUrl: {why}; {WAYS_OUT}")))?;
        }
        let (headers, secrets) = headers(&config).map_err(bad)?;
        let seconds = |name, value| timeout(name, value).map_err(bad);
        let connect_timeout = seconds("connect_timeout_s", config.connect_timeout_s)?;
        Ok(Self {
            name: name.to_owned(),
            dialect: Dialect::of(config.kind),
            client: clients.get((Route::of(&endpoint), config.reach), connect_timeout).map_err(bad)?,
            endpoint,
            headers,
            retries: RetryPolicy { max_retries: config.max_retries, ..RetryPolicy::default() },
            connect_timeout,
            header_timeout: seconds("header_timeout_s", config.header_timeout_s)?,
            idle_timeout: seconds("idle_timeout_s", config.idle_timeout_s)?,
            secrets,
        })
    }

    /// The endpoint as people may see it: without user, password and query.
    pub(super) fn place(&self) -> String {
        without_secrets(&self.endpoint)
    }

    /// A text of the provider without the secrets that we sent it; some servers echo a key that they refuse.
    pub(super) fn redact(&self, text: String) -> String {
        self.secrets.iter().fold(text, |text, secret| text.replace(secret.expose_secret(), "***"))
    }
}

/// A URL without user, password and query.
pub(super) fn without_secrets(url: &Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path())
}

impl Route {
    fn of(endpoint: &Url) -> Self {
        let loopback = match endpoint.host() {
            Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
            Some(url::Host::Ipv4(address)) => address.is_loopback(),
            Some(url::Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        match endpoint.scheme() {
            "https" => Self::Tls,
            _ if loopback => Self::Loopback,
            _ => Self::Plain,
        }
    }
}

impl Clients {
    fn get(&self, (route, reach): (Route, AddressPolicy), connect_timeout: Duration) -> Result<Client, String> {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&(route, reach, connect_timeout)) {
            return Ok(client.clone());
        }
        let client = build(route, reach, connect_timeout)?;
        clients.insert((route, reach, connect_timeout), client.clone());
        Ok(client)
    }
}

/// An HTTP client for other servers than models, with the same TLS and the same care.
pub(crate) fn http_client(url: &Url, reach: AddressPolicy, connect_timeout: Duration) -> Result<Client, String> {
    if reach == AddressPolicy::PublicOnly {
        permitted(url, is_public).map_err(|why| format!("{why}; {WAYS_OUT}"))?;
    }
    build(Route::of(url), reach, connect_timeout)
}

fn build(route: Route, reach: AddressPolicy, connect_timeout: Duration) -> Result<Client, String> {
    let builder = Client::builder()
        .user_agent(concat!("quell/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(connect_timeout)
        // A redirect would carry the key and the conversation to a host that nobody configured.
        .redirect(Policy::none())
        // Retries are the kernel's rule alone.
        .retry(reqwest::retry::never());
    let builder = match route {
        Route::Loopback => plain(builder)?.no_proxy(),
        Route::Plain => plain(builder)?,
        Route::Tls => tls(builder),
    };
    let builder = match reach {
        AddressPolicy::Any => builder,
        // A proxy would connect to addresses that nobody here has checked.
        AddressPolicy::PublicOnly => builder.no_proxy().dns_resolver(Arc::new(CheckedResolver::new(is_public))),
    };
    builder.build().map_err(|error| format!("the HTTP client cannot be built: {}", super::failure::root_cause(&error)))
}

/// Without TLS there is nothing to load, so that a machine without certificates can run local models. Connections are not
/// kept: making one costs microseconds, and so a run's socket is gone with its request.
fn plain(builder: ClientBuilder) -> Result<ClientBuilder, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Ok(builder.tls_backend_preconfigured(tls).http1_only().pool_max_idle_per_host(0))
}

fn tls(builder: ClientBuilder) -> ClientBuilder {
    // The one provider that is linked. It fails only when it is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    builder
        .pool_max_idle_per_host(TLS_IDLE_CONNECTIONS)
        .pool_idle_timeout(TLS_IDLE)
        .http2_keep_alive_interval(PING_EVERY)
        .http2_keep_alive_timeout(PING_WAIT)
}

fn endpoint(config: &ProviderConfig) -> Result<Url, String> {
    let base = match (&config.base_url, config.kind) {
        (Some(base), _) => base.as_str(),
        (None, ProviderKind::Openai) => "https://api.openai.com/v1",
        (None, ProviderKind::Anthropic) => "https://api.anthropic.com/v1",
        (None, ProviderKind::Demo) => return Err("the demo model is not started, so it has no base_url".to_owned()),
    };
    // What stands behind a question mark may be a key.
    let shown = base.split('?').next().unwrap_or_default();
    let wrong = |problem: &str| format!("base_url `{shown}` {problem}; it should look like https://host/v1");
    let mut url = Url::parse(base).map_err(|error| wrong(&format!("is no URL ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("is neither http nor https"));
    }
    url.set_fragment(None);
    let below = Dialect::of(config.kind).path();
    url.path_segments_mut().map_err(|()| wrong("cannot have a path"))?.pop_if_empty().extend(below);
    Ok(url)
}

fn headers(config: &ProviderConfig) -> Result<(HeaderMap, Vec<SecretString>), String> {
    let mut headers = HeaderMap::new();
    let mut secrets = Vec::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    let dialect = Dialect::of(config.kind);
    for (name, value) in dialect.headers() {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if let Some(key) = &config.api_key {
        let header = dialect.key(key).ok_or("the API key holds a character that no header can carry")?;
        headers.insert(header.0, header.1);
        secrets.push(key.clone());
    }
    for (name, value) in &config.headers {
        let header = HeaderName::try_from(name).map_err(|_| format!("`{name}` is no header name"))?;
        let mut content = HeaderValue::from_str(value)
            .map_err(|_| format!("the value of header `{name}` holds a character that no header can carry"))?;
        content.set_sensitive(true);
        headers.insert(header, content);
        if value.chars().count() >= MIN_SECRET_CHARS {
            secrets.push(value.clone().into());
        }
    }
    secrets.retain(|secret| !secret.expose_secret().is_empty());
    Ok((headers, secrets))
}

fn timeout(name: &str, seconds: f64) -> Result<Duration, String> {
    if seconds > 0.0 && seconds <= MAX_TIMEOUT_S {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("{name} is {seconds}; it must be more than 0 and at most {MAX_TIMEOUT_S} seconds"))
    }
}

#[cfg(test)]
mod tests;
