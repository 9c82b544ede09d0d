//! Builds HTTP clients and shares them: one for each way to connect.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_kernel::public_address::is_public;
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Url};
use url::Host;

use crate::address::{AddressPolicy, CheckedResolver, check_url};

/// Idle TLS connections that are kept per host, and for how long. A handshake costs two round trips; HTTP/2 needs only
/// one connection.
const TLS_IDLE_CONNECTIONS: usize = 8;
const TLS_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a silent HTTP/2 connection is pinged, and how long the answer may take.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// HTTP clients, one for each way to connect that is in use, shared by all providers that connect that way. Clones
/// share one table.
#[derive(Debug, Clone, Default)]
pub struct HttpClients(Arc<Mutex<BTreeMap<HttpClientKey, Client>>>);

/// Advice for a person who names an address that a session may not reach.
pub const PRIVATE_ADDRESS_HINT: &str = "an admin may name it, or `[tools] fetch_private = true` permits it to all";

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

/// The URL without user, password and query.
pub fn without_secrets(url: &Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path())
}

/// True when requests to this URL stay on this machine.
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

impl HostRoute {
    fn from_url(endpoint: &Url) -> Self {
        match endpoint.scheme() {
            "https" => Self::Tls,
            _ if is_loopback(endpoint) => Self::Loopback,
            _ => Self::Plain,
        }
    }
}

impl HttpClients {
    /// The shared client for this URL, built when it is the first of its kind.
    ///
    /// # Errors
    /// The reason, when the client cannot be built.
    pub fn get_or_build(
        &self,
        url: &Url,
        address_policy: AddressPolicy,
        connect_timeout: Duration,
    ) -> Result<Client, String> {
        let route = HostRoute::from_url(url);
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
pub fn build_http_client(
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
    builder.build().map_err(|error| format!("the HTTP client cannot be built: {}", root_cause(&error)))
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

/// The innermost cause, which is the specific one. The text of reqwest itself is only "error sending request", and it
/// contains the URL, which may hold a secret.
pub fn root_cause(error: &reqwest::Error) -> String {
    match error_sources(error).last() {
        Some(cause) => cause.to_string(),
        None => "no further reason given".to_owned(),
    }
}

pub fn error_sources<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause| (*cause).source())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("http://localhost:1/v1", HostRoute::Loopback)]
    #[case("http://a.localhost/v1", HostRoute::Loopback)]
    #[case("http://127.8.0.1/v1", HostRoute::Loopback)]
    #[case("http://[::1]/v1", HostRoute::Loopback)]
    #[case("http://192.168.0.1/v1", HostRoute::Plain)]
    #[case("http://localhost.example/v1", HostRoute::Plain)]
    #[case("https://localhost/v1", HostRoute::Tls)]
    fn routes_are_told_apart(#[case] url: &str, #[case] route: HostRoute) {
        assert_eq!(HostRoute::from_url(&Url::parse(url).unwrap()), route);
    }

    #[test]
    fn urls_that_connect_alike_share_one_client() {
        let clients = HttpClients::default();
        for (url, seconds) in [("http://127.0.0.1:1", 10), ("http://[::1]:2", 10), ("http://[::1]", 1)] {
            let url = Url::parse(url).unwrap();
            clients.get_or_build(&url, AddressPolicy::Any, Duration::from_secs(seconds)).unwrap();
        }
        assert_eq!(clients.0.lock().unwrap().len(), 2);
    }
}
