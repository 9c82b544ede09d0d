//! The base of every fake server: a port that tests close and open, a task for each connection, HTTP requests and
//! replies, and state that tests wait for.

pub(crate) mod http1;

use std::fmt::Debug;
use std::future::{pending, ready};
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::time::Duration;

use bytes::BytesMut;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::WAIT_TIMEOUT;
use crate::or_fail::OrFail as _;
use http1::{RawHttpRequest, read_request};

/// A listening port. Dropping it closes the port and every connection.
#[derive(Debug)]
pub(crate) struct FakePort {
    address: SocketAddr,
    commands: mpsc::UnboundedSender<(PortCommand, oneshot::Sender<()>)>,
    _task: JoinSet<()>,
}

#[derive(Debug)]
enum PortCommand {
    /// Refuse new connections; open ones stay.
    Close,
    Listen(StdTcpListener),
    DropConnections,
}

impl FakePort {
    /// Listens on a free port, and serves each connection in a task of the caller's runtime.
    pub(crate) fn start<S, F>(state: &S, serve: impl Fn(TcpStream, S) -> F + Send + 'static) -> Self
    where
        S: Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let state = state.clone();
        let listener = bind_listener(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = listener.local_addr().or_fail("no address");
        let ((commands, inbox), mut task) = (mpsc::unbounded_channel(), JoinSet::new());
        task.spawn(accept_loop(listener, inbox, move |stream| serve(stream, state.clone())));
        Self { address, commands, _task: task }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Such as `http://127.0.0.1:40000`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Refuses new connections; open ones stay.
    pub(crate) async fn close(&self) {
        self.send_command(PortCommand::Close).await;
    }

    /// Closes the port and every connection.
    pub(crate) async fn stop(&self) {
        self.close().await;
        self.send_command(PortCommand::DropConnections).await;
    }

    /// Listens again after [`Self::close`]. Connections are accepted when this returns.
    pub(crate) fn listen_again(&self) {
        let _ = self.commands.send((PortCommand::Listen(bind_listener(self.address)), oneshot::channel().0));
    }

    async fn send_command(&self, command: PortCommand) {
        let (done, carried_out) = oneshot::channel();
        let sent = self.commands.send((command, done)).is_ok();
        assert!(sent && carried_out.await.is_ok(), "the fake server of this test is gone");
    }
}

/// Binds a listener, also to a port that was just closed.
fn bind_listener(address: SocketAddr) -> StdTcpListener {
    let bound = StdTcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        // A thousand clients may come at once; the standard library's queue holds 128.
        rustix::net::listen(&listener, 4096)?;
        Ok(listener)
    });
    bound.or_fail(format_args!("{address} cannot be opened"))
}

/// Registers the listener with the runtime of the caller, which need not be that of the test.
fn register_listener(listener: StdTcpListener) -> TcpListener {
    TcpListener::from_std(listener).or_fail("the runtime takes no listener")
}

/// Serves each connection in a task; the tasks end with the loop.
async fn accept_loop<F>(
    listener: StdTcpListener,
    mut inbox: mpsc::UnboundedReceiver<(PortCommand, oneshot::Sender<()>)>,
    serve: impl Fn(TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let (mut listener, mut connections) = (Some(register_listener(listener)), JoinSet::new());
    loop {
        // Cancel safe: a dropped accept leaves the connection in the backlog; commands and join results are received
        // whole or not at all.
        tokio::select! {
            command = inbox.recv() => {
                let Some((command, done)) = command else { return };
                match command {
                    PortCommand::Close => listener = None,
                    PortCommand::Listen(opened) => listener = Some(register_listener(opened)),
                    PortCommand::DropConnections => connections.shutdown().await,
                }
                let _ = done.send(());
            }
            stream = accept_connection(listener.as_ref()) => drop(connections.spawn(serve(stream))),
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn accept_connection(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return pending().await };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Only small frames are sent here; with Nagle's algorithm they would wait for each other.
                let _ = stream.set_nodelay(true);
                return stream;
            }
            Err(error) => {
                eprintln!("accept failed: {error}");
                // Out of descriptors: an immediate retry would fail too.
                sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct FakeHttpReply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Has no length, and ends with the connection.
    pub(crate) closes: bool,
}

impl FakeHttpReply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), closes: false }
    }

    pub(crate) fn json(status: u16, body: &Value) -> Self {
        Self::new(status, body.to_string())
    }

    pub(crate) fn html(status: u16, page: impl Into<Vec<u8>>) -> Self {
        Self::new(status, page).with_header("content-type", "text/html")
    }

    pub(crate) fn with_header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {} Scripted\r\n", self.status);
        head += &if self.closes {
            "connection: close\r\n".to_owned()
        } else {
            format!("content-length: {}\r\n", self.body.len())
        };
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            head.push_str("content-type: application/json\r\n");
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        [head.as_bytes(), b"\r\n", self.body.as_slice()].concat()
    }
}

