//! HTTP calls to a network's API: one client, JSON in and out, and an error that says whether the call may have had an effect.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, RequestBuilder, StatusCode};
use url::{Host, Url};

use crate::channels::seam::{NotSent, Trouble};

/// Connecting to an API.
const CONNECT: Duration = Duration::from_secs(15);
/// A connection that carries a call is asked so often whether it is still there, and given up after so long (HTTP/2).
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_WAIT: Duration = Duration::from_secs(10);
/// An answer that is larger is not read to its end.
const LARGEST: usize = 32 * 1024 * 1024;
/// The longest time, in seconds, for which a server is left alone because it says so.
const LONGEST_PAUSE: f64 = 86_400.0;
/// How much of an error's text is shown.
const SHOWN: usize = 300;

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A call that got no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// The request did not reach the server: it had no effect.
    #[error("the server cannot be reached: {0}")]
    Unreached(String),
    /// It may have.
    #[error("the answer was lost: {0}")]
    Lost(String),
}

/// A client for the API at this address. It follows no redirects, because a token goes with each request.
pub(crate) fn client(base: &Url) -> Result<Client, Trouble> {
    // Whoever comes first installs it; one is as good as another.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = Client::builder().connect_timeout(CONNECT).redirect(Policy::none());
    let builder = match base.scheme() {
        "http" => plain(builder)?,
        _ => builder.http2_keep_alive_interval(PING_EVERY).http2_keep_alive_timeout(PING_WAIT),
    };
    // No proxy has anything to do with a server on this machine, and none is to see what goes there.
    let builder = if is_here(base) { builder.no_proxy() } else { builder };
    builder.build().map_err(|error| Trouble(format!("no HTTP client can be made: {}", source_text(&error))))
}

/// True for an address on this machine.
pub(crate) fn is_here(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Without TLS there is nothing to load, so that a machine without certificates can have a server of its own.
fn plain(builder: ClientBuilder) -> Result<ClientBuilder, Trouble> {
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Trouble(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Ok(builder.tls_backend_preconfigured(tls))
}

/// Sends a request and reads its answer, within `time`.
///
/// # Errors
/// [`NoAnswer`]; a status that is an error is an answer.
///
/// # Cancel safety
/// Safe: the request is given up; the server may have acted on it.
pub(crate) async fn call(request: RequestBuilder, time: Duration) -> Result<Answer, NoAnswer> {
    call_at_most(request, time, LARGEST).await
}

/// As [`call`], for an answer that has `most` bytes at the most.
///
/// # Errors
/// [`NoAnswer`]; a status that is an error is an answer.
///
/// # Cancel safety
/// As [`call`].
pub(crate) async fn call_at_most(request: RequestBuilder, time: Duration, most: usize) -> Result<Answer, NoAnswer> {
    let sent = async {
        let response = request.send().await.map_err(|error| no_answer(&error))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = read(response, most).await?;
        Ok(Answer { status, headers, body })
    };
    let late = || NoAnswer::Lost(format!("nothing came within {} s", time.as_secs()));
    tokio::time::timeout(time, sent).await.unwrap_or_else(|_| Err(late()))
}

async fn read(mut response: reqwest::Response, most: usize) -> Result<Bytes, NoAnswer> {
    let larger = || NoAnswer::Lost(format!("it is larger than {most} bytes"));
    // Said before anything of it is read; what lies about its length is found below.
    if response.content_length().is_some_and(|length| usize::try_from(length).map_or(true, |length| length > most)) {
        return Err(larger());
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| no_answer(&error))? {
        if body.len() + chunk.len() > most {
            return Err(larger());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.into())
}

/// A time in seconds for which a server wants to be left alone. What is longer than a day is a day.
pub(crate) fn pause(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds.min(LONGEST_PAUSE)).ok()
}

fn no_answer(error: &reqwest::Error) -> NoAnswer {
    let connecting = error.is_connect();
    // A URL may hold a token.
    let text = source_text(error);
    if connecting { NoAnswer::Unreached(text) } else { NoAnswer::Lost(text) }
}

/// The innermost cause, which names no URL.
fn source_text(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    let mut text = if error.is_timeout() { "timed out".to_owned() } else { "the connection failed".to_owned() };
    while let Some(next) = cause.source() {
        text = next.to_string();
        cause = next;
    }
    text
}

impl Answer {
    /// The body as JSON; null when it is none.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or(serde_json::Value::Null)
    }

    /// How long the server wants to be left alone, from `Retry-After` in seconds.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        pause(self.headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?)
    }

    /// The status and the beginning of the body, for people.
    pub(crate) fn told(&self) -> String {
        let body = String::from_utf8_lossy(&self.body);
        let shown: String = body.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN).collect();
        format!("HTTP {}: {}", self.status.as_u16(), shown.trim())
    }
}

