//! HTTP client with a body limit and errors that say whether the request may have had an effect.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quell_protocol::display_text::replace_controls;
use reqwest::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, RequestBuilder, StatusCode};
use url::{Host, Url};

use crate::network::{NetworkError, SendError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// HTTP/2 pings on a connection that carries a call: interval, and time limit of the response.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of one file, in either direction.
pub(crate) const FILE_TIMEOUT: Duration = Duration::from_secs(120);
/// A larger response is an error and is not read to its end.
const MAX_BODY_BYTES: usize = 32 * 1024 * 1024;
/// Longest pause, in seconds, that a server can ask for.
const MAX_RETRY_AFTER_SECS: f64 = 86_400.0;
/// Characters of an error body that are shown.
const MAX_SHOWN_CHARS: usize = 300;

/// A response whose body was read to its end.
#[derive(Debug, Clone)]
pub(crate) struct HttpResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A request without a response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoHttpResponse {
    /// The request did not reach the server: it had no effect.
    #[error("the server cannot be reached: {0}")]
    ConnectFailed(String),
    /// The request may have had an effect.
    #[error("the answer was lost: {0}")]
    ResponseLost(String),
}

/// Builds a client for the API at `base`. It follows no redirects, because a token goes with each request.
pub(crate) fn build_client(base: &Url) -> Result<Client, NetworkError> {
    // The first caller installs it; all providers are the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = Client::builder().connect_timeout(CONNECT_TIMEOUT).redirect(Policy::none());
    let builder = match base.scheme() {
        "http" => with_empty_trust_store(builder)?,
        _ => builder.http2_keep_alive_interval(KEEPALIVE_INTERVAL).http2_keep_alive_timeout(KEEPALIVE_TIMEOUT),
    };
    // A server on this machine needs no proxy, and no proxy should see these requests.
    let builder = if is_local(base) { builder.no_proxy() } else { builder };
    builder.build().map_err(|error| NetworkError(format!("no HTTP client can be made: {}", innermost_cause(&error))))
}

/// True for an address on this machine.
pub(crate) fn is_local(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Parses the address of an API to which a token is sent, so it needs TLS except on this machine.
pub(crate) fn parse_api_base(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text).map_err(|_| "this is no URL; without the key the public API is taken")?;
    match url.scheme() {
        "https" => {}
        // Names below localhost are asked of a name server on some systems.
        "http" if is_local(&url) && !url.host_str().is_some_and(|name| name.ends_with(".localhost")) => {}
        _ => return Err("it has to begin with https://, because the token is sent there"),
    }
    if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
        return Err("it may have neither a user, nor a query, nor a fragment");
    }
    Ok(url)
}

/// The value of a header with a secret, which `Debug` does not show; `None` if it does not fit into a header.
pub(crate) fn secret_header(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A URL with these segments behind its path. Each is encoded, and `..` is dropped: they cannot leave their folder.
pub(crate) fn extend_path<'a>(base: &Url, segments: impl IntoIterator<Item = &'a str>) -> Url {
    let mut url = base.clone();
    // Only a URL without a host has no path, and no network accepts one.
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

/// Plain HTTP needs no certificates: with an empty store it also works on a machine that has none.
fn with_empty_trust_store(builder: ClientBuilder) -> Result<ClientBuilder, NetworkError> {
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| NetworkError(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Ok(builder.tls_backend_preconfigured(tls))
}

/// Sends a request and reads its response, within `time`.
///
/// # Errors
/// [`NoHttpResponse`]. A response with an error status is `Ok`.
///
/// # Cancel safety
/// Safe: the request is abandoned; the server may have acted on it.
pub(crate) async fn send_request(request: RequestBuilder, time: Duration) -> Result<HttpResponse, NoHttpResponse> {
    send_request_limited(request, time, MAX_BODY_BYTES).await
}

/// Like [`send_request`], for a response of at most `max_bytes` bytes.
///
/// # Errors
/// [`NoHttpResponse`]. A response with an error status is `Ok`.
///
/// # Cancel safety
/// Like [`send_request`].
pub(crate) async fn send_request_limited(
    request: RequestBuilder,
    time: Duration,
    max_bytes: usize,
) -> Result<HttpResponse, NoHttpResponse> {
    let call = async {
        let response = request.send().await.map_err(|error| classify_error(&error))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = read_body(response, max_bytes).await?;
        Ok(HttpResponse { status, headers, body })
    };
    let timed_out = || NoHttpResponse::ResponseLost(format!("nothing came within {} s", time.as_secs()));
    tokio::time::timeout(time, call).await.unwrap_or_else(|_| Err(timed_out()))
}

/// Downloads a file of at most `max_bytes` bytes. See [`HttpResponse::into_file`].
///
/// # Cancel safety
/// Safe: the download is abandoned.
pub(crate) async fn fetch_file(request: RequestBuilder, max_bytes: u64) -> Result<HttpResponse, NetworkError> {
    let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
    let response = send_request_limited(request, FILE_TIMEOUT, max_bytes).await;
    response.map_err(|none| NetworkError(format!("the file cannot be fetched: {none}")))
}

async fn read_body(mut response: reqwest::Response, max_bytes: usize) -> Result<Bytes, NoHttpResponse> {
    let too_large = || NoHttpResponse::ResponseLost(format!("it is larger than {max_bytes} bytes"));
    // Refuse by the announced length before anything is read. A wrong length is found below.
    if response.content_length().is_some_and(|length| usize::try_from(length).map_or(true, |length| length > max_bytes))
    {
        return Err(too_large());
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| classify_error(&error))? {
        if body.len() + chunk.len() > max_bytes {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.into())
}

/// The pause that a server asks for, in seconds; at most a day. None for a negative number.
pub(crate) fn retry_delay(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds.min(MAX_RETRY_AFTER_SECS)).ok()
}

fn classify_error(error: &reqwest::Error) -> NoHttpResponse {
    let is_connect_error = error.is_connect();
    // Use the innermost cause only: the outer error shows the URL, which may hold a token.
    let text = innermost_cause(error);
    if is_connect_error { NoHttpResponse::ConnectFailed(text) } else { NoHttpResponse::ResponseLost(text) }
}

/// The innermost cause, which names no URL.
fn innermost_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    let mut text = if error.is_timeout() { "timed out".to_owned() } else { "the connection failed".to_owned() };
    while let Some(next) = cause.source() {
        text = next.to_string();
        cause = next;
    }
    text
}

impl HttpResponse {
    /// The body as JSON; null if it is not valid JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or(serde_json::Value::Null)
    }

    /// The body, if the status is a success.
    pub(crate) fn into_file(self) -> Result<Vec<u8>, NetworkError> {
        if self.status.is_success() {
            return Ok(self.body.into());
        }
        Err(NetworkError(format!("the file cannot be fetched: HTTP {}", self.status.as_u16())))
    }

    /// The pause that the server asks for in `Retry-After`, in seconds.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        retry_delay(self.headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?)
    }

    /// The status and the beginning of the body, for people.
    pub(crate) fn describe(&self) -> String {
        let body = String::from_utf8_lossy(&self.body);
        format!("HTTP {}: {}", self.status.as_u16(), replace_controls(&body, MAX_SHOWN_CHARS).trim())
    }
}

