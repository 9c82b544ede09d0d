//! A thin WebSocket client of the gateway: sends frames and returns events with their arrival times.

use std::time::Instant;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use crate::daemon::TestDaemon;
use crate::or_fail::OrFail as _;

/// One connection. It panics when the gateway breaks the protocol; that is how a test fails.
#[derive(Debug)]
pub struct GatewayTestClient {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    last_id: u64,
}

impl GatewayTestClient {
    /// Connects with the admin token.
    pub async fn connect(daemon: &TestDaemon) -> Self {
        Self::connect_to(daemon.url(), daemon.token()).await
    }

    /// Connects to the daemon at this URL.
    pub async fn connect_to(url: &str, token: &str) -> Self {
        let url = format!("{}/ws", url.replace("http://", "ws://"));
        // Without Nagle's delay: it sends small frames and measures their times.
        let (socket, _) = connect_async_with_config(url, None, true).await.or_fail("the gateway takes no WebSocket");
        let mut gateway = Self { socket, last_id: 0 };
        let client = json!({"id": "gateway-client", "version": "1", "platform": "test", "mode": "backend"});
        let auth = json!({"token": token});
        let hello = json!({"minProtocol": 4, "maxProtocol": 4, "client": client, "auth": auth});
        gateway.call("connect", hello).await;
        gateway
    }

    /// Sends a request; returns its id.
    pub async fn send_request(&mut self, method: &str, params: Value) -> String {
        self.last_id += 1;
        let id = self.last_id.to_string();
        let frame = json!({"type": "req", "id": id, "method": method, "params": params}).to_string();
        self.socket.send(Message::text(frame)).await.or_fail("the gateway is gone");
        id
    }

    /// Sends a request; returns its payload. Events before the response are dropped.
    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.send_request(method, params).await;
        let (_, mut answer) = self.wait_for_frame(|frame| frame["type"] == "res" && frame["id"] == id.as_str()).await;
        assert_eq!(answer["ok"], true, "{method}: {answer:#}");
        answer["payload"].take()
    }

    /// The next frame with its arrival time; `None` when the gateway has closed the connection.
    pub async fn next_frame(&mut self) -> Option<(Instant, Value)> {
        loop {
            let message = self.socket.next().await?.ok()?;
            let at = Instant::now();
            let Message::Text(text) = message else { continue };
            let frame = serde_json::from_str(&text).or_fail(format_args!("a frame without JSON: {text}"));
            return Some((at, frame));
        }
    }

    /// Reads frames until one matches; returns it with its arrival time.
    ///
    /// # Cancel safety
    /// Not safe: frames read so far are lost.
    pub async fn wait_for_frame(&mut self, fits: impl Fn(&Value) -> bool) -> (Instant, Value) {
        loop {
            let (at, frame) = self.next_frame().await.or_fail("the gateway closed the connection");
            if fits(&frame) {
                return (at, frame);
            }
        }
    }

    /// Sends a message that starts a run named `run`.
    pub async fn start_run(&mut self, run: &str) {
        let params =
            json!({"sessionKey": format!("s-{run}"), "message": format!("marker:{run}"), "idempotencyKey": run});
        self.call("chat.send", params).await;
    }
}

/// True for the `chat` event that reports the abort of a run.
#[must_use]
pub fn is_chat_aborted(frame: &Value) -> bool {
    frame["event"] == "chat" && frame["payload"]["state"] == "aborted"
}

/// True for the `run` event that carries the receipt.
#[must_use]
pub fn is_run_ended(frame: &Value) -> bool {
    frame["event"] == "run" && frame["payload"]["state"] == "ended"
}