impl NoAnswer {
    /// As an error of sending.
    pub(crate) fn not_sent(self, repeatable: Repeatable) -> NotSent {
        match self {
            Self::Unreached(why) => NotSent::Undelivered { why, after: None },
            Self::Lost(why) => NotSent::Unknown { why, repeatable: repeatable == Repeatable::Yes },
        }
    }
}

/// Whether sending the same thing with the same key again shows it once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeatable {
    /// It does.
    Yes,
    /// It may show it twice.
    No,
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// What a call gets from a server that answers this, if it takes ten bytes.
    async fn called(answer: &str) -> Result<Answer, NoAnswer> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let request = client(&url).unwrap().get(url);
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = [0; 1024];
            assert!(stream.read(&mut asked).await.unwrap() > 0);
            stream.write_all(answer.as_bytes()).await.unwrap();
            // The connection stays open, so that nobody takes its end for the answer's.
            stream.read_to_end(&mut Vec::new()).await.unwrap();
        };
        tokio::select! {
            answer = call_at_most(request, Duration::from_secs(30), 10) => answer,
            () = serve => panic!("the client left"),
        }
    }

    #[rstest]
    #[case::said_before("HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n")]
    #[case::not_said("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\n12345678\r\n3\r\n123\r\n")]
    #[tokio::test]
    async fn an_answer_that_is_too_large_is_not_read_to_its_end(#[case] answer: &str) {
        let lost = called(answer).await.unwrap_err();
        assert_eq!(lost, NoAnswer::Lost("it is larger than 10 bytes".to_owned()));
    }

    #[tokio::test]
    async fn an_answer_that_just_fits_is_read() {
        let answer = called("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n1234567890").await.unwrap();
        assert_eq!(&answer.body[..], b"1234567890");
    }

    #[tokio::test]
    async fn a_redirect_is_an_answer_and_not_followed() {
        let answer =
            called("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        assert_eq!(answer.status.as_u16(), 302);
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_has_certainly_done_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}/secret", listener.local_addr().unwrap())).unwrap();
        drop(listener);
        let none = call(client(&url).unwrap().get(url), Duration::from_secs(30)).await.unwrap_err();
        assert!(matches!(none, NoAnswer::Unreached(_)), "{none:?}");
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
    fn what_is_on_this_machine_is_known(#[case] url: &str, #[case] here: bool) {
        assert_eq!(is_here(&Url::parse(url).unwrap()), here);
    }

    #[rstest]
    #[case(1.5, Some(Duration::from_millis(1500)))]
    #[case(0.0, Some(Duration::ZERO))]
    #[case(1e300, Some(Duration::from_secs(86_400)))]
    #[case(f64::INFINITY, Some(Duration::from_secs(86_400)))]
    #[case(-1.0, None)]
    fn a_pause_is_at_most_a_day(#[case] seconds: f64, #[case] expected: Option<Duration>) {
        assert_eq!(pause(seconds), expected);
    }
}
