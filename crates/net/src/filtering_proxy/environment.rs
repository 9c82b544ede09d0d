//! The environment variables that lead the programs of a command to the proxy.

use std::net::SocketAddrV4;

/// Hosts that programs reach without the proxy: the loopback interface of their own namespace, for servers that the
/// command itself starts.
const NO_PROXY: &str = "localhost,127.0.0.1,::1,[::1]";

/// Names and values of the variables for a proxy that listens at this address, in the network namespace of the command.
///
/// `ALL_PROXY` names the HTTP proxy, too: several libraries fail when they find a SOCKS proxy there. A program that
/// needs SOCKS5 is told to use the same port. An entry such as `localhost:5432` means the loopback interface of the
/// daemon; a program reaches it only if it asks the proxy in spite of `NO_PROXY`.
pub fn proxy_environment(proxy: SocketAddrV4) -> Vec<(&'static str, String)> {
    let proxy = format!("http://{proxy}");
    let proxied = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let direct = ["NO_PROXY", "no_proxy"].map(|name| (name, NO_PROXY.to_owned()));
    proxied.into_iter().map(|name| (name, proxy.clone())).chain(direct).collect()
}
