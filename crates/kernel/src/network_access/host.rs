//! Hosts in one normal form, so that every spelling of a host gets the same decision.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::Host;

/// Longest name and longest label of the domain name system, in bytes.
const MAX_NAME_LENGTH: usize = 253;
const MAX_LABEL_LENGTH: usize = 63;

/// A host in its normal form.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TargetHost {
    /// ASCII, lower case, without a dot at the end. No other way to write an IP address.
    Name(String),
    /// An IPv4 address that is mapped into IPv6 is given as IPv4.
    Address(IpAddr),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostNameError {
    /// Neither a name nor an address.
    Invalid,
    /// A form of this IPv4 address that some programs accept: octal, hexadecimal, decimal, shortened.
    UnusualAddress(Ipv4Addr),
}

impl TargetHost {
    /// Parses a name, an IPv4 address, or an IPv6 address with or without brackets.
    ///
    /// # Errors
    /// Text that no name can be, and unusual forms of IPv4 addresses.
    pub fn parse(text: &str) -> Result<Self, HostNameError> {
        if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let address: Ipv6Addr = inner.parse().map_err(|_| HostNameError::Invalid)?;
            return Ok(Self::Address(IpAddr::V6(address).to_canonical()));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Address(address.to_canonical()));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if let Ok(address) = name.parse::<Ipv4Addr>() {
            return Ok(Self::Address(IpAddr::V4(address)));
        }
        // `Host` would decode escapes, and would remove some invisible characters.
        if name.len() > 4 * MAX_NAME_LENGTH || name.contains(['%', '[', ']']) || name.contains(char::is_control) {
            return Err(HostNameError::Invalid);
        }
        match Host::parse(name) {
            Ok(Host::Ipv4(address)) => Err(HostNameError::UnusualAddress(address)),
            Ok(Host::Domain(name)) if is_host_name(&name) => Ok(Self::Name(name)),
            Ok(_) | Err(_) => Err(HostNameError::Invalid),
        }
    }
}

fn is_host_name(name: &str) -> bool {
    let is_name_byte = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| (1..=MAX_LABEL_LENGTH).contains(&label.len()) && label.bytes().all(is_name_byte);
    name.len() <= MAX_NAME_LENGTH && name.split('.').all(is_label)
}

/// With brackets around an IPv6 address.
impl fmt::Display for TargetHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// Splits `host:port`; a text without a port gets `default_port`. The host keeps its brackets and is not checked.
/// `None` if the port is no number, or if a user name stands before the host.
pub fn split_authority(authority: &str, default_port: u16) -> Option<(&str, u16)> {
    if authority.contains('@') {
        return None;
    }
    let host_end = authority.rfind(']').map_or(0, |bracket| bracket + 1);
    let Some(colon) = authority.get(host_end..)?.find(':').map(|at| host_end + at) else {
        return Some((authority, default_port));
    };
    let (host, port) = (authority.get(..colon)?, authority.get(colon + 1..)?);
    Some((host, parse_port(port)?))
}

/// Digits alone, without the sign that `parse` accepts.
pub(super) fn parse_port(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
