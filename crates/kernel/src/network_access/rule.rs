//! One entry of a network list, and what is wrong with a text that is none.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use super::host::{HostNameError, TargetHost, parse_port};
use crate::public_address::{is_non_public_network, is_public};

/// An entry of a network list, `HOST:PORT`.
///
/// The host is a name (`example.org`), every name below one (`*.example.org`, without `example.org` itself), an IPv4
/// address, an IPv6 address in brackets, or a network (`10.0.0.0/8`, `[fd00::/8]`). The port is a number or `*`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NetworkRule {
    host: HostPattern,
    port: PortPattern,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum HostPattern {
    Exact(TargetHost),
    /// Every name that ends with a dot and this.
    Below(String),
    Network(IpNetwork),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PortPattern {
    Any,
    /// Never 0.
    One(u16),
}

/// The first address, and the length of the prefix in bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct IpNetwork {
    first: IpAddr,
    prefix: u32,
}

/// A text that is no entry of a network list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NetworkRuleError(String);

impl NetworkRuleError {
    pub(super) fn empty_list() -> Self {
        Self("an empty list allows nothing; write \"off\" instead".to_owned())
    }
}

impl NetworkRule {
    /// True if one of the entries is this one, or allows the one server that this one names.
    pub(super) fn is_within(&self, entries: &[Self]) -> bool {
        let allows_server = |entry: &Self| match (&self.host, self.port) {
            (HostPattern::Exact(TargetHost::Name(name)), PortPattern::One(port)) => entry.allows_name(name, port),
            (HostPattern::Exact(TargetHost::Address(address)), PortPattern::One(port)) => {
                entry.allows_address(*address, port)
            }
            _ => false,
        };
        entries.iter().any(|entry| entry == self || allows_server(entry))
    }

    pub(super) fn allows_name(&self, name: &str, port: u16) -> bool {
        let is_host = match &self.host {
            HostPattern::Exact(host) => matches!(host, TargetHost::Name(listed) if listed == name),
            HostPattern::Below(parent) => name.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.')),
            HostPattern::Network(_) => false,
        };
        is_host && self.port.allows(port)
    }

    pub(super) fn allows_address(&self, address: IpAddr, port: u16) -> bool {
        let is_host = match &self.host {
            HostPattern::Exact(host) => *host == TargetHost::Address(address),
            HostPattern::Below(_) => false,
            HostPattern::Network(network) => network.allows(address),
        };
        is_host && self.port.allows(port)
    }

    /// True if the entry is for this host, on whatever port.
    pub(super) fn names_host(&self, host: &TargetHost) -> bool {
        let port = match self.port {
            PortPattern::Any => 1,
            PortPattern::One(port) => port,
        };
        match host {
            TargetHost::Name(name) => self.allows_name(name, port),
            TargetHost::Address(address) => self.allows_address(*address, port),
        }
    }
}

impl PortPattern {
    fn allows(self, port: u16) -> bool {
        match self {
            Self::Any => true,
            Self::One(listed) => listed == port,
        }
    }
}

