//! The WebSocket door, asked by a client that shares no code with it.

mod chat;
mod contract;
mod flow;
mod follow;
mod handshake;
mod stop;

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use crate::doors::House;

/// Longest wait for a frame. It decides only how late a failing test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// A socket whose receiving buffer is as small as the system makes one.
pub(crate) async fn narrow(address: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(1024).unwrap();
    socket.connect(address.parse().unwrap()).await.unwrap()
}

/// A connection. Frames that nobody asked for yet wait in it.
pub(crate) struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    waiting: VecDeque<Value>,
    asked: u64,
    /// Every event so far, in order.
    pub(crate) events: Vec<Value>,
}

impl Client {
    /// A socket with nothing said on it yet.
    pub(crate) async fn dial(house: &House) -> Self {
        let (socket, _) = connect_async_with_config(format!("ws://{}/ws", house.address), None, true).await.unwrap();
        Self { socket, waiting: VecDeque::new(), asked: 0, events: Vec::new() }
    }

    /// A connected operator with this token and all it may do.
    pub(crate) async fn operator(house: &House, token: &str) -> Self {
        let mut client = Self::dial(house).await;
        let hello = client.connect(token, json!({})).await;
        assert_eq!(hello["ok"], true, "{hello}");
        client
    }

    /// A socket that a browser opens, with the page's cookie, from this origin.
    pub(crate) async fn browser(house: &House, cookie: &str, origin: Option<&str>) -> Self {
        let mut request = format!("ws://{}/ws", house.address).into_client_request().unwrap();
        let cookie = format!("{}={cookie}", house.engine.access().cookie_name());
        request.headers_mut().insert("cookie", cookie.parse().unwrap());
        if let Some(origin) = origin {
            request.headers_mut().insert("origin", origin.parse().unwrap());
        }
        let (socket, _) = connect_async_with_config(request, None, true).await.unwrap();
        Self { socket, waiting: VecDeque::new(), asked: 0, events: Vec::new() }
    }

    /// A connected operator at a daemon's address.
    pub(crate) async fn at(url: &str, token: &str) -> Self {
        let url = url.replace("http://", "ws://");
        let (socket, _) = connect_async_with_config(format!("{url}/ws"), None, true).await.unwrap();
        let mut client = Self { socket, waiting: VecDeque::new(), asked: 0, events: Vec::new() };
        let hello = client.connect(token, json!({})).await;
        assert_eq!(hello["ok"], true, "{hello}");
        client
    }

    /// As [`Client::at`], over a socket that takes next to nothing while nobody reads.
    pub(crate) async fn narrow_at(url: &str, token: &str) -> Self {
        let address = url.trim_start_matches("http://");
        let stream = MaybeTlsStream::Plain(narrow(address).await);
        let (socket, _) = tokio_tungstenite::client_async(format!("ws://{address}/ws"), stream).await.unwrap();
        let mut client = Self { socket, waiting: VecDeque::new(), asked: 0, events: Vec::new() };
        let hello = client.connect(token, json!({})).await;
        assert_eq!(hello["ok"], true, "{hello}");
        client
    }

    /// Sends `connect` with these params over the usual ones, and reads its answer.
    pub(crate) async fn connect(&mut self, token: &str, changed: Value) -> Value {
        let challenge = self.event("connect.challenge").await;
        assert!(challenge["payload"]["nonce"].is_string() && challenge["payload"]["ts"].is_number(), "{challenge}");
        let mut params = json!({
            "minProtocol": 4, "maxProtocol": 4,
            "client": {"id": "test", "version": "1", "platform": "linux", "mode": "test"},
            "auth": {"token": token}, "caps": ["tool-events"],
        });
        for (name, value) in changed.as_object().unwrap() {
            params[name] = value.clone();
        }
        self.ask("connect", params).await
    }