impl NoHttpResponse {
    pub(crate) fn into_send_error(self, repeatable: Repeatable) -> SendError {
        match self {
            Self::ConnectFailed(why) => SendError::NotDelivered { why, retry_after: None },
            Self::ResponseLost(why) => SendError::Unknown { why, is_repeatable: repeatable == Repeatable::Yes },
        }
    }
}

/// Whether the network shows a message once when it is sent again with the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeatable {
    Yes,
    /// It may show the message twice.
    No,
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Calls a server that sends this raw response; at most ten bytes of body are accepted.
    async fn call_answering(answer: &str) -> Result<HttpResponse, NoHttpResponse> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let request = build_client(&url).unwrap().get(url);
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = [0; 1024];
            assert!(stream.read(&mut asked).await.unwrap() > 0);
            stream.write_all(answer.as_bytes()).await.unwrap();
            // Keep the connection open, so that its end is not taken for the end of the response.
            stream.read_to_end(&mut Vec::new()).await.unwrap();
        };
        tokio::select! {
            answer = send_request_limited(request, Duration::from_secs(30), 10) => answer,
            () = serve => panic!("the client left"),
        }
    }

    #[rstest]
    #[case::said_before("HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n")]
    #[case::not_said("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\n12345678\r\n3\r\n123\r\n")]
    #[tokio::test]
    async fn an_answer_that_is_too_large_is_not_read_to_its_end(#[case] answer: &str) {
        let lost = call_answering(answer).await.unwrap_err();
        assert_eq!(lost, NoHttpResponse::ResponseLost("it is larger than 10 bytes".to_owned()));
    }

    #[tokio::test]
    async fn an_answer_that_just_fits_is_read() {
        let answer = call_answering("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n1234567890").await.unwrap();
        assert_eq!(&answer.body[..], b"1234567890");
    }

    #[tokio::test]
    async fn a_redirect_is_an_answer_and_not_followed() {
        let answer = call_answering("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n")
            .await
            .unwrap();
        assert_eq!(answer.status.as_u16(), 302);
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_has_certainly_done_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}/secret", listener.local_addr().unwrap())).unwrap();
        drop(listener);
        let none = send_request(build_client(&url).unwrap().get(url), Duration::from_secs(30)).await.unwrap_err();
        assert!(matches!(none, NoHttpResponse::ConnectFailed(_)), "{none:?}");
        assert!(!none.to_string().contains("secret"), "{none}");
    }

    #[rstest]
    #[case("http://localhost:8008", true)]
    #[case("http://matrix.localhost", true)]
    #[case("http://127.0.0.2", true)]
    #[case("http://[::1]:8008/api", true)]
    #[case("http://localhost.example", false)]
    #[case("http://192.168.0.1", false)]
    #[case("https://discord.com", false)]
    fn local_urls_are_recognised(#[case] url: &str, #[case] here: bool) {
        assert_eq!(is_local(&Url::parse(url).unwrap()), here);
    }

    #[rstest]
    #[case(1.5, Some(Duration::from_millis(1500)))]
    #[case(0.0, Some(Duration::ZERO))]
    #[case(1e300, Some(Duration::from_secs(86_400)))]
    #[case(f64::INFINITY, Some(Duration::from_secs(86_400)))]
    #[case(-1.0, None)]
    fn a_pause_is_at_most_a_day(#[case] seconds: f64, #[case] expected: Option<Duration>) {
        assert_eq!(retry_delay(seconds), expected);
    }
}
