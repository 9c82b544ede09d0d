//! A WebSocket client of the gateway, as thin as it can be: frames go out, events come in with the time of their arrival.

use std::time::Instant;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use crate::daemon::Daemon;

/// One connection. It panics where the gateway does not do as promised; that is how a test fails.
#[derive(Debug)]
pub struct Gateway {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    next: u64,
}

impl Gateway {
    /// Connects with the admin token.
    ///
    /// # Cancel safety
    /// Dropping it closes the connection.
    ///
    /// # Panics
    /// When the daemon refuses.
    pub async fn connect(daemon: &Daemon) -> Self {
        Self::at(daemon.url(), daemon.token()).await
    }

    /// Connects to the daemon at this address.
    ///
    /// # Cancel safety
    /// Dropping it closes the connection.
    ///
    /// # Panics
    /// When the daemon refuses.
    pub async fn at(url: &str, token: &str) -> Self {
        let url = format!("{}/ws", url.replace("http://", "ws://"));
        // Without delay: small frames are what it sends and times.
        let socket = match connect_async_with_config(url, None, true).await {
            Ok((socket, _)) => socket,
            Err(error) => panic!("the gateway takes no WebSocket: {error}"),
        };
        let mut gateway = Self { socket, next: 0 };
        let client = json!({"id": "gateway-client", "version": "1", "platform": "test", "mode": "backend"});
        let auth = json!({"token": token});
        let hello = json!({"minProtocol": 4, "maxProtocol": 4, "client": client, "auth": auth});
        gateway.call("connect", hello).await;
        gateway
    }

    /// Sends a request and answers its id.
    ///
    /// # Cancel safety
    /// The request may or may not have been sent.
    ///
    /// # Panics
    /// When the connection is gone.
    pub async fn send(&mut self, method: &str, params: Value) -> String {
        self.next += 1;
        let id = self.next.to_string();
        let frame = json!({"type": "req", "id": id, "method": method, "params": params}).to_string();
        if let Err(error) = self.socket.send(Message::text(frame)).await {
            panic!("the gateway is gone: {error}");
        }
        id
    }

    /// Sends a request and answers its payload; events that come before are passed over.
    ///
    /// # Cancel safety
    /// As [`Self::send`].
    ///
    /// # Panics
    /// When it is refused.
    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params).await;
        let (_, mut answer) = self.until(|frame| frame["type"] == "res" && frame["id"] == id.as_str()).await;
        assert_eq!(answer["ok"], true, "{method}: {answer:#}");
        answer["payload"].take()
    }

    /// The next frame with the time of its arrival; `None` when the gateway has closed the connection.
    ///
    /// # Cancel safety
    /// Safe: no frame is lost.
    ///
    /// # Panics
    /// When a frame is not JSON.
    pub async fn frame(&mut self) -> Option<(Instant, Value)> {
        loop {
            let message = self.socket.next().await?.ok()?;
            let at = Instant::now();
            let Message::Text(text) = message else { continue };
            match serde_json::from_str(text.as_str()) {
                Ok(frame) => return Some((at, frame)),
                Err(error) => panic!("a frame without JSON ({error}): {text}"),
            }
        }
    }

    /// Reads frames until one fits; answers it with the time of its arrival.
    ///
    /// # Cancel safety
    /// What was passed over is lost.
    ///
    /// # Panics
    /// When the gateway closes the connection before.
    pub async fn until(&mut self, fits: impl Fn(&Value) -> bool) -> (Instant, Value) {
        loop {
            match self.frame().await {
                Some((at, frame)) if fits(&frame) => return (at, frame),
                Some(_) => {}
                None => panic!("the gateway closed the connection"),
            }
        }
    }

    /// Sends a message that begins a run named `run`.
    ///
    /// # Cancel safety
    /// As [`Self::send`].
    ///
    /// # Panics
    /// When it is refused.
    pub async fn begin(&mut self, run: &str) {
        let params =
            json!({"sessionKey": format!("s-{run}"), "message": format!("marker:{run}"), "idempotencyKey": run});
        self.call("chat.send", params).await;
    }
}

/// True for the `chat` event that announces the abort of a run.
#[must_use]
pub fn is_aborted(frame: &Value) -> bool {
    frame["event"] == "chat" && frame["payload"]["state"] == "aborted"
}

/// True for the `run` event that carries the receipt.
#[must_use]
pub fn is_ended(frame: &Value) -> bool {
    frame["event"] == "run" && frame["payload"]["state"] == "ended"
}
