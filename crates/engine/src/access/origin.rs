//! Origin of a request, for the audit list. Never used for access decisions, because anybody can send proxy headers.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Maximum characters that are kept of a proxy header.
const MAX_FORWARDED_CHARS: usize = 200;

/// Origin of a request, as text, if known. Clones share it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestOrigin(Option<Arc<str>>);

/// Headers in which proxies name the origin of a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct ForwardedHeaders<'a> {
    pub x_forwarded_for: Option<&'a str>,
    /// `Forwarded` (RFC 7239).
    pub forwarded: Option<&'a str>,
}

impl RequestOrigin {
    /// A request from inside this process.
    pub fn internal() -> Self {
        Self(None)
    }

    /// A request through the Unix socket. `pid` is `None` if the peer is not visible in this PID namespace.
    pub fn unix_socket(pid: Option<i32>) -> Self {
        Self(Some(match pid {
            Some(pid) => format!("quell.sock, pid {pid}").into(),
            None => "quell.sock".into(),
        }))
    }

    /// A request from this peer. Proxy headers are kept beside the peer's address, and only from a peer on this
    /// machine, which may be a proxy.
    pub fn from_peer(peer: SocketAddr, headers: ForwardedHeaders<'_>) -> Self {
        let ip = peer.ip().to_canonical();
        let forwarded_for =
            headers.x_forwarded_for.map(str::to_owned).or_else(|| headers.forwarded.and_then(forwarded_for_values));
        let forwarded_for =
            forwarded_for.map(|header| single_line(&header)).filter(|line| ip.is_loopback() && !line.is_empty());
        Self(Some(match forwarded_for {
            Some(line) => format!("{ip}, forwarded for {line}").into(),
            None => ip.to_string().into(),
        }))
    }

    pub fn as_str(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// The network that the request came from, if known; see [`RequestOrigin::network_of`].
    #[must_use]
    pub fn network(&self) -> Option<String> {
        self.as_str().map(Self::network_of)
    }

    /// The network of an origin that was stored as text: an IPv4 address, the /64 network of an IPv6 address, or the
    /// Unix socket. Of a chain of proxies, the peer and the address that it saw count.
    #[must_use]
    pub fn network_of(origin: &str) -> String {
        let (peer, forwarded) = origin.split_once(", forwarded for ").unzip();
        match (peer, forwarded.and_then(|chain| chain.rsplit(',').next())) {
            (Some(peer), Some(nearest)) => format!("{} for {}", network_text(peer), network_text(nearest.trim())),
            _ if origin.starts_with("quell.sock") => "quell.sock".to_owned(),
            _ => network_text(origin),
        }
    }
}

fn network_text(address: &str) -> String {
    match address.trim_matches(['[', ']']).parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(IpAddr::V6(ip)) => format!("{}/64", Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
        Ok(ip) => ip.to_string(),
        Err(_) => address.to_owned(),
    }
}

/// The `for` value of each element of a `Forwarded` header.
fn forwarded_for_values(header: &str) -> Option<String> {
    let pairs = header.split([',', ';']).filter_map(|pair| pair.trim().split_once('='));
    let values = pairs.filter(|(name, _)| name.eq_ignore_ascii_case("for")).map(|(_, value)| value.trim_matches('"'));
    let values: Vec<&str> = values.collect();
    (!values.is_empty()).then(|| values.join(", "))
}

/// Puts a header on one line and truncates it. The end is kept, because the nearest proxy wrote it; a client may have
/// written the beginning.
fn single_line(value: &str) -> String {
    let line: String = value.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let excess = line.chars().count().saturating_sub(MAX_FORWARDED_CHARS);
    if excess == 0 { line } else { format!("…{}", line.chars().skip(excess).collect::<String>()) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("192.0.2.7:5000", None, None, "192.0.2.7")]
    #[case("127.0.0.1:5000", None, None, "127.0.0.1")]
    #[case("127.0.0.1:5000", Some("203.0.113.9"), None, "127.0.0.1, forwarded for 203.0.113.9")]
    #[case("[::1]:5000", Some("10.0.0.1, 203.0.113.9"), None, "::1, forwarded for 10.0.0.1, 203.0.113.9")]
    #[case(
        "[::ffff:127.0.0.1]:5000",
        None,
        Some("for=\"[2001:db8::1]\";proto=https, FOR=192.0.2.1"),
        "127.0.0.1, forwarded for [2001:db8::1], 192.0.2.1"
    )]
    #[case("127.0.0.1:5000", None, Some("proto=https"), "127.0.0.1")]
    #[case("127.0.0.1:5000", Some("a\u{1b}[2Jb"), None, "127.0.0.1, forwarded for a [2Jb")]
    #[case("192.0.2.7:5000", Some("127.0.0.1"), Some("for=127.0.0.1"), "192.0.2.7")]
    fn a_peer_is_named_and_a_proxy_of_this_machine_is_quoted(
        #[case] peer: &str,
        #[case] x_forwarded_for: Option<&str>,
        #[case] forwarded: Option<&str>,
        #[case] expected: &str,
    ) {
        let origin = RequestOrigin::from_peer(peer.parse().unwrap(), ForwardedHeaders { x_forwarded_for, forwarded });
        assert_eq!(origin.as_str(), Some(expected));
    }

    #[rstest]
    #[case("192.0.2.7", "192.0.2.7")]
    #[case("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64")]
    #[case("quell.sock, pid 77", "quell.sock")]
    #[case("quell.sock", "quell.sock")]
    #[case("127.0.0.1, forwarded for spoofed, 203.0.113.9", "127.0.0.1 for 203.0.113.9")]
    #[case("::1, forwarded for [2001:db8::1]", "::/64 for 2001:db8::/64")]
    fn an_origin_belongs_to_a_network(#[case] origin: &str, #[case] network: &str) {
        assert_eq!(RequestOrigin::network_of(origin), network);
    }

    #[test]
    fn of_a_long_chain_the_nearest_are_kept() {
        let chain = format!("{}203.0.113.9", "spoofed, ".repeat(1000));
        let headers = ForwardedHeaders { x_forwarded_for: Some(&chain), forwarded: None };
        let origin = RequestOrigin::from_peer("127.0.0.1:1".parse().unwrap(), headers);
        let text = origin.as_str().unwrap();
        assert!(text.ends_with(" 203.0.113.9") && text.chars().count() < 240, "{text}");
        assert_eq!(RequestOrigin::internal().as_str(), None);
    }
}
