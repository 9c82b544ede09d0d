//! By which names the daemon may be addressed. A page of a foreign site whose name is made to lead to this machine (DNS
//! rebinding) is the daemon's own origin for the browser: its `Host` is what gives it away.
//!
//! An IP address is no name that somebody else could make to lead here. `/healthz` and `/readyz` are answered by any name: probes
//! use many, and the answer tells nothing.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use quell_protocol::ErrorCode;

use super::refuse;
use crate::door::Door;

/// Refuses what is meant for another name.
pub(super) async fn check(State(door): State<Door>, request: Request, next: Next) -> Response {
    let is_probe = matches!(request.uri().path(), "/healthz" | "/readyz");
    match foreign_host(request.headers(), request.uri(), &door) {
        Some(host) if !is_probe => refuse(
            ErrorCode::BadHost,
            format!(
                "this daemon is not known by the name {host:?}; if it is right, add it to allowed_hosts in [server]"
            ),
        )
        .into_response(),
        _ => next.run(request).await,
    }
}

/// The name that is none of the daemon's. No name at all is nobody's: every browser sends one.
fn foreign_host(headers: &HeaderMap, uri: &Uri, door: &Door) -> Option<String> {
    let in_headers = headers.get_all(header::HOST).into_iter().map(|host| String::from_utf8_lossy(host.as_bytes()));
    let in_uri = uri.authority().map(|authority| authority.as_str().into());
    let mut named = in_headers.chain(in_uri);
    named.find(|host| !name_of(host).is_some_and(|name| is_own(&name, door.own_names()))).map(Into::into)
}

fn is_own(name: &str, own: &[String]) -> bool {
    let is_address = name.parse::<Ipv4Addr>().is_ok() || name.starts_with('[');
    is_address || name == "localhost" || name.ends_with(".localhost") || own.iter().any(|own| own == name)
}

/// A name without its port, in small letters and without the dot of the root; none where it cannot be one.
pub(crate) fn name_of(host: &str) -> Option<String> {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        Some((before, _)) if host.starts_with('[') && host.ends_with(']') && !before.is_empty() => host,
        Some(_) => return None,
        None => host,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let legal = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !name.is_empty() && name.bytes().all(plain),
    };
    legal.then(|| name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{is_own, name_of};

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
        assert_eq!(name_of(host).as_deref(), name);
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
        assert_eq!(is_own(name, &["quell.lan".to_owned()]), own);
    }
}
