//! A proxy, the servers behind it, and clients that write bytes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_kernel::network_access::{NetworkRefusal, NetworkRules};
use quell_scope::clock::Clock;
use quell_scope::{Point, PointProbe, Scope};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::super::{FilteringProxy, HostResolver, ProxyLimits, ProxySetup, RefusalObserver, ResolvedAddresses};

const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// Waits for something that has to happen.
pub(super) async fn soon<T>(work: impl Future<Output = T>) -> T {
    timeout(WAIT_LIMIT, work).await.expect("this should have happened long ago")
}

pub(super) fn tls_without_certificates() -> rustls::ClientConfig {
    rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}

/// Answers of the resolver by name. The last answer of a name is repeated. An unknown name is at 127.0.0.1.
#[derive(Default)]
pub(super) struct ScriptedResolver {
    answers: Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>,
    pub(super) asked_for: Mutex<Vec<String>>,
    /// Never answers.
    is_silent: bool,
}

impl ScriptedResolver {
    pub(super) fn silent() -> Self {
        Self { is_silent: true, ..Self::default() }
    }

    pub(super) fn answer(self, name: &str, addresses: &[&str]) -> Self {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        self.answers.lock().unwrap().entry(name.to_owned()).or_default().push_back(addresses);
        self
    }
}

impl HostResolver for ScriptedResolver {
    fn resolve<'a>(&'a self, name: &'a str) -> ResolvedAddresses<'a> {
        self.asked_for.lock().unwrap().push(name.to_owned());
        if self.is_silent {
            return Box::pin(std::future::pending());
        }
        let mut answers = self.answers.lock().unwrap();
        let answer = match answers.get_mut(name) {
            Some(queue) if queue.len() > 1 => queue.pop_front().unwrap(),
            Some(queue) => queue[0].clone(),
            None => vec!["127.0.0.1".parse().unwrap()],
        };
        Box::pin(async move { Ok(answer) })
    }
}

#[derive(Clone, Default)]
pub(super) struct Refusals(Arc<Mutex<Vec<NetworkRefusal>>>);

impl Refusals {
    pub(super) fn texts(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(ToString::to_string).collect()
    }

    /// Takes the only refusal so far.
    pub(super) fn take_only(&self) -> NetworkRefusal {
        let mut refusals = self.0.lock().unwrap();
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        refusals.remove(0)
    }
}

impl RefusalObserver for Refusals {
    fn refused(&mut self, refusal: NetworkRefusal) {
        self.0.lock().unwrap().push(refusal);
    }
}

pub(super) struct ProxyUnderTest {
    pub(super) proxy: FilteringProxy,
    pub(super) port: u16,
    /// The scope of the command.
    pub(super) scope: Scope,
    pub(super) refusals: Refusals,
    pub(super) resolver: Arc<ScriptedResolver>,
}

/// What a test sets; the rest is as usual.
#[derive(Default)]
pub(super) struct ProxyOptions {
    pub(super) resolver: ScriptedResolver,
    pub(super) limits: ProxyLimits,
}

pub(super) fn new_scope() -> Scope {
    Scope::new(Clock::start(), PointProbe::default())
}

impl ProxyUnderTest {
    pub(super) async fn start(entries: &[String]) -> Self {
        Self::start_with(entries, ProxyOptions::default()).await
    }

    pub(super) async fn start_with(entries: &[String], options: ProxyOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (scope, refusals, resolver) = (new_scope(), Refusals::default(), Arc::new(options.resolver));
        let setup = ProxySetup {
            rules: NetworkRules::parse(entries).unwrap(),
            resolver: Arc::clone(&resolver) as Arc<dyn HostResolver>,
            observer: Box::new(refusals.clone()),
            limits: options.limits,
        };
        let proxy = FilteringProxy::start(listener, setup, &scope);
        Self { proxy, port, scope, refusals, resolver }
    }

    pub(super) async fn connect(&self) -> Client {
        Client(TcpStream::connect(("127.0.0.1", self.port)).await.unwrap())
    }

    /// Sends this on a new connection and returns all that comes until the proxy closes it.
    pub(super) async fn exchange(&self, request: &str) -> String {
        let mut client = self.connect().await;
        client.send(request).await;
        client.read_all().await
    }

