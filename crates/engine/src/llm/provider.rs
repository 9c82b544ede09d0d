//! A validated provider: endpoint, headers, timeouts, retry policy, shared HTTP client; also the HTTP client builder
//! for other modules.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_kernel::retry::RetryPolicy;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Url};
use secrecy::{ExposeSecret, SecretString};

use super::config::{ProviderConfig, ProviderConfigError, ProviderKind};
use super::dialect::ProviderDialect;
use crate::address::{AddressPolicy, CheckedResolver, check_url, is_public};

/// The maximum configurable timeout; it keeps timers in range.
const MAX_TIMEOUT_S: f64 = 24.0 * 3600.0;

/// Shorter header values are words such as `true`; redacting these would only garble messages.
const MIN_SECRET_CHARS: usize = 8;

/// Idle TLS connections that are kept per host, and for how long. A handshake costs two round trips; HTTP/2 needs only
/// one connection.
const TLS_IDLE_CONNECTIONS: usize = 8;
const TLS_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a silent HTTP/2 connection is pinged, and how long the answer may take.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Provider {
    pub(super) name: String,
    pub(super) dialect: ProviderDialect,
    pub(super) endpoint: Url,
    pub(super) headers: HeaderMap,
    pub(super) client: Client,
    pub(super) retry_policy: RetryPolicy,
    pub(super) connect_timeout: Duration,
    pub(super) header_timeout: Duration,
    pub(super) idle_timeout: Duration,
    secrets: Vec<SecretString>,
}

/// HTTP clients, one for each way to connect that is in use, shared by all providers that connect that way. Clones
/// share one table.
#[derive(Debug, Clone, Default)]
pub(super) struct HttpClients(Arc<Mutex<BTreeMap<HttpClientKey, Client>>>);

/// Advice for a person who names an address that a session may not reach.
const PRIVATE_ADDRESS_HINT: &str = "an admin may name it, or `[tools] fetch_private = true` permits it to all";

/// A way to connect: route, allowed addresses, and connect timeout.
type HttpClientKey = (HostRoute, AddressPolicy, Duration);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HostRoute {
    /// This machine: never through a proxy, never TLS.
    Loopback,
    /// Plain HTTP to another machine.
    Plain,
    /// TLS, with the certificates of the system.
    Tls,
}

impl Provider {
    pub(super) fn new(name: &str, config: ProviderConfig, clients: &HttpClients) -> Result<Self, ProviderConfigError> {
        let config_error = |problem: String| ProviderConfigError { provider: name.to_owned(), problem };
        let endpoint = endpoint_url(&config).map_err(config_error)?;
        if config.address_policy == AddressPolicy::PublicOnly {
            check_url(&endpoint, is_public)
                .map_err(|why| config_error(format!("baseUrl: {why}; {PRIVATE_ADDRESS_HINT}")))?;
        }
        let (headers, secrets) = request_headers(&config).map_err(config_error)?;
        let seconds = |name, value| parse_timeout(name, value).map_err(config_error);
        let connect_timeout = seconds("connect_timeout_s", config.connect_timeout_s)?;
        Ok(Self {
            name: name.to_owned(),
            dialect: ProviderDialect::from_kind(config.kind),
            client: clients
                .get_or_build((HostRoute::from_url(&endpoint), config.address_policy), connect_timeout)
                .map_err(config_error)?,
            endpoint,
            headers,
            retry_policy: RetryPolicy { max_retries: config.max_retries, ..RetryPolicy::default() },
            connect_timeout,
            header_timeout: seconds("header_timeout_s", config.header_timeout_s)?,
            idle_timeout: seconds("idle_timeout_s", config.idle_timeout_s)?,
            secrets,
        })
    }

    /// The endpoint as it is shown to people: without user, password and query.
    pub(super) fn display_url(&self) -> String {
        without_secrets(&self.endpoint)
    }

    /// Replaces the secrets that were sent to the provider in one of its messages; some servers echo a refused key.
    pub(super) fn redact_secrets(&self, text: String) -> String {
        self.secrets.iter().fold(text, |text, secret| text.replace(secret.expose_secret(), "***"))
    }
}

/// The URL without user, password and query.
pub(super) fn without_secrets(url: &Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path())
}

