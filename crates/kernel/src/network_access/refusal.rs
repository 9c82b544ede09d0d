//! Why the proxy does not connect a command to a server, as text for the model and for people.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr};

/// Longest text of a client that a refusal repeats, in characters.
const MAX_QUOTED: usize = 260;

/// A refused connection or request. `Display` says what was refused, why, and how a person may allow it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NetworkRefusal {
    /// `host:port`; as the client wrote it if that is no host. At most about 270 printable characters.
    pub target: String,
    pub cause: RefusalCause,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RefusalCause {
    NotListed {
        /// The entry that would allow it.
        entry: String,
        /// An entry for the same host and another port.
        same_host: Option<String>,
    },
    UnusualAddress(Ipv4Addr),
    InvalidHost,
    InvalidPort,
    /// The name is allowed, and one of its addresses is private, local or reserved.
    NonPublicAddress {
        address: IpAddr,
        /// The entry that would allow it, besides the one for the name.
        entry: String,
    },
    /// TLS is started for another name than that of the target.
    ServerNameDiffers {
        server_name: String,
    },
    ServerNameMissing,
    InvalidClientHello,
    /// The first bytes may be a request, and are too long to be read.
    UnreadableRequest,
    /// The port is for TLS, and the first bytes are something else.
    TlsExpected,
    /// The Host header of a request names another host than its target.
    HostHeaderDiffers {
        host: String,
    },
    /// A request inside of a tunnel asks for another server than the one that the tunnel was opened for.
    TunnelTargetDiffers {
        asked_for: String,
    },
}

impl NetworkRefusal {
    pub(super) fn new(host: &str, port: u16, cause: RefusalCause) -> Self {
        Self { target: format!("{}:{port}", printable(host)), cause }
    }
}

impl RefusalCause {
    /// Quotes a text of the client, cut and escaped.
    pub fn host_header(host: &str) -> Self {
        Self::HostHeaderDiffers { host: printable(host) }
    }

    /// Quotes a text of the client, cut and escaped.
    pub fn tunnel_target(asked_for: &str) -> Self {
        Self::TunnelTargetDiffers { asked_for: printable(asked_for) }
    }
}

/// Cut, and without control characters.
fn printable(text: &str) -> String {
    text.chars().flat_map(char::escape_debug).take(MAX_QUOTED).collect()
}

impl fmt::Display for NetworkRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection to {} refused by the network list of the agent: {}", self.target, self.cause)
    }
}

impl fmt::Display for RefusalCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotListed { entry, same_host: None } => {
                write!(f, "no entry allows it; a person may add \"{entry}\" to `network` of the agent")
            }
            Self::NotListed { entry, same_host: Some(rule) } => write!(
                f,
                "the entry \"{rule}\" allows another port; a person may add \"{entry}\" to `network` of the agent"
            ),
            Self::UnusualAddress(address) => {
                write!(f, "this is an unusual form of an IP address; write {address}, which needs an entry of its own")
            }
            Self::InvalidHost => f.write_str("this is no host name and no IP address"),
            Self::InvalidPort => f.write_str("there is no port 0"),
            Self::NonPublicAddress { address, entry } => write!(
                f,
                "the name is allowed, but its address {address} is private, local or reserved; a person may add \
                 \"{entry}\" to `network` of the agent if that server is meant"
            ),
            Self::ServerNameDiffers { server_name } => write!(
                f,
                "TLS was started for {server_name}, not for the host that the connection was opened for; connect to \
                 {server_name} by its name, which needs an entry of its own"
            ),
            Self::ServerNameMissing => f.write_str(
                "TLS was started without a server name (SNI); use a client that sends the host name, and connect by \
                 name",
            ),
            Self::InvalidClientHello => {
                f.write_str("TLS was started with a message (ClientHello) that cannot be read; use another TLS client")
            }
            Self::UnreadableRequest => f.write_str("the first line of the connection is too long to be checked"),
            Self::TlsExpected => f.write_str("only TLS is spoken on this port; use https, or another port"),
            Self::HostHeaderDiffers { host } => write!(
                f,
                "the Host header names {host}, not the host that the request is sent to; send the request to {host} by \
                 its name, which needs an entry of its own"
            ),
            Self::TunnelTargetDiffers { asked_for } => write!(
                f,
                "a request inside of the connection asks for {asked_for}; ask the proxy of the environment for it, and \
                 not another proxy behind it"
            ),
        }
    }
}
