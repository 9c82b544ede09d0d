//! Reject requests whose Host header is not a name of this daemon (DNS rebinding protection).
//!
//! A foreign site can let its name resolve to this machine. The browser then takes the daemon for that site's own
//! origin; only the `Host` header shows the foreign name.
//!
//! An IP address cannot be redirected in this way and is accepted. `/healthz` and `/readyz` accept any name: probes use
//! many, and the response contains nothing secret.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use quell_protocol::ErrorCode;

use super::problem_response;
use crate::state::ServerState;

pub(super) async fn check_host(State(server): State<ServerState>, request: Request, next: Next) -> Response {
    let is_probe = matches!(request.uri().path(), "/healthz" | "/readyz");
    match foreign_host(request.headers(), request.uri(), &server) {
        Some(host) if !is_probe => problem_response(
            ErrorCode::BadHost,
            format!(
                "this daemon is not known by the name {host:?}; if it is right, add it to allowed_hosts in [server]"
            ),
        )
        .into_response(),
        _ => next.run(request).await,
    }
}

/// The name in the request that is not the daemon's. A request without a name is accepted: every browser sends one.
fn foreign_host(headers: &HeaderMap, uri: &Uri, server: &ServerState) -> Option<String> {
    let in_headers = headers.get_all(header::HOST).into_iter().map(|host| String::from_utf8_lossy(host.as_bytes()));
    let in_uri = uri.authority().map(|authority| authority.as_str().into());
    let mut hosts = in_headers.chain(in_uri);
    hosts.find(|host| !normalize_host(host).is_some_and(|name| is_own_host(&name, server.own_hosts()))).map(Into::into)
}

fn is_own_host(name: &str, own: &[String]) -> bool {
    let is_address = name.parse::<Ipv4Addr>().is_ok() || name.starts_with('[');
    is_address || name == "localhost" || name.ends_with(".localhost") || own.iter().any(|own| own == name)
}

/// The name without its port, in lower case and without the trailing dot; `None` if it is not a valid host name.
pub(crate) fn normalize_host(host: &str) -> Option<String> {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        Some((before, _)) if host.starts_with('[') && host.ends_with(']') && !before.is_empty() => host,
        Some(_) => return None,
        None => host,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let is_valid = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !name.is_empty() && name.bytes().all(is_name_byte),
    };
    is_valid.then(|| name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{is_own_host, normalize_host};

    #[rstest]
    #[case("Quell.Example.org:443", Some("quell.example.org"))]
    #[case("localhost.", Some("localhost"))]
    #[case("[::1]:7171", Some("[::1]"))]
    #[case("[::1]", Some("[::1]"))]
    #[case("127.0.0.1", Some("127.0.0.1"))]
    #[case("a:b", None)]
    #[case(":7171", None)]
    #[case("", None)]
    #[case("localhost@evil.example", None)]
    #[case("localhost/x", None)]
    #[case("::1", None)]
    fn a_name_is_read_without_its_port(#[case] host: &str, #[case] name: Option<&str>) {
        assert_eq!(normalize_host(host).as_deref(), name);
    }

    #[rstest]
    #[case("localhost", true)]
    #[case("a.localhost", true)]
    #[case("10.0.0.9", true)]
    #[case("[fe80::1]", true)]
    #[case("quell.lan", true)]
    #[case("127.0.0.1.evil.example", false)]
    #[case("localhost.evil.example", false)]
    #[case("evil-quell.lan", false)]
    #[case("2130706433", false)]
    #[case("0x7f.1", false)]
    fn addresses_and_own_names_are_own(#[case] name: &str, #[case] own: bool) {
        assert_eq!(is_own_host(name, &["quell.lan".to_owned()]), own);
    }
}
