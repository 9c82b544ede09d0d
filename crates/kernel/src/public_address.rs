//! Which IP addresses belong to the public internet.
//!
//! A non-public address could be a machine that trusts its neighbours, or the metadata service of a cloud.
//! `core::net` holds the address types alone, without sockets.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

/// True if no address of this network is public. `prefix` is the length of its prefix in bits.
pub fn is_non_public_network(first: IpAddr, prefix: u32) -> bool {
    match first {
        IpAddr::V4(v4) => {
            let bits = u32::from(v4);
            let holds = |(net, length): &([u8; 4], u32)| (bits ^ u32::from(Ipv4Addr::from(*net))) >> (32 - length) == 0;
            NON_PUBLIC_V4.iter().any(|known| known.1 <= prefix && holds(known))
        }
        IpAddr::V6(v6) if GLOBAL_UNICAST_V6.contains(v6) => {
            NON_PUBLIC_V6.iter().any(|network| network.1 <= prefix && network.contains(v6))
        }
        IpAddr::V6(_) => prefix >= GLOBAL_UNICAST_V6.1,
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

    #[test]
    fn a_network_is_non_public_only_as_a_whole() {
        let check = |text: &str, prefix| is_non_public_network(text.parse().unwrap(), prefix);
        for (text, prefix) in [("10.0.0.0", 8), ("192.168.7.0", 24), ("127.0.0.1", 32), ("fd00::", 8), ("fe80::", 10)] {
            assert!(check(text, prefix), "{text}/{prefix}");
        }
        for (text, prefix) in
            [("0.0.0.0", 0), ("8.0.0.0", 6), ("192.0.0.0", 16), ("::", 0), ("2000::", 3), ("2001::", 16)]
        {
            assert!(!check(text, prefix), "{text}/{prefix}");
        }
    }
}
