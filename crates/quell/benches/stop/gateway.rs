//! A WebSocket client of the gateway, as thin as it can be: frames go out, events come in with the time of their arrival.

use std::time::Instant;

use futures_util::{SinkExt, StreamExt};
use quell_testkit::daemon::Daemon;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// One connection.
pub(crate) struct Gateway {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    next: u64,
}

impl Gateway {
    /// Connects with the admin token.
    pub(crate) async fn connect(daemon: &Daemon) -> Self {
        let url = format!("{}/ws", daemon.url().replace("http://", "ws://"));
        let (socket, _) = tokio_tungstenite::connect_async(url).await.expect("the gateway takes WebSockets");
        if let MaybeTlsStream::Plain(stream) = socket.get_ref() {
            stream.set_nodelay(true).unwrap();
        }
        let mut gateway = Self { socket, next: 0 };
        let client = json!({"id": "gateway-client", "version": "1", "platform": "bench", "mode": "backend"});
        let auth = json!({"token": daemon.token()});
        let id =
            gateway.send("connect", json!({"minProtocol": 4, "maxProtocol": 4, "client": client, "auth": auth})).await;
        gateway.until(|frame| frame["id"] == json!(id) && frame["ok"] == json!(true)).await;
        gateway
    }

    /// Sends a request and answers its id.
    pub(crate) async fn send(&mut self, method: &str, params: Value) -> String {
        self.next += 1;
        let id = self.next.to_string();
        let frame = json!({"type": "req", "id": id, "method": method, "params": params}).to_string();
        self.socket.send(Message::text(frame)).await.unwrap();
        id
    }

    /// Reads frames until one fits; answers it with the time of its arrival.
    pub(crate) async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> (Instant, Value) {
        loop {
            let message = self.socket.next().await.expect("the gateway keeps the connection").unwrap();
            let at = Instant::now();
            let Message::Text(text) = message else { continue };
            let frame: Value = serde_json::from_str(text.as_str()).unwrap();
            if fits(&frame) {
                return (at, frame);
            }
        }
    }

    /// Sends a message that begins a run named `run`.
    pub(crate) async fn begin(&mut self, run: &str) {
        let params =
            json!({"sessionKey": format!("s-{run}"), "message": format!("marker:{run}"), "idempotencyKey": run});
        let id = self.send("chat.send", params).await;
        let (_, answer) = self.until(|frame| frame["id"] == json!(id)).await;
        assert_eq!(answer["ok"], json!(true), "{answer}");
    }
}

/// True for the `chat` event that announces the abort of a run.
pub(crate) fn is_aborted(frame: &Value) -> bool {
    frame["event"] == json!("chat") && frame["payload"]["state"] == json!("aborted")
}

/// True for the `run` event that carries the receipt.
pub(crate) fn is_ended(frame: &Value) -> bool {
    frame["event"] == json!("run") && frame["payload"]["state"] == json!("ended")
}