    /// Sends a request and reads its answer; events that come before it wait.
    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params).await;
        self.answer(&id).await
    }

    /// The payload of a request that must succeed.
    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Value {
        let answer = self.ask(method, params).await;
        assert_eq!(answer["ok"], true, "{method}: {answer:#}");
        answer["payload"].clone()
    }

    /// The error of a request that must fail.
    pub(crate) async fn refused(&mut self, method: &str, params: Value) -> Value {
        let answer = self.ask(method, params).await;
        assert_eq!(answer["ok"], false, "{method}: {answer:#}");
        answer["error"].clone()
    }

    /// Sends a request.
    pub(crate) async fn begin(&mut self, method: &str, params: Value) -> String {
        self.asked += 1;
        let id = format!("q{}", self.asked);
        self.text(&json!({"type": "req", "id": id, "method": method, "params": params}).to_string()).await;
        id
    }

    /// Sends a frame.
    pub(crate) async fn text(&mut self, text: &str) {
        self.frame(Message::text(text)).await;
    }

    /// Sends any frame.
    pub(crate) async fn frame(&mut self, frame: Message) {
        self.socket.send(frame).await.unwrap();
    }

    /// The answer with this id.
    pub(crate) async fn answer(&mut self, id: &str) -> Value {
        self.find(&format!("answer {id}"), |frame| frame["type"] == "res" && frame["id"] == id).await
    }

    /// The next event of this name.
    pub(crate) async fn event(&mut self, name: &str) -> Value {
        self.find(name, |frame| frame["event"] == name).await
    }

    /// The next event of this name whose payload has this field with this value.
    pub(crate) async fn event_with(&mut self, name: &str, field: &str, value: &str) -> Value {
        let what = format!("{name} with {field} {value}");
        let found = self.find(&what, |frame| frame["event"] == name && frame["payload"][field] == value).await;
        found["payload"].clone()
    }

    /// The next `chat` payload of this run in this state.
    pub(crate) async fn chat(&mut self, run: &str, state: &str) -> Value {
        let fits = |frame: &Value| {
            frame["event"] == "chat" && frame["payload"]["runId"] == run && frame["payload"]["state"] == state
        };
        self.find(&format!("chat {state} of {run}"), fits).await["payload"].clone()
    }

    /// The first frame that fits; those before it wait.
    async fn find(&mut self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.waiting.iter().position(&fits) {
            return self.waiting.remove(at).unwrap();
        }
        loop {
            let Some(frame) = self.next().await else { panic!("closed before {what}: {:#?}", self.waiting) };
            if fits(&frame) {
                return frame;
            }
            self.waiting.push_back(frame);
        }
    }

    /// The next frame; `None` at the end.
    async fn next(&mut self) -> Option<Value> {
        loop {
            match tokio::time::timeout(PATIENCE, self.socket.next()).await {
                Ok(Some(Ok(Message::Text(text)))) => {
                    let frame: Value = serde_json::from_str(&text).unwrap();
                    if frame["type"] == "event" {
                        self.events.push(frame.clone());
                    }
                    return Some(frame);
                }
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => {}
                Ok(Some(Ok(other))) => panic!("unexpected end or frame: {other:?}; {:#?}", self.waiting),
                Ok(Some(Err(_)) | None) => return None,
                Err(_) => panic!("no frame for {PATIENCE:?}; waiting: {:#?}", self.waiting),
            }
        }
    }

    /// Reads to the close frame: its code, its reason, and the frames before it.
    pub(crate) async fn closed(&mut self) -> (u16, String, Vec<Value>) {
        let mut before: Vec<Value> = self.waiting.drain(..).collect();
        loop {
            match tokio::time::timeout(PATIENCE, self.socket.next()).await {
                Ok(Some(Ok(Message::Close(Some(frame))))) => {
                    return (frame.code.into(), frame.reason.to_string(), before);
                }
                Ok(Some(Ok(Message::Text(text)))) => before.push(serde_json::from_str(&text).unwrap()),
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => {}
                other => panic!("no close frame but {other:?} after {} frames", before.len()),
            }
        }
    }
}

/// Params of `chat.send`.
pub(crate) fn message(session: &str, text: &str, key: &str) -> Value {
    json!({"sessionKey": session, "message": text, "idempotencyKey": key})
}
