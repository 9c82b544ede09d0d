//! Checks which IP addresses a client may connect to (public internet only, or any), and provides a DNS resolver that
//! returns only those.
//!
//! Which addresses are public, the kernel decides (`public_address`). Clients connect only to addresses that this
//! resolver has checked, so no second lookup can change the address.

use std::net::{IpAddr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

/// Which addresses may be connected to; later variants allow more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum AddressPolicy {
    /// Addresses of the public internet.
    PublicOnly,
    #[default]
    Any,
}

pub type AddressFilter = fn(IpAddr) -> bool;

/// Resolves names to addresses that may be connected to.
pub struct CheckedResolver {
    address_filter: AddressFilter,
}

impl CheckedResolver {
    pub fn new(address_filter: AddressFilter) -> Self {
        Self { address_filter }
    }
}

/// A name that has only addresses which may not be connected to.
#[derive(Debug, thiserror::Error)]
#[error("{name} is at {address}, {REFUSED_ADDRESS}")]
pub struct AddressRefused {
    name: String,
    address: IpAddr,
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let address_filter = self.address_filter;
        Box::pin(async move {
            // waits: as part of a request, which is raced; the system thread for the lookup ends by itself.
            let addresses: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let first = addresses.first().map(SocketAddr::ip);
            let allowed: Vec<_> = addresses.into_iter().filter(|a| address_filter(a.ip())).collect();
            match first {
                Some(address) if allowed.is_empty() => {
                    Err(AddressRefused { name: name.as_str().to_owned(), address }.into())
                }
                _ => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}

/// Checks scheme, credentials and literal addresses of a URL. Names are checked when they are resolved.
pub fn check_url(url: &Url, address_filter: AddressFilter) -> Result<(), String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err("only http and https can be fetched".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("a URL with a user name or a password in it is not fetched".to_owned());
    }
    let literal = match url.host() {
        Some(Host::Ipv4(ip)) => IpAddr::V4(ip),
        Some(Host::Ipv6(ip)) => IpAddr::V6(ip),
        Some(Host::Domain(_)) => return Ok(()),
        None => return Err("it names no host".to_owned()),
    };
    if address_filter(literal) { Ok(()) } else { Err(format!("{literal} is {REFUSED_ADDRESS}")) }
}

/// Reason of a refusal, as text for the model.
const REFUSED_ADDRESS: &str = "an address that may not be reached from here: private, local, or reserved";
