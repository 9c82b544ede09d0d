//! Reject requests whose Host header is not a name of this daemon (DNS rebinding protection).
//!
//! A foreign site can let its name resolve to this machine. The browser then takes the daemon for that site's own
//! origin; only the `Host` header shows the foreign name.
//!
//! An IP address cannot be redirected in this way and is accepted. `/healthz` and `/readyz` accept any name: probes use
//! many, and the response contains nothing secret.

use std::net::Ipv4Addr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use quell_protocol::ErrorCode;

use super::problem_response;
use crate::host_name::normalize_host;
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::is_own_host;

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
