//! Many connections that bring no request to its end. None of them has a token, but where it says so.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::json;

use super::Site;
use crate::harness::PATIENCE;

/// So few descriptors that a small crowd takes them all.
const FEW: &str = "ulimit -n 256";
const CROWD: usize = 400;

/// This many connections that have said this much and say no more.
fn crowd(site: &Site, count: usize, said: &str) -> Vec<TcpStream> {
    let mut crowd = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = TcpStream::connect(site.daemon.address()).unwrap();
        // Closed in this moment, it may refuse.
        let _ = stream.write_all(said.as_bytes());
        crowd.push(stream);
    }
    crowd
}

#[rstest]
#[case::the_usual_soft_limit("ulimit -Sn 1024")]
#[case::a_hard_limit_that_is_no_higher("ulimit -n 1024")]
#[tokio::test(flavor = "multi_thread")]
async fn idle_sockets_keep_no_stop_out(#[case] limit: &str) {
    let mut site = Site::under(limit).await;
    let _crowd = crowd(&site, 1100, "");
    site.stop_over_http().await;
    site.run = site.begin().await;
    site.stop_by_command().await;
}

#[rstest]
#[case::headers("POST /api/stop HTTP/1.1\r\nhost: quell\r\nx-slow: ")]
#[case::bodies(
    "POST /api/sign-in HTTP/1.1\r\nhost: quell\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{"
)]
#[case::web_sockets(
    "GET /ws HTTP/1.1\r\nhost: quell\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
     sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)]
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_never_end_keep_no_stop_out(#[case] said: &str) {
    let mut site = Site::under(FEW).await;
    let _crowd = crowd(&site, CROWD, said);
    site.stop_over_http().await;
    site.run = site.begin().await;
    site.stop_by_command().await;
}

/// Those have a token: they do not give way, and what is kept back is for stops.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_somebody_with_a_token_keep_no_stop_out() {
    let site = Site::under(FEW).await;
    let head = format!(
        "POST /api/sessions/x/runs HTTP/1.1\r\nhost: quell\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: 900\r\n\r\n{{",
        site.daemon.token()
    );
    let _crowd = crowd(&site, CROWD, &head);
    let path = format!("/api/runs/{}/stop?wait=1", site.run);
    let http = site.daemon.http();
    let stopped = tokio::time::timeout(PATIENCE, http.post(&path, &json!({}))).await;
    let _ = stopped.expect("the stop gets in").expect_status(200);
    site.model.connections(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_crowd_keeps_no_stop_out_of_the_socket() {
    let site = Site::under(FEW).await;
    let head = format!(
        "POST /api/sessions/x/runs HTTP/1.1\r\nhost: quell\r\nauthorization: Bearer {}\r\ncontent-length: 900\r\n\r\n{{",
        site.daemon.token()
    );
    let _crowd = crowd(&site, CROWD, &head);
    let ran = super::verb(site.daemon.home(), &["stop", "--all", "--force", "--no-wait"]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    site.model.connections(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_never_read_keep_no_stop_out() {
    let site = Site::open().await;
    let head = format!(
        "GET /api/runs/{}/events HTTP/1.1\r\nhost: quell\r\nauthorization: Bearer {}\r\n\r\n",
        site.run,
        site.daemon.token()
    );
    let _crowd = crowd(&site, CROWD, &head);
    site.stop_over_http().await;
}

/// The newest gets in and the oldest gives way, also when they all come at once.
#[tokio::test(flavor = "multi_thread")]
async fn somebody_without_a_token_yet_gets_in_beside_a_crowd() {
    let site = Site::under(FEW).await;
    let _crowd = crowd(&site, CROWD, "");
    let http = site.daemon.http().with_token("");
    let answers = join_all((0..8).map(|_| http.get("/healthz"))).await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    site.stop_over_http().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_without_tls_is_not_spoken() {
    let site = Site::open().await;
    let mut stream = TcpStream::connect(site.daemon.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // The preface, and a frame of settings.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{:?}", String::from_utf8_lossy(&answer));
    site.stop_over_http().await;
}