impl IpNetwork {
    fn contains(self, address: IpAddr) -> bool {
        let shift = |bits: u32| bits.saturating_sub(self.prefix);
        match (self.first, address) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                (u32::from(first) ^ u32::from(address)).checked_shr(shift(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                (u128::from(first) ^ u128::from(address)).checked_shr(shift(128)).unwrap_or(0) == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    fn allows(self, address: IpAddr) -> bool {
        self.contains(address) && (is_public(address) || is_non_public_network(self.first, self.prefix))
    }
}

impl FromStr for NetworkRule {
    type Err = NetworkRuleError;

    fn from_str(entry: &str) -> Result<Self, NetworkRuleError> {
        let wrong = |problem: String| NetworkRuleError(format!("{entry:?} {problem}"));
        if let Some((_, rest)) = entry.split_once("://") {
            let host = rest.split(['/', ':']).next().unwrap_or_default();
            return Err(wrong(format!("is a URL; write host and port, such as \"{host}:443\"")));
        }
        let (host, port) = split_entry(entry).map_err(wrong)?;
        let port = match port {
            "*" => PortPattern::Any,
            port => match parse_port(port) {
                Some(port) if port > 0 => PortPattern::One(port),
                _ => return Err(wrong(format!("has the port {port:?}; write a number from 1 to 65535, or *"))),
            },
        };
        parse_host_pattern(host).map(|host| Self { host, port }).map_err(wrong)
    }
}

/// Host and port, which has to be there.
fn split_entry(entry: &str) -> Result<(&str, &str), String> {
    let host_end = entry.rfind(']').map_or(0, |bracket| bracket + 1);
    let colon = entry.get(host_end..).and_then(|rest| rest.rfind(':')).map(|at| host_end + at);
    let Some((host, port)) = colon.and_then(|colon| Some((entry.get(..colon)?, entry.get(colon + 1..)?))) else {
        return Err(format!("has no port; write \"{entry}:443\", or \"{entry}:*\" for every port"));
    };
    if entry.parse::<Ipv6Addr>().is_ok() || host.parse::<Ipv6Addr>().is_ok() {
        return Err("is an IPv6 address without brackets; write \"[ADDRESS]:PORT\"".to_owned());
    }
    Ok((host, port))
}

fn parse_host_pattern(host: &str) -> Result<HostPattern, String> {
    if host == "*" {
        return Err("would allow every host; write network = \"on\" for that".to_owned());
    }
    if host.contains('/') {
        return parse_network(host).map(HostPattern::Network);
    }
    let parent = host.strip_prefix("*.");
    if parent.unwrap_or(host).contains('*') {
        return Err(
            "has a star inside of the host; a star stands for the first part alone, as in \"*.example.org:443\""
                .to_owned(),
        );
    }
    let parsed = TargetHost::parse(parent.unwrap_or(host)).map_err(|error| match error {
        HostNameError::UnusualAddress(address) => format!("is an unusual form of an address; write {address}"),
        HostNameError::Invalid => {
            "names no host; write a name such as \"example.org:443\", or an IP address such as \"192.0.2.1:443\" or \
             \"[2001:db8::1]:443\""
                .to_owned()
        }
    })?;
    match (parent, parsed) {
        (None, TargetHost::Address(address)) if !can_be_a_server(address) => {
            Err("is no address of a server: it is unspecified, multicast or broadcast".to_owned())
        }
        (None, host) => Ok(HostPattern::Exact(host)),
        (Some(_), TargetHost::Name(parent)) => Ok(HostPattern::Below(parent)),
        (Some(_), TargetHost::Address(_)) => {
            Err("has a star before an address; write a network such as \"10.0.0.0/8:443\"".to_owned())
        }
    }
}

fn can_be_a_server(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && address != IpAddr::V4(Ipv4Addr::BROADCAST)
}

fn parse_network(host: &str) -> Result<IpNetwork, String> {
    let inner = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let example = "is no network; write one such as \"10.0.0.0/8:443\" or \"[fd00::/8]:443\"";
    let (first, prefix) = inner.split_once('/').ok_or(example)?;
    let first: IpAddr = first.parse().map_err(|_| example)?;
    let bits = if first.is_ipv4() { 32 } else { 128 };
    let prefix = parse_port(prefix).map(u32::from).filter(|prefix| *prefix <= bits).ok_or(example)?;
    let masked: IpAddr = match first {
        IpAddr::V4(first) => {
            let mask = u32::MAX.checked_shl(bits - prefix).unwrap_or(0);
            Ipv4Addr::from(u32::from(first) & mask).into()
        }
        IpAddr::V6(first) => {
            let mask = u128::MAX.checked_shl(bits - prefix).unwrap_or(0);
            Ipv6Addr::from(u128::from(first) & mask).into()
        }
    };
    let network = IpNetwork { first: masked, prefix };
    if masked != first {
        return Err(format!("is an address inside of a network; write {network}"));
    }
    Ok(network)
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first {
            IpAddr::V4(first) => write!(f, "{first}/{}", self.prefix),
            IpAddr::V6(first) => write!(f, "[{first}/{}]", self.prefix),
        }
    }
}

/// The normal form of the entry.
impl fmt::Display for NetworkRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            HostPattern::Exact(host) => write!(f, "{host}")?,
            HostPattern::Below(parent) => write!(f, "*.{parent}")?,
            HostPattern::Network(network) => write!(f, "{network}")?,
        }
        match self.port {
            PortPattern::Any => f.write_str(":*"),
            PortPattern::One(port) => write!(f, ":{port}"),
        }
    }
}
