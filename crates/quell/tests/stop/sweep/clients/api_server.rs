//! The HTTP server of an engine, on a runtime of its own, and the requests of its clients over real sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as ClientSocket};
use std::thread;

use quell_engine::access::TokenSpec;
use quell_engine::live_run::LiveRun;
use quell_protocol::api::{TokenScope, TokenScopes};
use quell_server::{ServerSettings, ServerState};
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::test_server::serve;

pub(super) struct ApiServer {
    pub(super) address: SocketAddr,
    /// Of the principal of the test's messages.
    pub(super) token: String,
    runtime: Option<Runtime>,
}

pub(super) struct HttpRequest {
    pub(super) path: String,
    /// Header lines with their line ends.
    pub(super) headers: String,
    pub(super) body: Value,
}

impl ApiServer {
    pub(super) async fn start(engine: &Engine) -> Arc<Self> {
        let scopes = TokenScopes::Several(vec![TokenScope::Write, TokenScope::Approve]);
        let made = engine.create_token(&root(), TokenSpec::new("alice", scopes)).await.unwrap();
        let state = ServerState::new(engine.clone(), ServerSettings::default(), None);
        // A runtime cannot be entered from another one.
        let started = thread::spawn(move || {
            let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let address = runtime.block_on(serve(state));
            (runtime, address)
        });
        let (runtime, address) = started.join().unwrap();
        // From its first answer on it holds its spare descriptors, which no run has to release.
        let http = TestApiClient::new(&format!("http://{address}"), &made.token);
        http.get("/readyz").await.expect_status(200);
        Arc::new(Self { address, token: made.token, runtime: Some(runtime) })
    }

    /// Waits on the runtime of the server until the run is stopped; blocks the thread.
    pub(super) fn wait_ending(&self, live_run: &LiveRun) {
        let Some(runtime) = &self.runtime else { return };
        thread::scope(|threads| {
            let stopped = async {
                let ending = live_run.wait_for_progress(RunProgress::Ending);
                tokio::time::timeout(WAIT_TIMEOUT, ending).await.expect("the client's stop did not arrive");
            };
            threads.spawn(|| runtime.block_on(stopped)).join().unwrap();
        });
    }

    /// Posts a request on a connection of its own.
    pub(super) fn send(&self, request: &HttpRequest) -> ClientSocket {
        let HttpRequest { path, headers, body } = request;
        let (address, token, body) = (self.address, &self.token, body.to_string());
        let text = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n{headers}\
             content-type: application/json\r\naccept: application/json, text/event-stream\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut socket = ClientSocket::connect(address).unwrap();
        socket.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        socket.write_all(text.as_bytes()).unwrap();
        socket
    }
}

/// Reads an answer with its head, whole or in chunks.
pub(super) fn read_http_answer(socket: &mut ClientSocket) -> String {
    let (mut answer, mut piece) = (String::new(), [0; 4096]);
    while !is_whole(&answer) {
        match socket.read(&mut piece).unwrap_or_else(|error| panic!("{error} after {answer}")) {
            0 => panic!("the connection ended after {answer}"),
            count => answer.push_str(&String::from_utf8_lossy(&piece[..count])),
        }
    }
    answer
}

fn is_whole(answer: &str) -> bool {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.map_or_else(|| body.ends_with("0\r\n\r\n"), |length| body.len() >= length.parse().unwrap())
}

/// The JSON of an answer that is not in chunks.
pub(super) fn json_of(answer: &str) -> Value {
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error} in {answer}"))
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