impl HostRoute {
    fn from_url(endpoint: &Url) -> Self {
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

impl HttpClients {
    fn get_or_build(
        &self,
        (route, address_policy): (HostRoute, AddressPolicy),
        connect_timeout: Duration,
    ) -> Result<Client, String> {
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&(route, address_policy, connect_timeout)) {
            return Ok(client.clone());
        }
        let client = build_client(route, address_policy, connect_timeout)?;
        clients.insert((route, address_policy, connect_timeout), client.clone());
        Ok(client)
    }
}

/// An HTTP client for servers other than models, with the same TLS settings and address checks.
pub(crate) fn build_http_client(
    url: &Url,
    address_policy: AddressPolicy,
    connect_timeout: Duration,
) -> Result<Client, String> {
    if address_policy == AddressPolicy::PublicOnly {
        check_url(url, is_public).map_err(|why| format!("{why}; {PRIVATE_ADDRESS_HINT}"))?;
    }
    build_client(HostRoute::from_url(url), address_policy, connect_timeout)
}

fn build_client(route: HostRoute, address_policy: AddressPolicy, connect_timeout: Duration) -> Result<Client, String> {
    let builder = Client::builder()
        .user_agent(concat!("quell/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(connect_timeout)
        // A redirect would send the key and the conversation to a host that is not configured.
        .redirect(Policy::none())
        // The retry policy of the kernel is the only one.
        .retry(reqwest::retry::never());
    let builder = match route {
        HostRoute::Loopback => configure_plain(builder)?.no_proxy(),
        HostRoute::Plain => configure_plain(builder)?,
        HostRoute::Tls => configure_tls(builder),
    };
    let builder = match address_policy {
        AddressPolicy::Any => builder,
        // A proxy would connect to unchecked addresses.
        AddressPolicy::PublicOnly => builder.no_proxy().dns_resolver(Arc::new(CheckedResolver::new(is_public))),
    };
    builder
        .build()
        .map_err(|error| format!("the HTTP client cannot be built: {}", super::attempt_failure::root_cause(&error)))
}

/// Without TLS no certificates are loaded, so a machine that has none can use local models. Connections are not pooled:
/// a new one costs microseconds, and a run's socket then closes with its request.
fn configure_plain(builder: ClientBuilder) -> Result<ClientBuilder, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Ok(builder.tls_backend_preconfigured(tls).http1_only().pool_max_idle_per_host(0))
}

fn configure_tls(builder: ClientBuilder) -> ClientBuilder {
    // The only provider that is linked. The call fails if it is installed already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    builder
        .pool_max_idle_per_host(TLS_IDLE_CONNECTIONS)
        .pool_idle_timeout(TLS_IDLE_TIMEOUT)
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
}

fn endpoint_url(config: &ProviderConfig) -> Result<Url, String> {
    let base = match (&config.base_url, config.kind) {
        (Some(base), _) => base.as_str(),
        (None, ProviderKind::Openai) => "https://api.openai.com/v1",
        (None, ProviderKind::Anthropic) => "https://api.anthropic.com/v1",
        (None, ProviderKind::Demo) => return Err("the demo model is not started, so it has no base_url".to_owned()),
    };
    // The query may contain a key.
    let shown = base.split('?').next().unwrap_or_default();
    let wrong = |problem: &str| format!("base_url `{shown}` {problem}; it should look like https://host/v1");
    let mut url = Url::parse(base).map_err(|error| wrong(&format!("is no URL ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("is neither http nor https"));
    }
    url.set_fragment(None);
    let endpoint_path = ProviderDialect::from_kind(config.kind).endpoint_path();
    url.path_segments_mut().map_err(|()| wrong("cannot have a path"))?.pop_if_empty().extend(endpoint_path);
    Ok(url)
}

fn request_headers(config: &ProviderConfig) -> Result<(HeaderMap, Vec<SecretString>), String> {
    let mut headers = HeaderMap::new();
    let mut secrets = Vec::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    let dialect = ProviderDialect::from_kind(config.kind);
    for (name, value) in dialect.fixed_headers() {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if let Some(key) = &config.api_key {
        let header = dialect.key_header(key).ok_or("the API key holds a character that no header can carry")?;
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

fn parse_timeout(name: &str, seconds: f64) -> Result<Duration, String> {
    if seconds > 0.0 && seconds <= MAX_TIMEOUT_S {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(format!("{name} is {seconds}; it must be more than 0 and at most {MAX_TIMEOUT_S} seconds"))
    }
}

#[cfg(test)]
mod tests;