/// A port whose requests change the state and are answered at once; without an answer the connection is closed.
pub(crate) fn start_http_server<S: Clone + Send + Sync + 'static>(
    state: &SharedState<S>,
    answer: fn(&mut S, &RawHttpRequest) -> Option<FakeHttpReply>,
) -> FakePort {
    FakePort::start(state, move |stream, state| {
        serve_http(stream, move |incoming| ready(state.update(|state| answer(state, &incoming))))
    })
}

/// Serves requests until the client leaves or there is no answer. An answer is dropped when its client leaves.
pub(crate) async fn serve_http<F>(mut stream: TcpStream, answer: impl Fn(RawHttpRequest) -> F)
where
    F: Future<Output = Option<FakeHttpReply>>,
{
    let serving = async {
        let mut buffer = BytesMut::new();
        while let Some(incoming) = read_request(&mut stream, &mut buffer).await? {
            let (mut reader, mut writer) = stream.split();
            // Cancel safe: the reader leaves what it read in the buffer. A client that has left already still has its
            // request carried out.
            let answer = tokio::select! {
                biased;
                answer = answer(incoming) => answer,
                () = wait_client_disconnect(&mut reader, &mut buffer) => None,
            };
            let Some(reply) = answer else { return Ok(()) };
            let closes = reply.closes;
            writer.write_all(&reply.into_bytes()).await?;
            if closes {
                return Ok(());
            }
        }
        Ok(())
    };
    // Many tests let the client disconnect in the middle.
    let _: io::Result<()> = serving.await;
}

/// Returns when the client has closed or reset its side. Bytes that arrive meanwhile belong to its next request.
pub(crate) async fn wait_client_disconnect(reader: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) {
    while let Ok(1..) = reader.read_buf(buffer).await {}
}

/// Decodes percent encoding; other characters outside of ASCII and a `%` without two hex digits are refused.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    let begins_with_hex = |rest: &str| rest.as_bytes().get(..2)?.iter().all(u8::is_ascii_hexdigit).then_some(());
    text.split('%').skip(1).try_for_each(begins_with_hex)?;
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8().ok()?;
    text.is_ascii().then(|| decoded.into_owned())
}

/// The state of a fake server, which tests read, change and wait for.
#[derive(Debug, Clone, Default)]
pub struct SharedState<S>(watch::Sender<S>);

impl<S> SharedState<S> {
    pub(crate) fn new(state: S) -> Self {
        Self(watch::Sender::new(state))
    }

    /// Changes it and tells those who wait for it; returns what `change` returns.
    pub fn update<T>(&self, change: impl FnOnce(&mut S) -> T) -> T {
        self.update_if(|state| Some(change(state))).or_fail("a change is made at once")
    }

    /// Like [`Self::update`], but nobody is told when `change` returns nothing.
    pub(crate) fn update_if<T>(&self, change: impl FnOnce(&mut S) -> Option<T>) -> Option<T> {
        let (mut change, mut done) = (Some(change), None);
        self.0.send_if_modified(|state| {
            done = change.take().and_then(|change| change(state));
            done.is_some()
        });
        done
    }

    /// Reads a part of it without a copy of the rest.
    pub fn with_state<T>(&self, part: impl FnOnce(&S) -> T) -> T {
        part(&self.0.borrow())
    }

    /// Waits until it fulfils a condition; `what` names it in the failure.
    pub async fn wait_for(&self, what: &str, condition: impl Fn(&S) -> bool) -> S
    where
        S: Clone + Debug,
    {
        match timeout(WAIT_TIMEOUT, self.subscribe().wait_for(|state| condition(state))).await {
            Ok(Ok(state)) => state.clone(),
            _ => panic!("waited {WAIT_TIMEOUT:?} for {what}: {:#?}", self.0.borrow()),
        }
    }

    pub fn state(&self) -> S
    where
        S: Clone,
    {
        self.0.borrow().clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<S> {
        self.0.subscribe()
    }

    /// Increments a counter while the guard lives, also when its task is dropped.
    pub(crate) fn count(&self, counter: fn(&mut S) -> &mut usize) -> ChangeOnDrop<S, impl FnOnce(&mut S) + use<S>> {
        self.update(|state| *counter(state) += 1);
        self.on_drop(move |state| *counter(state) -= 1)
    }

    /// Makes a change when the guard is dropped.
    pub(crate) fn on_drop<F: FnOnce(&mut S)>(&self, change: F) -> ChangeOnDrop<S, F> {
        ChangeOnDrop { state: Self(self.0.clone()), change: Some(change) }
    }
}

pub(crate) struct ChangeOnDrop<S, F: FnOnce(&mut S)> {
    state: SharedState<S>,
    change: Option<F>,
}

impl<S, F: FnOnce(&mut S)> Drop for ChangeOnDrop<S, F> {
    fn drop(&mut self) {
        if let Some(change) = self.change.take() {
            self.state.update(change);
        }
    }
}
