//! SOCKS5: names and listed addresses, and the replies to everything else.

use quell_kernel::network_access::RefusalCause;
use rstest::rstest;

use super::fixture::*;

const GREETING: [u8; 3] = [5, 1, 0];

fn request_name(name: &str, port: u16) -> Vec<u8> {
    let mut request = vec![5, 1, 0, 3, u8::try_from(name.len()).unwrap()];
    request.extend_from_slice(name.as_bytes());
    request.extend_from_slice(&port.to_be_bytes());
    request
}

fn request_ipv4(octets: [u8; 4], port: u16) -> Vec<u8> {
    [&[5, 1, 0, 1], &octets[..], &port.to_be_bytes()].concat()
}

/// Greets, asks, and returns the reply and the connection.
async fn ask(proxy: &ProxyUnderTest, request: &[u8]) -> (u8, Client) {
    let mut client = proxy.connect().await;
    client.send_bytes(&GREETING).await;
    assert_eq!(client.read_exactly(2).await, [5, 0]);
    client.send_bytes(request).await;
    let reply = client.read_exactly(10).await;
    assert_eq!(reply[0], 5);
    (reply[1], client)
}

#[tokio::test]
async fn an_allowed_name_is_reached() {
    let server = Server::start_echo().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let (reply, mut client) = ask(&proxy, &request_name("A.localhost.", server.port)).await;
    assert_eq!(reply, 0);
    client.send("-> there").await;
    assert_eq!(client.read_exactly(8).await, b"-> there");
    assert_eq!(proxy.resolved_names(), ["a.localhost"]);
}

#[rstest]
#[case("b.localhost")]
#[case("127.0.0.1")]
#[case("0177.0.0.1")]
#[case("2130706433")]
#[case("[::1]")]
#[case("a.localhost\0.evil.example")]
#[case("")]
#[tokio::test]
async fn other_names_are_refused_by_rule(#[case] name: &str) {
    let server = Server::start_echo().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let (reply, mut client) = ask(&proxy, &request_name(name, server.port)).await;
    assert_eq!(reply, 2);
    assert_eq!(client.read_all().await, "");
    proxy.refusals.take_only();
    assert_eq!(proxy.resolved_names(), [] as [String; 0]);
}

#[tokio::test]
async fn an_address_is_reached_only_if_it_is_listed() {
    let server = Server::start_echo().await;
    let request = request_ipv4([127, 0, 0, 1], server.port);
    let by_name = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    assert_eq!(ask(&by_name, &request).await.0, 2);
    assert!(matches!(by_name.refusals.take_only().cause, RefusalCause::NotListed { .. }));
    let mapped = [&[5, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1], &server.port.to_be_bytes()[..]];
    assert_eq!(ask(&by_name, &mapped.concat()).await.0, 2);
    let by_address = ProxyUnderTest::start(&[server.at("127.0.0.1")]).await;
    assert_eq!(ask(&by_address, &request).await.0, 0);
    assert_eq!(ask(&by_address, &mapped.concat()).await.0, 0);
}

#[tokio::test]
async fn a_private_address_behind_an_allowed_name_is_refused() {
    let resolver = ScriptedResolver::default().answer("allowed.test", &["192.168.1.1"]);
    let options = ProxyOptions { resolver, ..ProxyOptions::default() };
    let proxy = ProxyUnderTest::start_with(&["allowed.test:22".to_owned()], options).await;
    assert_eq!(ask(&proxy, &request_name("allowed.test", 22)).await.0, 2);
    assert!(matches!(proxy.refusals.take_only().cause, RefusalCause::NonPublicAddress { .. }));
}

#[tokio::test]
async fn what_is_not_supported_gets_its_reply() {
    let server = Server::start_echo().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost"), "a.localhost:1".to_owned()]).await;
    let with_command = |command| {
        let mut request = request_name("a.localhost", server.port);
        request[1] = command;
        request
    };
    for bind_or_udp in [2, 3] {
        assert_eq!(ask(&proxy, &with_command(bind_or_udp)).await.0, 7);
    }
    assert_eq!(ask(&proxy, &[5, 1, 0, 9]).await.0, 8);
    assert_eq!(ask(&proxy, &request_name("a.localhost", 1)).await.0, 5, "nobody listens there");
    let mut authenticated = proxy.connect().await;
    authenticated.send_bytes(&[5, 1, 2]).await;
    assert_eq!(authenticated.read_exactly(2).await, [5, 0xff]);
    let mut version_4 = proxy.connect().await;
    version_4.send_bytes(&[4, 1, 0, 80, 127, 0, 0, 1, 0]).await;
    assert_eq!(version_4.read_exactly(2).await, [0, 91]);
}

#[tokio::test]
async fn http_inside_of_socks_is_checked() {
    let server = Server::start_mirror().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let (_, mut client) = ask(&proxy, &request_name("a.localhost", server.port)).await;
    client.send("GET / HTTP/1.1\r\nHost: b.localhost\r\n\r\n").await;
    let answer = client.read_response().await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(matches!(proxy.refusals.take_only().cause, RefusalCause::HostHeaderDiffers { .. }));
}