    /// Opens a tunnel with CONNECT.
    pub(super) async fn open_tunnel(&self, target: &str) -> Client {
        let mut client = self.connect().await;
        client.send(&format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")).await;
        let head = client.read_head().await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        client
    }

    pub(super) fn resolved_names(&self) -> Vec<String> {
        self.resolver.asked_for.lock().unwrap().clone()
    }
}

pub(super) struct Client(pub(super) TcpStream);

impl Client {
    pub(super) async fn send(&mut self, text: &str) {
        self.send_bytes(text.as_bytes()).await;
    }

    pub(super) async fn send_bytes(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    pub(super) async fn read_head(&mut self) -> String {
        read_head(&mut self.0).await
    }

    /// Reads a response with a Content-Length: its head and its body.
    pub(super) async fn read_response(&mut self) -> String {
        let head = self.read_head().await;
        let lower = head.to_ascii_lowercase();
        let length = lower
            .split("content-length: ")
            .nth(1)
            .map_or(0, |rest| rest.split("\r\n").next().unwrap().parse().unwrap());
        let mut body = vec![0; length];
        soon(self.0.read_exact(&mut body)).await.unwrap();
        head + &String::from_utf8(body).unwrap()
    }

    pub(super) async fn read_exactly(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        soon(self.0.read_exact(&mut bytes)).await.unwrap();
        bytes
    }

    /// Reads until the end. A reset counts as the end.
    pub(super) async fn read_all(&mut self) -> String {
        let mut bytes = Vec::new();
        let _ = soon(self.0.read_to_end(&mut bytes)).await;
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Reads up to the empty line. Byte by byte, so that nothing behind it is lost.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match soon(stream.read_u8()).await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// A server on 127.0.0.1; it ends with the test.
pub(super) struct Server {
    pub(super) port: u16,
    scope: Scope,
}

impl Server {
    /// Runs `serve` for each connection.
    pub(super) async fn start<F>(serve: impl Fn(TcpStream) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let scope = new_scope();
        let work = scope.clone();
        scope.spawn(async move {
            while let Ok(Ok((stream, _))) = work.race(Point::Process, listener.accept()).await {
                let (raced, serving) = (work.clone(), serve(stream));
                work.spawn(async move {
                    let _ = raced.race(Point::Process, serving).await;
                });
            }
        });
        Self { port, scope }
    }

    /// Answers each request with its head and body as the text of the answer.
    pub(super) async fn start_mirror() -> Self {
        Self::start(|mut stream| async move {
            loop {
                let head = read_head(&mut stream).await;
                if head.is_empty() {
                    return;
                }
                let length: usize = head
                    .split("content-length: ")
                    .nth(1)
                    .map_or(0, |rest| rest.split("\r\n").next().unwrap().parse().unwrap());
                let mut body = vec![0; length];
                stream.read_exact(&mut body).await.unwrap();
                let text = head + &String::from_utf8_lossy(&body);
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
        })
        .await
    }

    /// Sends every byte back, and its own end after the end of the client.
    pub(super) async fn start_echo() -> Self {
        Self::start(|mut stream| async move {
            let (mut reader, mut writer) = stream.split();
            let _ = tokio::io::copy(&mut reader, &mut writer).await;
            let _ = writer.write_all(b" the end").await;
        })
        .await
    }

    /// `HOST:PORT` of this server, also as an entry of a list.
    pub(super) fn at(&self, host: &str) -> String {
        format!("{host}:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.scope.cancel();
    }
}

/// Sockets that this process holds and that are bound to the port of the proxy, or lead to a server's.
pub(super) fn count_sockets(proxy: u16, server: u16) -> usize {
    // A read of the table may miss or repeat lines while other sockets come and go.
    let in_table: HashSet<String> = (0..3).flat_map(|_| inodes_in_table(proxy, server)).collect();
    let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    let held: HashSet<String> = links.map(|link| link.to_string_lossy().into_owned()).collect();
    in_table.iter().filter(|inode| held.contains(&format!("socket:[{inode}]"))).count()
}

fn inodes_in_table(proxy: u16, server: u16) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next().unwrap(), 16).unwrap();
    let lines = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let counted = lines.filter(|fields| port(fields[1]) == proxy || port(fields[2]) == server);
    counted.map(|fields| fields[9].to_owned()).collect()
}
