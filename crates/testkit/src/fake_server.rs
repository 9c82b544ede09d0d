//! The base of every fake server: a port that tests close and open, a task for each connection, HTTP requests and
//! replies, and state that tests wait for.

pub(crate) mod http1;

use std::fmt::Debug;
use std::future::pending;
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

/// What a fake server does with a request.
pub(crate) enum FakeAnswer {
    Send(Vec<u8>),
    SendAndClose(Vec<u8>),
    /// Closes the connection without an answer.
    Close,
}

impl From<Option<FakeHttpReply>> for FakeAnswer {
    fn from(reply: Option<FakeHttpReply>) -> Self {
        reply.map_or(Self::Close, |reply| Self::Send(reply.into_bytes()))
    }
}

#[derive(Debug, Clone)]
pub(crate) struct FakeHttpReply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl FakeHttpReply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
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
        let mut head = format!("HTTP/1.1 {} Scripted\r\ncontent-length: {}\r\n", self.status, self.body.len());
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            head.push_str("content-type: application/json\r\n");
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        [head.as_bytes(), b"\r\n", self.body.as_slice()].concat()
    }
}

/// Serves requests until the client leaves or the connection is closed. An answer is dropped when its client leaves.
pub(crate) async fn serve_http<F>(mut stream: TcpStream, answer: impl Fn(RawHttpRequest) -> F)
where
    F: Future<Output = FakeAnswer>,
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
                () = wait_client_disconnect(&mut reader, &mut buffer) => FakeAnswer::Close,
            };
            match answer {
                FakeAnswer::Send(bytes) => writer.write_all(&bytes).await?,
                FakeAnswer::SendAndClose(bytes) => return writer.write_all(&bytes).await,
                FakeAnswer::Close => return Ok(()),
            }
        }
        Ok(())
    };
    // Many tests let the client disconnect in the middle.
    let _ = serving.await;
}

/// Returns when the client has closed or reset its side. Bytes that arrive meanwhile belong to its next request.
pub(crate) async fn wait_client_disconnect(reader: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) {
    while let Ok(1..) = reader.read_buf(buffer).await {}
}

/// Decodes percent encoding; other characters outside of ASCII are refused.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte if byte.is_ascii() => byte,
            _ => return None,
        });
    }
    String::from_utf8(bytes).ok()
}

/// Increments a counter of the state while it lives, also when its task is dropped.
pub(crate) struct CountGuard<S> {
    state: watch::Sender<S>,
    count: fn(&mut S) -> &mut usize,
}

impl<S> CountGuard<S> {
    pub(crate) fn new(state: &watch::Sender<S>, count: fn(&mut S) -> &mut usize) -> Self {
        state.send_modify(|state| *count(state) += 1);
        Self { state: state.clone(), count }
    }
}

impl<S> Drop for CountGuard<S> {
    fn drop(&mut self) {
        self.state.send_modify(|state| *(self.count)(state) -= 1);
    }
}

/// Changes the state and tells those who wait for it; returns what `change` returns.
pub(crate) fn update_state<S, T>(state: &watch::Sender<S>, change: impl FnOnce(&mut S) -> T) -> T {
    let (mut change, mut done) = (Some(change), None);
    state.send_modify(|state| done = change.take().map(|change| change(state)));
    match done {
        Some(done) => done,
        None => unreachable!("a change is made at once"),
    }
}

/// Waits until the state fulfils a condition; `what` names it in the failure.
pub(crate) async fn wait_for_state<S: Clone + Debug>(
    state: &watch::Sender<S>,
    what: &str,
    condition: impl Fn(&S) -> bool,
) -> S {
    let mut watched = state.subscribe();
    match timeout(WAIT_TIMEOUT, watched.wait_for(|state| condition(state))).await {
        Ok(Ok(state)) => state.clone(),
        _ => panic!("waited {WAIT_TIMEOUT:?} for {what}: {:#?}", state.borrow()),
    }
}
