//! The daemon: built floor by floor, closed in reverse. What is half-built when something fails is closed again.

use std::convert::Infallible;
use std::fs::{File, Metadata};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use quell_engine::agent::Materials;
use quell_engine::llm::demo::{DemoModel, DemoScript};
use quell_engine::{Engine, EngineConfig};
use quell_protocol::{Leftover, RunId};
use quell_surfaces::channels::flow::Channels;
use quell_surfaces::serve::{Listeners, LocalListener, SOCKET_FILE, raise_open_files};
use quell_surfaces::{Door, STOP_BUCKETS, STOP_SECONDS, describe_metrics};
use rustix::process::Signal as SignalName;
use secrecy::ExposeSecret;
use tokio::net::TcpSocket;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::ServeArgs;
use crate::config::{self, Loaded};
use crate::reload::Reload;

/// The file in the data directory that tells the talking verbs where the daemon is.
pub(crate) const ADDRESS_FILE: &str = "address";
/// Connections that may wait to be accepted, as the standard library has it.
const BACKLOG: u32 = 4096;
/// Between two attempts to write the address file.
const ADDRESS_AGAIN: Duration = Duration::from_secs(5);
/// How long the doors may take to hand out their last bytes.
const DOORS_CLOSE: Duration = Duration::from_millis(300);

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let open_files = match raise_open_files() {
        Ok(limit) => {
            tracing::debug!(before = limit.before, now = limit.now, "limit of open files");
            Some(limit.before)
        }
        Err(error) => {
            tracing::warn!(%error, "the limit of open files cannot be raised");
            None
        }
    };
    let loaded = config::load(args.config.as_deref())?;
    loaded.check_channels()?;
    loaded.check_workdirs(&config::data_dir()?)?;
    if let Some(unread) = loaded.unread_file() {
        tracing::warn!("{unread}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let code = runtime.block_on(serve(loaded, args.listen, open_files));
    // A resolver thread or a stuck disk must not keep the process.
    runtime.shutdown_timeout(Duration::from_millis(100));
    code
}

/// Commands get the limit `open_files`, with which this process was started.
async fn serve(mut loaded: Loaded, listen: Option<SocketAddr>, open_files: Option<u64>) -> anyhow::Result<ExitCode> {
    let _outlived = outlive_limits().context("signals cannot be caught")?;
    let data_dir = config::data_dir()?;
    // First of all, so that who starts a second daemon reads one line that says so.
    let address = listen.unwrap_or(loaded.config.server.listen);
    let taken = bind(address)?;
    warn_of_missing_keys(&loaded);
    let stops = Matcher::Full(STOP_SECONDS.to_owned());
    let metrics = PrometheusBuilder::new().set_buckets_for_metric(stops, STOP_BUCKETS)?;
    let metrics = metrics.install_recorder().context("metrics cannot be installed")?;
    describe_metrics();
    let demo = start_demo_model(&mut loaded).await?;
    let engine = Engine::start(EngineConfig { open_files, ..loaded.engine(data_dir.clone()) }).await?;
    tell_of_earlier_workdirs(&engine, &data_dir);
    let reload = Reload::new(&engine, &loaded, demo.as_ref().map(DemoModel::base_url));
    let served = tokio::select! {
        served = open_doors((&engine, &reload), &loaded, (taken, address), &data_dir, metrics) => served,
        never = reload.watch() => match never {},
    };
    let left = match &served {
        Ok(left) => left.as_slice(),
        // The doors were never open, or broke: nobody has closed the engine yet.
        Err(_) => &engine.shut_down().await,
    };
    if let Some(demo) = demo {
        demo.stop().await;
    }
    for (run, leftover) in left {
        tracing::error!(%run, kind = ?leftover.kind, name = leftover.name, "still held at the end of the shutdown");
    }
    let clean = served?.is_empty() && !engine.is_fenced();
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Before default workdirs left the data directory, agents worked below it. What they left there stays where it is.
fn tell_of_earlier_workdirs(engine: &Engine, data_dir: &Path) {
    for agent in engine.agents() {
        if let Some(earlier) = Materials::earlier_workdir(data_dir, &agent.id) {
            let work = &engine.config().work_dir;
            tracing::warn!(
                agent = %agent.id, earlier = %earlier.display(), "files of an agent are in the data directory, where it does not work \
                any more: move those that it needs to its workdir below {}", work.display()
            );
        }
    }
}

/// Takes the port without listening on it yet: nobody reaches a daemon that is not ready.
fn bind(address: SocketAddr) -> anyhow::Result<TcpSocket> {
    let taken = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        std::io::Result::Ok(socket)
    };
    taken().with_context(|| cannot_listen(address))
}

fn cannot_listen(address: SocketAddr) -> String {
    format!("cannot listen on {address}; is another daemon running there? --listen 127.0.0.1:0 takes a free port")
}

/// Without its key a provider refuses every request, and nobody would know why before the first message.
fn warn_of_missing_keys(loaded: &Loaded) {
    for (name, provider) in &loaded.config.providers {
        if let (None, Some(variable)) = (&provider.api_key, &provider.api_key_env) {
            tracing::warn!(
                "provider {name}: {variable}, which api_key_env names, is not set or empty; export {variable}=... and start again, or remove api_key_env if the server needs no key"
            );
        }
    }
}

/// What could not be ended, each with the run that had started it.
type Left = Vec<(RunId, Leftover)>;

/// Listens, announces the address, and serves until a signal or another daemon that has the data now; then shuts the engine down and answers what it left. While that
/// goes on the doors stay open: they refuse new work by name, still take a stop, and hand out what streams have to say.
async fn open_doors(
    (engine, reload): (&Engine, &Reload),
    loaded: &Loaded,
    (taken, address): (TcpSocket, SocketAddr),
    data_dir: &Path,
    metrics: metrics_exporter_prometheus::PrometheusHandle,
) -> anyhow::Result<Left> {
    let listener = taken.listen(BACKLOG).with_context(|| cannot_listen(address))?;
    let address = listener.local_addr()?;
    let door = Door::new(engine.clone(), loaded.doors(), Some(metrics));
    let channels = Channels::start(engine.clone(), reload.settings(), reload.looker());
    door.know_channels(channels.clone());
    let mut told = AddressFile::write(data_dir, address).inspect_err(|error| {
        tracing::error!(%error, "the address file cannot be written: the command line uses the local socket, or --url http://{address}");
    }).ok();
    let mut signals = Signals::listen().context("signals cannot be listened for")?;
    let listeners = Listeners { tcp: listener, local: local_socket(data_dir) };
    announce(engine, address)?;
    let closing = engine.clone();
    let mut server = Box::pin(quell_surfaces::serve(listeners, door, async move { closing.closing().await }));
    tokio::select! {
        // It ends when the engine has closed, which only happens below.
        () = &mut server => {}
        () = signals.next() => {}
        never = tell_address(&mut told, data_dir, address) => match never {},
        () = engine.fenced() => tracing::error!("another quell has taken over the data directory: shutting down"),
    }
    let last_words = async {
        engine.closing().await;
        tokio::time::sleep(DOORS_CLOSE).await;
    };
    let (left, (), ()) =
        tokio::join!(stop_or_force(engine, &mut signals), close_doors(engine, server), channels.shut_down(last_words));
    Ok(left)
}

/// The Unix socket in the data directory, which no other daemon uses: the engine holds its lock.
fn local_socket(data_dir: &Path) -> Option<LocalListener> {
    match LocalListener::bind(data_dir) {
        Ok(listener) => Some(listener),
        Err(error) => {
            let path = data_dir.join(SOCKET_FILE);
            tracing::warn!(%error, path = %path.display(), "no local socket: the command line uses the address instead");
            None
        }
    }
}

/// Catches the signals of exceeded limits, which another process of this user can set (`prlimit`): a write that is too much then
/// fails like one to a full disk. A handler is not inherited by commands, as an ignored signal would be.
fn outlive_limits() -> std::io::Result<[Signal; 2]> {
    let caught = |name: SignalName| signal(SignalKind::from_raw(name.as_raw()));
    Ok([caught(SignalName::XFSZ)?, caught(SignalName::XCPU)?])
}

/// The address file, gone with the daemon that wrote it. The next daemon may be there already, with the same address: it puts a
/// file of its own in the place of this one.
struct AddressFile {
    path: PathBuf,
    /// Kept open, so that its number is not used again.
    own: File,
}

impl AddressFile {
    fn write(data_dir: &Path, address: SocketAddr) -> std::io::Result<Self> {
        let (path, new) = (data_dir.join(ADDRESS_FILE), data_dir.join("address.new"));
        let mut own = File::create(&new)?;
        let written = writeln!(own, "{address}").and_then(|()| std::fs::rename(&new, &path));
        match written {
            Ok(()) => Ok(Self { path, own }),
            Err(error) => {
                // Neither an empty file, nor the address of a daemon that is gone.
                let _ = std::fs::remove_file(new);
                let _ = std::fs::remove_file(path);
                Err(error)
            }
        }
    }
}

/// Writes the address file as soon as the disk has room for it.
async fn tell_address(told: &mut Option<AddressFile>, data_dir: &Path, address: SocketAddr) -> Infallible {
    while told.is_none() {
        tokio::time::sleep(ADDRESS_AGAIN).await;
        *told = AddressFile::write(data_dir, address).ok();
    }
    std::future::pending().await
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        let number = |file: std::io::Result<Metadata>| file.ok().map(|file| (file.dev(), file.ino()));
        if number(std::fs::metadata(&self.path)) == number(self.own.metadata()) {
            // What cannot be removed names a daemon that nobody reaches.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Serves until the engine closes, and a moment longer: streams end then, and a reader that does not read is left behind.
async fn close_doors(engine: &Engine, server: impl Future<Output = ()>) {
    let over = async {
        engine.closing().await;
        tokio::time::sleep(DOORS_CLOSE).await;
    };
    tokio::select! {
        () = server => {}
        () = over => {}
    }
}

/// One line: where it listens, and a link that signs one browser in.
fn announce(engine: &Engine, address: SocketAddr) -> anyhow::Result<()> {
    let code = engine.access().issue_link().context("no sign-in link can be made")?;
    // Who listens on every address is reached on this machine by the loopback.
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::from((Ipv6Addr::LOCALHOST, address.port())),
        _ => address,
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "quell is ready on http://{address} · page: http://{host}/sign-in/{}", code.expose_secret())?;
    out.flush()?;
    Ok(())
}

/// SIGTERM and SIGINT, heard from the moment this is made: none that comes later ends the process by itself or is lost.
struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next one.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => tracing::info!("SIGTERM: shutting down"),
            _ = self.int.recv() => tracing::info!("SIGINT: shutting down"),
        }
    }
}

/// Shuts down and answers what is left; a second signal forces.
async fn stop_or_force(engine: &Engine, signals: &mut Signals) -> Left {
    let mut down = std::pin::pin!(engine.shut_down());
    tokio::select! {
        left = &mut down => return left,
        () = signals.next() => engine.force_shut_down(),
    }
    down.await
}

/// Starts the built-in demo model when a provider, an agent or a route asks for it.
async fn start_demo_model(loaded: &mut Loaded) -> anyhow::Result<Option<DemoModel>> {
    if !loaded.config.asks_for_demo_model() {
        return Ok(None);
    }
    let model = DemoModel::start(DemoScript::Chat).await.context("the demo model cannot be started")?;
    loaded.config.point_to_demo_model(&model.base_url());
    Ok(Some(model))
}
