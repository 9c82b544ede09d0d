//! Which servers the commands of an agent may reach: everything, nothing, or the entries of a list.
//!
//! [`NetworkRules::check_target`] is the one decision for every way to ask (HTTP, CONNECT, SOCKS), and
//! [`NetworkRules::check_addresses`] the decision about the addresses that a name has.

mod host;
mod refusal;
mod rule;
mod setting;
#[cfg(test)]
mod tests;

use core::fmt;
use core::net::IpAddr;

use crate::public_address::is_public;

pub use host::{HostNameError, TargetHost, split_authority};
pub use refusal::{NetworkRefusal, RefusalCause};
pub use rule::{NetworkRule, NetworkRuleError};

/// The network of an agent's commands.
///
/// In configuration `"on"`, `"off"`, or a list of entries (see [`NetworkRule`]).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum NetworkAccess {
    /// The network of the daemon.
    #[default]
    On,
    /// No network but a loopback interface of its own.
    Off,
    /// As `Off`, and the listed servers through a filtering proxy.
    List(NetworkRules),
}

/// The entries of a list, in the order of the configuration. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NetworkRules(Vec<NetworkRule>);

/// A server that the list allows. Only [`NetworkRules::check_target`] creates it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedTarget {
    host: TargetHost,
    port: u16,
}

impl NetworkAccess {
    /// What both allow: the network of a run that another run starts. Of two lists, the entries stay that the other list
    /// has, too, or whose one server it allows.
    #[must_use]
    pub fn restricted_by(&self, ceiling: &Self) -> Self {
        match (self, ceiling) {
            (Self::Off, _) | (_, Self::Off) => Self::Off,
            (access, Self::On) | (Self::On, access) => access.clone(),
            (Self::List(own), Self::List(ceiling)) => {
                let kept: Vec<NetworkRule> = own.0.iter().filter(|rule| rule.is_within(&ceiling.0)).cloned().collect();
                if kept.is_empty() { Self::Off } else { Self::List(NetworkRules(kept)) }
            }
        }
    }
}

impl NetworkRules {
    /// Parses the entries of a list.
    ///
    /// # Errors
    /// The first wrong entry, with the right way to write it.
    pub fn parse<S: AsRef<str>>(entries: &[S]) -> Result<Self, NetworkRuleError> {
        if entries.is_empty() {
            return Err(NetworkRuleError::empty_list());
        }
        entries.iter().map(|entry| entry.as_ref().parse()).collect::<Result<_, _>>().map(Self)
    }

    pub fn entries(&self) -> &[NetworkRule] {
        &self.0
    }

    /// Decides about a server that a client asks for. `host` is the text of the client: a name, an IP address, or an
    /// IPv6 address in brackets.
    ///
    /// # Errors
    /// The refusal, with the entry that would allow the server.
    pub fn check_target(&self, host: &str, port: u16) -> Result<AllowedTarget, NetworkRefusal> {
        let refuse = |cause| Err(NetworkRefusal::new(host, port, cause));
        let target = match TargetHost::parse(host) {
            Ok(host) => AllowedTarget { host, port },
            Err(HostNameError::UnusualAddress(address)) => return refuse(RefusalCause::UnusualAddress(address)),
            Err(HostNameError::Invalid) => return refuse(RefusalCause::InvalidHost),
        };
        if port == 0 {
            return refuse(RefusalCause::InvalidPort);
        }
        let is_listed = match &target.host {
            TargetHost::Name(name) => self.0.iter().any(|rule| rule.allows_name(name, port)),
            TargetHost::Address(address) => self.lists_address(*address, port),
        };
        if is_listed {
            return Ok(target);
        }
        let other_ports = self.0.iter().find(|rule| rule.names_host(&target.host)).map(ToString::to_string);
        refuse(RefusalCause::NotListed { entry: target.to_string(), same_host: other_ports })
    }

    /// Decides about all addresses of a server at once. An address that is not public is allowed if an entry lists it
    /// as an address for this port, or if it is a loopback address of `localhost`.
    ///
    /// # Errors
    /// The refusal, if any of the addresses is not allowed.
    pub fn check_addresses(&self, target: &AllowedTarget, addresses: &[IpAddr]) -> Result<(), NetworkRefusal> {
        let is_allowed = |address: &IpAddr| match &target.host {
            TargetHost::Address(listed) => listed == address,
            TargetHost::Name(name) if is_localhost(name) => {
                address.is_loopback() || self.lists_address(*address, target.port)
            }
            TargetHost::Name(_) => is_public(*address) || self.lists_address(*address, target.port),
        };
        let mut addresses = addresses.iter().map(IpAddr::to_canonical);
        let Some(address) = addresses.find(|address| !is_allowed(address)) else { return Ok(()) };
        let entry = AllowedTarget { host: TargetHost::Address(address), port: target.port }.to_string();
        Err(target.refuse(RefusalCause::NonPublicAddress { address, entry }))
    }

    /// True if an entry names this address, or a network around it. A network that holds public addresses, too, counts
    /// for those alone: `0.0.0.0/0` opens neither the loopback interface nor the metadata of a cloud.
    fn lists_address(&self, address: IpAddr, port: u16) -> bool {
        self.0.iter().any(|rule| rule.allows_address(address, port))
    }
}

impl AllowedTarget {
    pub fn host(&self) -> &TargetHost {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// True if the client asked for an IP address and not for a name.
    pub fn is_address(&self) -> bool {
        matches!(self.host, TargetHost::Address(_))
    }

    /// A refusal of this target for another reason than its name and port.
    pub fn refuse(&self, cause: RefusalCause) -> NetworkRefusal {
        NetworkRefusal { target: self.to_string(), cause }
    }

    /// True if `authority`, such as the value of a Host header, names this host and port. An authority without a port
    /// means `default_port`.
    pub fn is_named_by(&self, authority: &str, default_port: u16) -> bool {
        split_authority(authority, default_port).is_some_and(|(host, port)| port == self.port && self.has_host(host))
    }

    /// True if `host` is another spelling of this host.
    pub fn has_host(&self, host: &str) -> bool {
        TargetHost::parse(host).is_ok_and(|host| host == self.host)
    }
}

/// `host:port`, with brackets around an IPv6 address: the form of an entry.
impl fmt::Display for AllowedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Names that mean this machine (RFC 6761).
fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}
