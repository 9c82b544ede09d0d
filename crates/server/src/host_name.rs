//! Host names of requests and of `allowed_hosts`.

use std::net::Ipv6Addr;

/// Checks an entry of `allowed_hosts`; returns why it is invalid.
pub fn host_entry_problem(entry: &str) -> Option<String> {
    let text = format!(
        "{entry:?} is no host name; write it as in \"quell.example.org\", without scheme, path or wildcard. An IP address needs no entry"
    );
    normalize_host(entry).is_none().then_some(text)
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

    use super::normalize_host;

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
}
