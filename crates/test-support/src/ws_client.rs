//! Test support: a client of the gateway's WebSocket, which shares no code with it.

use std::collections::VecDeque;

use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use crate::prelude::*;

/// A TCP connection with the smallest receive buffer that the system allows.
pub async fn connect_with_small_buffer(address: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(1024).unwrap();
    socket.connect(address.parse().unwrap()).await.unwrap()
}

/// A WebSocket connection. Frames that arrive before they are asked for are kept.
pub struct WsTestClient {
    pub socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// Frames that nothing has waited for, in order.
    pub unread: VecDeque<Value>,
    last_id: u64,
    /// Every event so far, in order.
    pub events: Vec<Value>,
}

impl WsTestClient {
    /// Opens a socket without the handshake.
    pub async fn open_socket(server: &TestServer) -> Self {
        Self::open(format!("ws://{}/ws", server.address).into_client_request().unwrap()).await
    }

    async fn open(request: Request) -> Self {
        Self::over(connect_async_with_config(request, None, true).await.unwrap().0)
    }

    fn over(socket: WebSocketStream<MaybeTlsStream<TcpStream>>) -> Self {
        Self { socket, unread: VecDeque::new(), last_id: 0, events: Vec::new() }
    }

    /// Connects as an operator with this token and all its scopes.
    pub async fn connect_operator(server: &TestServer, token: &str) -> Self {
        Self::connect_to(&format!("http://{}", server.address), token).await
    }

    /// Opens a socket as a browser does, with the page's cookie and this origin.
    pub async fn open_as_browser(server: &TestServer, cookie: &str, origin: Option<&str>) -> Self {
        let mut request = format!("ws://{}/ws", server.address).into_client_request().unwrap();
        let cookie = format!("{}={cookie}", server.engine.access().cookie_name());
        request.headers_mut().insert("cookie", cookie.parse().unwrap());
        if let Some(origin) = origin {
            request.headers_mut().insert("origin", origin.parse().unwrap());
        }
        Self::open(request).await
    }

    pub async fn connect_to(url: &str, token: &str) -> Self {
        let url = format!("{}/ws", url.replace("http://", "ws://"));
        Self::open(url.into_client_request().unwrap()).await.authenticated(token).await
    }

    /// Like [`WsTestClient::connect_to`], with a small receive buffer, so that little is sent while the client does not read.
    pub async fn connect_to_with_small_buffer(url: &str, token: &str) -> Self {
        let address = url.trim_start_matches("http://");
        let stream = MaybeTlsStream::Plain(connect_with_small_buffer(address).await);
        let (socket, _) = tokio_tungstenite::client_async(format!("ws://{address}/ws"), stream).await.unwrap();
        Self::over(socket).authenticated(token).await
    }

    /// The client after a handshake that must succeed.
    async fn authenticated(mut self, token: &str) -> Self {
        let hello = self.handshake(token, json!({})).await;
        assert_eq!(hello["ok"], true, "{hello}");
        self
    }

    /// Sends `connect` with the default params changed by `changed`; returns the response.
    pub async fn handshake(&mut self, token: &str, changed: Value) -> Value {
        let challenge = self.wait_event("connect.challenge").await;
        assert!(challenge["payload"]["nonce"].is_string() && challenge["payload"]["ts"].is_number(), "{challenge}");
        let mut params = json!({
            "minProtocol": 4, "maxProtocol": 4,
            "client": {"id": "test", "version": "1", "platform": "linux", "mode": "test"},
            "auth": {"token": token}, "caps": ["tool-events"],
        });
        for (name, value) in changed.as_object().unwrap() {
            params[name] = value.clone();
        }
        self.request("connect", params).await
    }

