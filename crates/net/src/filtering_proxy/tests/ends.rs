//! Ends and limits: a stop, the end of the command, idle connections, many connections.

use std::time::Duration;

use quell_scope::{LedgerRow, Release};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::fixture::*;
use crate::filtering_proxy::ProxyLimits;

/// Sends without an end after the first bytes of the client, and reads no more.
async fn start_endless_server() -> Server {
    Server::start(|mut stream| async move {
        let _ = stream.read(&mut [0; 4096]).await;
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n";
        if stream.write_all(head).await.is_ok() {
            while stream.write_all(&[b'x'; 65536]).await.is_ok() {}
        }
    })
    .await
}

/// Connections of every kind, each in the middle of a transfer.
async fn start_transfers(proxy: &ProxyUnderTest, server: &Server) -> Vec<Client> {
    let target = server.at("a.localhost");
    let mut plain = proxy.connect().await;
    plain.send(&format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\n\r\n")).await;
    let mut opaque = proxy.open_tunnel(&target).await;
    opaque.send("\0opaque").await;
    let mut http = proxy.open_tunnel(&target).await;
    http.send(&format!("GET / HTTP/1.1\r\nHost: {target}\r\n\r\n")).await;
    let mut socks = proxy.connect().await;
    socks.send_bytes(&[5, 1, 0]).await;
    let name = [&[5, 1, 0, 3, 11], b"a.localhost".as_slice(), &server.port.to_be_bytes()].concat();
    socks.send_bytes(&name).await;
    let mut clients = vec![plain, opaque, http, socks];
    clients[3].read_exactly(12).await;
    clients[3].send_bytes(b"\0opaque").await;
    for client in &mut clients {
        client.read_exactly(200_000).await;
    }
    // These have begun nothing yet.
    clients.push(proxy.connect().await);
    clients.push(proxy.open_tunnel(&target).await);
    clients
}

async fn expect_all_closed(proxy_port: u16, server: &Server, clients: Vec<Client>) {
    assert_eq!(count_sockets(proxy_port, server.port), 0);
    for mut client in clients {
        let mut rest = Vec::new();
        // The end or a reset, after what was under way.
        let _ = soon(client.0.read_to_end(&mut rest)).await;
    }
}

fn releases(proxy: &ProxyUnderTest) -> Vec<Option<Release>> {
    proxy.scope.ledger().rows().iter().map(LedgerRow::release).collect()
}

#[tokio::test]
async fn a_stop_closes_every_socket_in_the_middle_of_a_transfer() {
    let server = start_endless_server().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let clients = start_transfers(&proxy, &server).await;
    // The listener, the clients, and the servers of all clients but one.
    assert_eq!(count_sockets(proxy.port, server.port), 1 + clients.len() + (clients.len() - 1));
    proxy.scope.cancel();
    soon(proxy.scope.close()).await;
    assert_eq!(releases(&proxy), [Some(Release::Cancelled)]);
    expect_all_closed(proxy.port, &server, clients).await;
}

#[tokio::test]
async fn the_end_of_the_command_closes_every_socket() {
    let server = start_endless_server().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let clients = start_transfers(&proxy, &server).await;
    soon(proxy.proxy.close()).await;
    expect_all_closed(proxy.port, &server, clients).await;
    soon(proxy.scope.close()).await;
    assert_eq!(releases(&proxy), [Some(Release::Closed)]);
}

#[tokio::test]
async fn a_dropped_proxy_ends() {
    let server = start_endless_server().await;
    let ProxyUnderTest { proxy, port, scope, .. } = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    drop(proxy);
    soon(scope.close()).await;
    assert_eq!(count_sockets(port, server.port), 0);
}

#[tokio::test]
async fn a_proxy_of_a_stopped_command_serves_nobody() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let scope = new_scope();
    scope.cancel();
    let setup = crate::filtering_proxy::ProxySetup {
        rules: quell_kernel::network_access::NetworkRules::parse(&["a.localhost:1"]).unwrap(),
        resolver: std::sync::Arc::new(ScriptedResolver::default()),
        observer: Box::new(Refusals::default()),
        limits: ProxyLimits::default(),
    };
    let _proxy = crate::filtering_proxy::FilteringProxy::start(listener, setup, &scope);
    soon(scope.close()).await;
    assert_eq!(count_sockets(port, port), 0);
}

#[tokio::test]
async fn a_stop_does_not_wait_for_the_resolver() {
    let resolver = ScriptedResolver::silent();
    let options = ProxyOptions { resolver, ..ProxyOptions::default() };
    let proxy = ProxyUnderTest::start_with(&["a.localhost:1".to_owned()], options).await;
    let mut client = proxy.connect().await;
    client.send("CONNECT a.localhost:1 HTTP/1.1\r\nHost: a.localhost:1\r\n\r\n").await;
    let resolver = std::sync::Arc::clone(&proxy.resolver);
    soon(async {
        while resolver.asked_for.lock().unwrap().is_empty() {
            tokio::task::yield_now().await
        }
    })
    .await;
    proxy.scope.cancel();
    soon(proxy.scope.close()).await;
    assert_eq!(client.read_all().await, "");
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let server = Server::start_echo().await;
    let limits = ProxyLimits { idle_timeout: Duration::from_millis(200), ..ProxyLimits::default() };
    let options = ProxyOptions { limits, ..ProxyOptions::default() };
    let proxy = ProxyUnderTest::start_with(&[server.at("a.localhost")], options).await;
    let mut client = proxy.open_tunnel(&server.at("a.localhost")).await;
    client.send("\0").await;
    client.read_exactly(1).await;
    assert_eq!(client.read_all().await, "", "closed without a word of the server");
    soon(async {
        while count_sockets(proxy.port, server.port) > 1 {
            tokio::task::yield_now().await
        }
    })
    .await;
}

#[tokio::test]
async fn many_connections_take_turns() {
    const MAX_CONNECTIONS: usize = 8;
    // Fewer than the backlog of a listener, so that all can connect before the first is served.
    const CLIENTS: usize = 100;
    let server = Server::start_mirror().await;
    let limits = ProxyLimits { max_connections: MAX_CONNECTIONS, ..ProxyLimits::default() };
    let options = ProxyOptions { limits, ..ProxyOptions::default() };
    let proxy = ProxyUnderTest::start_with(&[server.at("a.localhost")], options).await;
    let target = server.at("a.localhost");
    let request = format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
    // All are connected, and only some are accepted.
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(proxy.connect().await);
    }
    for client in &mut clients {
        client.send(&request).await;
    }
    for mut client in clients {
        let answer = client.read_all().await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let open = count_sockets(0, server.port);
        assert!(open <= MAX_CONNECTIONS, "{open} connections to servers at once");
    }
    assert!(proxy.refusals.texts().is_empty());
}
