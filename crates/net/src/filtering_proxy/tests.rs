//! Tests of the proxy on real loopback sockets, with names that the tests resolve.
//!
//! Names below `localhost` may lead to the loopback interface, so a list of them allows the servers of a test without
//! allowing their addresses.

mod ends;
mod fixture;
mod http;
mod socks;
mod tunnels;

use super::*;

#[test]
fn the_environment_names_the_proxy_and_spares_loopback() {
    let variables = proxy_environment("127.0.0.1:3128".parse().unwrap());
    let value = |wanted| variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.as_str());
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
        assert_eq!(value(name), Some("http://127.0.0.1:3128"), "{name}");
    }
    for name in ["NO_PROXY", "no_proxy"] {
        assert!(value(name).is_some_and(|hosts| hosts.split(',').any(|host| host == "localhost")), "{name}");
    }
    assert_eq!(variables.len(), 8);
}

#[tokio::test]
async fn the_system_resolver_knows_this_machine() {
    let found = SystemResolver::default().resolve("localhost").await.unwrap();
    assert!(!found.is_empty() && found.iter().all(std::net::IpAddr::is_loopback), "{found:?}");
}
