//! Where a request came from, for the list of who did what. Never for access: what a proxy says can be said by anybody.

use std::net::SocketAddr;
use std::sync::Arc;

/// Most characters that are kept of what a proxy says.
const MOST: usize = 200;

/// Where a request came from, as far as it is known. Clones are the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin(Option<Arc<str>>);

/// What the headers of a request say about those for whom it was forwarded.
#[derive(Debug, Clone, Copy, Default)]
pub struct Forwarded<'a> {
    /// `X-Forwarded-For`.
    pub x_forwarded_for: Option<&'a str>,
    /// `Forwarded` (RFC 7239).
    pub forwarded: Option<&'a str>,
}

impl Origin {
    /// A request from inside of this process.
    #[must_use]
    pub fn inside() -> Self {
        Self(None)
    }

    /// A request through the Unix socket, from the process of this number, if it has one here.
    #[must_use]
    pub fn local(pid: Option<i32>) -> Self {
        Self(Some(match pid {
            Some(pid) => format!("quell.sock, pid {pid}").into(),
            None => "quell.sock".into(),
        }))
    }

    /// A request from this peer. What it says about others is kept beside its own address, and only of a peer on this machine,
    /// which may be a proxy.
    #[must_use]
    pub fn of(peer: SocketAddr, said: Forwarded<'_>) -> Self {
        let ip = peer.ip().to_canonical();
        let told = said.x_forwarded_for.map(str::to_owned).or_else(|| said.forwarded.and_then(elements_for));
        let told = told.map(|told| tame(&told)).filter(|told| ip.is_loopback() && !told.is_empty());
        Self(Some(match told {
            Some(told) => format!("{ip}, forwarded for {told}").into(),
            None => ip.to_string().into(),
        }))
    }

    /// In words.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

/// The `for` of each element.
fn elements_for(header: &str) -> Option<String> {
    let pairs = header.split([',', ';']).filter_map(|pair| pair.trim().split_once('='));
    let whom = pairs.filter(|(name, _)| name.eq_ignore_ascii_case("for")).map(|(_, value)| value.trim_matches('"'));
    let whom: Vec<&str> = whom.collect();
    (!whom.is_empty()).then(|| whom.join(", "))
}

/// On one line, and not long. The end is kept: that is what the nearest proxy saw, while the beginning is what a client said.
fn tame(said: &str) -> String {
    let line: String = said.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let over = line.chars().count().saturating_sub(MOST);
    if over == 0 { line } else { format!("…{}", line.chars().skip(over).collect::<String>()) }
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
        #[case] wanted: &str,
    ) {
        let origin = Origin::of(peer.parse().unwrap(), Forwarded { x_forwarded_for, forwarded });
        assert_eq!(origin.as_str(), Some(wanted));
    }

    #[test]
    fn of_a_long_chain_the_nearest_are_kept() {
        let chain = format!("{}203.0.113.9", "spoofed, ".repeat(1000));
        let said = Forwarded { x_forwarded_for: Some(&chain), forwarded: None };
        let origin = Origin::of("127.0.0.1:1".parse().unwrap(), said);
        let text = origin.as_str().unwrap();
        assert!(text.ends_with(" 203.0.113.9") && text.chars().count() < 240, "{text}");
        assert_eq!(Origin::inside().as_str(), None);
    }
}