    /// Sends a request and waits for its response; events before it are kept.
    pub async fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.send_request(method, params).await;
        self.wait_response(&id).await
    }

    /// Sends a request that must succeed; returns its payload.
    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        let answer = self.request(method, params).await;
        assert_eq!(answer["ok"], true, "{method}: {answer:#}");
        answer["payload"].clone()
    }

    /// Sends a request that must fail; returns its error.
    pub async fn call_refused(&mut self, method: &str, params: Value) -> Value {
        let answer = self.request(method, params).await;
        assert_eq!(answer["ok"], false, "{method}: {answer:#}");
        answer["error"].clone()
    }

    /// Sends a request that must fail with this code; returns its error.
    pub async fn call_refused_as(&mut self, code: &str, method: &str, params: Value) -> Value {
        let error = self.call_refused(method, params.clone()).await;
        assert_eq!(error["code"], code, "{method} {params}: {error:#}");
        error
    }

    pub async fn send_chat(&mut self, session: &str, text: &str, key: &str) -> Value {
        self.call("chat.send", chat_send_params(session, text, key)).await
    }

    pub async fn send_request(&mut self, method: &str, params: Value) -> String {
        self.last_id += 1;
        let id = format!("q{}", self.last_id);
        self.send_text(&json!({"type": "req", "id": id, "method": method, "params": params}).to_string()).await;
        id
    }

    pub async fn send_text(&mut self, text: &str) {
        self.send_frame(Message::text(text)).await;
    }

    pub async fn send_frame(&mut self, frame: Message) {
        self.socket.send(frame).await.unwrap();
    }

    pub async fn wait_response(&mut self, id: &str) -> Value {
        self.wait_frame(&format!("answer {id}"), |frame| frame["type"] == "res" && frame["id"] == id).await
    }

    pub async fn wait_event(&mut self, name: &str) -> Value {
        self.wait_frame(name, |frame| frame["event"] == name).await
    }

    /// Waits for the next event of this name with this value in this field of its payload; returns the payload.
    pub async fn wait_event_with(&mut self, name: &str, field: &str, value: &str) -> Value {
        let what = format!("{name} with {field} {value}");
        let found = self.wait_frame(&what, |frame| frame["event"] == name && frame["payload"][field] == value).await;
        found["payload"].clone()
    }

    /// Waits for the next `chat` event of this run in this state; returns the payload.
    pub async fn wait_chat(&mut self, run: &str, state: &str) -> Value {
        let fits = |frame: &Value| {
            frame["event"] == "chat" && frame["payload"]["runId"] == run && frame["payload"]["state"] == state
        };
        self.wait_frame(&format!("chat {state} of {run}"), fits).await["payload"].clone()
    }

    /// Returns the first frame that fits; the frames before it are kept.
    async fn wait_frame(&mut self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.unread.iter().position(&fits) {
            return self.unread.remove(at).unwrap();
        }
        loop {
            let Some(frame) = self.next_frame().await else { panic!("closed before {what}: {:#?}", self.unread) };
            if fits(&frame) {
                return frame;
            }
            self.unread.push_back(frame);
        }
    }

    /// The next frame; `None` at the end of the connection.
    async fn next_frame(&mut self) -> Option<Value> {
        match self.next_message().await? {
            Message::Text(text) => {
                let frame: Value = serde_json::from_str(&text).unwrap();
                if frame["type"] == "event" {
                    self.events.push(frame.clone());
                }
                Some(frame)
            }
            other => panic!("unexpected end or frame: {other:?}; {:#?}", self.unread),
        }
    }

    /// The next message that is no ping or pong; `None` at the end of the connection.
    async fn next_message(&mut self) -> Option<Message> {
        loop {
            match tokio::time::timeout(WAIT_TIMEOUT, self.socket.next()).await {
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => {}
                Ok(message) => return message?.ok(),
                Err(_) => panic!("no frame for {WAIT_TIMEOUT:?}; waiting: {:#?}", self.unread),
            }
        }
    }

    /// Reads up to the close frame; returns its code, its reason, and the frames before it.
    pub async fn wait_close(&mut self) -> (u16, String, Vec<Value>) {
        let mut before: Vec<Value> = self.unread.drain(..).collect();
        loop {
            match self.next_message().await {
                Some(Message::Close(Some(frame))) => return (frame.code.into(), frame.reason.to_string(), before),
                Some(Message::Text(text)) => before.push(serde_json::from_str(&text).unwrap()),
                other => panic!("no close frame but {other:?} after {} frames", before.len()),
            }
        }
    }
}

pub fn chat_send_params(session: &str, text: &str, key: &str) -> Value {
    json!({"sessionKey": session, "message": text, "idempotencyKey": key})
}
