//! Decides which IP addresses may be reached (public internet only, or any), and provides a DNS resolver that returns
//! only those.
//!
//! A non-public address could be a machine that trusts its neighbours. Clients connect only to addresses that this
//! resolver has checked, so no second lookup can change the address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

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

/// IPv4 networks that are not public: IANA's special-purpose registry, multicast and reserved space, and the one public
/// address at which a cloud serves machine metadata (Azure's 168.63.129.16).
const NON_PUBLIC_V4: [([u8; 4], u32); 17] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([168, 63, 129, 16], 32),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 31, 196, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

/// IPv6 networks inside global unicast that are not public, or that embed an IPv4 address which a gateway would reach.
const NON_PUBLIC_V6: [NetworkV6; 4] = [
    NetworkV6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
    NetworkV6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
    NetworkV6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16),
    NetworkV6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),
];

/// Global unicast. Outside it only embedded IPv4 addresses can be public.
const GLOBAL_UNICAST_V6: NetworkV6 = NetworkV6([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);
/// The well-known prefix of NAT64, with which IPv6-only networks reach IPv4.
const NAT64_PREFIX: NetworkV6 = NetworkV6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);

/// A network, with the length of its prefix in bits.
struct NetworkV6([u16; 8], u32);

impl NetworkV6 {
    fn contains(&self, address: Ipv6Addr) -> bool {
        (u128::from(address) ^ u128::from(Ipv6Addr::from(self.0))) >> (128 - self.1) == 0
    }
}

pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => is_public_v4(v4),
            None if NAT64_PREFIX.contains(v6) => is_public_v4(embedded_ipv4(v6)),
            None => GLOBAL_UNICAST_V6.contains(v6) && !NON_PUBLIC_V6.iter().any(|network| network.contains(v6)),
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let bits = u32::from(address);
    !NON_PUBLIC_V4.iter().any(|(net, length)| (bits ^ u32::from(Ipv4Addr::from(*net))) >> (32 - length) == 0)
}

fn embedded_ipv4(address: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_public() {
        let addresses = "0.0.0.0 10.1.2.3 100.64.0.1 100.127.255.255 127.0.0.1 127.9.9.9 168.63.129.16 169.254.169.254 \
            172.16.0.1 172.31.255.255 192.0.0.8 192.168.1.1 198.19.0.1 224.0.0.1 239.1.1.1 240.0.0.1 \
            255.255.255.255 :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 \
            64:ff9b::10.0.0.1 64:ff9b::7f00:1 64:ff9b:1::1 100::1 2001::1 2001:db8::1 2002:7f00:1:: \
            2002:a00:1::1 3fff::1 fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1";
        for text in addresses.split(' ') {
            let address: IpAddr = text.parse().unwrap();
            assert!(!is_public(address), "{text}");
        }
    }

    #[test]
    fn the_internet_is_public() {
        let addresses = "1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 168.63.129.17 192.167.0.1 \
            223.255.255.255 2606:4700::1111 2a00:1450:4001::1 ::ffff:8.8.8.8 64:ff9b::8.8.8.8";
        for text in addresses.split(' ') {
            let address: IpAddr = text.parse().unwrap();
            assert!(is_public(address), "{text}");
        }
    }
}
