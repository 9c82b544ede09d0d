//! Header fields that concern one connection only (RFC 9110, 7.6.1), and the one change of protocol that is passed on.

use hyper::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};

/// Fields that are not passed on besides those that Connection names. Expect has been answered by hyper.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "expect",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Removes what is meant for the next connection only. hyper adds what the other connection needs.
pub(super) fn forward_headers(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = connection_options(headers).filter_map(|name| name.parse().ok()).collect();
    for name in named {
        // The length belongs to the message, whatever Connection says.
        if name != hyper::header::CONTENT_LENGTH {
            headers.remove(name);
        }
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// WebSocket is the only protocol that is passed on: any other, such as `h2c`, could carry requests for other hosts.
pub(super) fn is_websocket_upgrade(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(UPGRADE).iter();
    let is_websocket = protocols.next().is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    is_websocket
        && protocols.next().is_none()
        && connection_options(headers).any(|option| option.eq_ignore_ascii_case("upgrade"))
}

pub(super) fn set_websocket_upgrade(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// Each connection to a server carries one request.
pub(super) fn set_close(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
}

fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}
