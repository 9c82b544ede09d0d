//! `quell serve`: start the engine, channels and server; shut them down in reverse order, also when a start fails
//! half-way.

use std::convert::Infallible;
use std::fs::{DirBuilder, File, Metadata};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use quell_channels::flow::Channels;
use quell_engine::agent::AgentFactory;
use quell_engine::{Engine, EngineConfig};
use quell_llm::demo::{DemoModel, DemoScript};
use quell_protocol::{Leftover, RunId};
use quell_server::serve::{Listeners, SOCKET_FILE, UnixSocketListener, raise_open_files};
use quell_server::{MetricsRegistry, ServerState, describe_metrics};
use rustix::process::Signal as SignalName;
use secrecy::ExposeSecret;
use tokio::net::TcpSocket;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::{self, LoadedConfig};
use crate::reload::ConfigReloader;
use crate::runtime::block_on;

/// The file in the data directory that tells client commands the daemon's address.
pub(crate) const ADDRESS_FILE: &str = "address";
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 4096;
/// Pause between two attempts to write the address file.
const ADDRESS_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Time for the server to send its last bytes.
const SERVER_DRAIN_TIMEOUT: Duration = Duration::from_millis(300);

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// The configuration file; else $QUELL_CONFIG, or quell/quell.toml in the XDG config directory.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address to listen on; port 0 chooses a free port.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
}

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
    loaded.check_start(&config::data_dir()?)?;
    if let Some(unread) = loaded.unread_file_warning() {
        tracing::warn!("{unread}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let code = block_on(&runtime, serve(loaded, args.listen, open_files));
    // A blocked DNS thread or a stuck disk must not keep the process alive.
    runtime.shutdown_timeout(Duration::from_millis(100));
    code
}

/// `open_files` is the limit that this process was started with, and the limit for commands.
async fn serve(
    mut loaded: LoadedConfig,
    listen: Option<SocketAddr>,
    open_files: Option<u64>,
) -> anyhow::Result<ExitCode> {
    let _limit_signals = catch_limit_signals().context("signals cannot be caught")?;
    let data_dir = config::data_dir()?;
    // Bind first, so that a second daemon fails at once with one line.
    let socket = bind_tcp(listen.unwrap_or(loaded.config.server.listen))?;
    warn_about_missing_keys(&loaded);
    for warning in loaded.writable_server_warnings(&data_dir) {
        tracing::warn!("{warning}");
    }
    create_default_config_dir();
    let metrics = MetricsRegistry::default();
    metrics::set_global_recorder(metrics.clone()).context("metrics cannot be installed")?;
    describe_metrics();
    let demo = start_demo_model(&mut loaded).await?;
    let engine =
        Engine::start(EngineConfig { open_files_limit: open_files, ..loaded.engine_config(data_dir.clone()) }).await?;
    warn_about_earlier_workdirs(&engine, &data_dir);
    let reload = ConfigReloader::new(&engine, &loaded, demo.as_ref().map(DemoModel::base_url));
    let server_result = tokio::select! {
        served = run_server(&engine, &reload, &loaded, socket, &data_dir, metrics) => served,
        never = reload.watch() => match never {},
    };
    let left = match &server_result {
        Ok(left) => left.as_slice(),
        // The server did not start, or failed: the engine is not shut down yet.
        Err(_) => &engine.shut_down().await,
    };
    if let Some(demo) = demo {
        demo.stop().await;
    }
    for (run, leftover) in left {
        tracing::error!(%run, kind = ?leftover.kind, name = leftover.name, "still held at the end of the shutdown");
    }
    let clean = server_result?.is_empty() && !engine.is_fenced();
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Creates the directory of the default configuration file, so that a sandbox can cover it: the next start would read a
/// file that a command creates there.
fn create_default_config_dir() {
    let Some(directory) = config::default_config_dir() else { return };
    if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&directory) {
        tracing::debug!(directory = %directory.display(), %error, "the directory of the default configuration does not exist");
    }
}

/// In old versions agents worked below the data directory. Their files there are not moved.
fn warn_about_earlier_workdirs(engine: &Engine, data_dir: &Path) {
    for agent in engine.list_agents() {
        if let Some(earlier) = AgentFactory::legacy_workdir(data_dir, &agent.id) {
            let work = &engine.config().work_dir;
            tracing::warn!(
                agent = %agent.id, earlier = %earlier.display(), "files of an agent are in the data directory, where it does not work \
                any more: move those that it needs to its workdir below {}", work.display()
            );
        }
    }
}

/// Binds the port without listening yet: clients must not reach a daemon that is not ready.
fn bind_tcp(address: SocketAddr) -> anyhow::Result<TcpSocket> {
    let try_bind = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        std::io::Result::Ok(socket)
    };
    try_bind().with_context(|| listen_error_text(address))
}

fn listen_error_text(address: SocketAddr) -> String {
    format!("cannot listen on {address}; is another daemon running there? --listen 127.0.0.1:0 takes a free port")
}

/// Without its key a provider refuses every request; warn before the first message fails.
fn warn_about_missing_keys(loaded: &LoadedConfig) {
    for (name, provider) in &loaded.config.providers {
        if let (None, Some(variable)) = (&provider.api_key, &provider.api_key_env) {
            tracing::warn!(
                "provider {name}: {variable}, which api_key_env names, is not set or empty; export {variable}=... and start again, or remove api_key_env if the server needs no key"
            );
        }
    }
}

/// Resources that could not be released, each with its run.
type RunLeftovers = Vec<(RunId, Leftover)>;

/// Listens, writes the address file, and serves until a signal arrives or another daemon has taken over the data
/// directory. Then shuts the engine down and returns the leftovers.
///
/// The server stays open during the shutdown: it refuses new work with an error, still accepts stops, and sends the
/// last events of streams.
async fn run_server(
    engine: &Engine,
    reload: &ConfigReloader,
    loaded: &LoadedConfig,
    socket: TcpSocket,
    data_dir: &Path,
    metrics: MetricsRegistry,
) -> anyhow::Result<RunLeftovers> {
    let address = socket.local_addr()?;
    let listener = socket.listen(BACKLOG).with_context(|| listen_error_text(address))?;
    let state = ServerState::new(engine.clone(), loaded.config.server.clone(), Some(metrics));
    let channels = Channels::start(engine.clone(), reload.live_settings(), reload.check_callback());
    state.set_channels(channels.clone());
    let mut address_file = AddressFile::write(data_dir, address).inspect_err(|error| {
        tracing::error!(%error, "the address file cannot be written: the command line uses the local socket, or --url http://{address}");
    }).ok();
    let mut signals = ShutdownSignals::listen().context("cannot listen for signals")?;
    let listeners = Listeners { tcp: listener, local: bind_unix_socket(data_dir) };
    print_ready_line(engine, address)?;
    if let Err(error) = quell_process::unmap_unused_code() {
        tracing::debug!(%error, "the code of the start stays in memory");
    }
    let closing = engine.clone();
    let mut server = Box::pin(quell_server::serve(listeners, state, async move { closing.wait_for_close().await }));
    tokio::select! {
        // The server ends when the engine has closed, which happens only below.
        () = &mut server => {}
        () = signals.next() => {}
        never = retry_address_file(&mut address_file, data_dir, address) => match never {},
        () = engine.wait_for_fence() => tracing::error!("{}: shutting down", fence_reason(engine)),
    }
    let (left, (), ()) = tokio::join!(
        shut_down_engine(engine, &mut signals),
        drain_server(engine, server),
        channels.shut_down(wait_until_drained(engine))
    );
    Ok(left)
}

/// Why the daemon can only shut down.
fn fence_reason(engine: &Engine) -> &'static str {
    match engine.cluster() {
        Some(_) => "this node has lost its lease, and starts again as a new one",
        None => "another quell has taken over the database",
    }
}

/// Binds the Unix socket in the data directory. No other daemon uses it, because the engine holds the directory's lock.
fn bind_unix_socket(data_dir: &Path) -> Option<UnixSocketListener> {
    match UnixSocketListener::bind(data_dir) {
        Ok(listener) => Some(listener),
        Err(error) => {
            let path = data_dir.join(SOCKET_FILE);
            tracing::warn!(%error, path = %path.display(), "no local socket: the command line uses the address instead");
            None
        }
    }
}

/// Catches SIGXFSZ and SIGXCPU. Another process of this user can set the limits that cause them (`prlimit`). A write
/// beyond the limit then fails like one to a full disk. Caught rather than ignored, because commands would inherit an
/// ignored signal.
fn catch_limit_signals() -> std::io::Result<[Signal; 2]> {
    let caught = |name: SignalName| signal(SignalKind::from_raw(name.as_raw()));
    Ok([caught(SignalName::XFSZ)?, caught(SignalName::XCPU)?])
}

/// The address file, removed when its daemon ends. The next daemon may have replaced it already by its own, with the
/// same address.
struct AddressFile {
    path: PathBuf,
    /// Kept open, so that its inode number is not reused.
    file: File,
}

impl AddressFile {
    fn write(data_dir: &Path, address: SocketAddr) -> std::io::Result<Self> {
        let (path, new) = (data_dir.join(ADDRESS_FILE), data_dir.join("address.new"));
        let mut own = File::create(&new)?;
        let written = writeln!(own, "{address}").and_then(|()| std::fs::rename(&new, &path));
        match written {
            Ok(()) => Ok(Self { path, file: own }),
            Err(error) => {
                // Leave neither an empty file nor the address of an earlier daemon.
                let _ = std::fs::remove_file(new);
                let _ = std::fs::remove_file(path);
                Err(error)
            }
        }
    }
}

/// Retries to write the address file until the disk has room for it.
async fn retry_address_file(
    address_file: &mut Option<AddressFile>,
    data_dir: &Path,
    address: SocketAddr,
) -> Infallible {
    while address_file.is_none() {
        tokio::time::sleep(ADDRESS_RETRY_INTERVAL).await;
        *address_file = AddressFile::write(data_dir, address).ok();
    }
    std::future::pending().await
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        let number = |file: std::io::Result<Metadata>| file.ok().map(|file| (file.dev(), file.ino()));
        if number(std::fs::metadata(&self.path)) == number(self.file.metadata()) {
            // If the removal fails, clients find a daemon that does not answer.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Serves until streams had time to end. Does not wait for slow readers.
async fn drain_server(engine: &Engine, server: impl Future<Output = ()>) {
    tokio::select! {
        () = server => {}
        () = wait_until_drained(engine) => {}
    }
}

/// Waits until the engine has closed, and [`SERVER_DRAIN_TIMEOUT`] longer.
async fn wait_until_drained(engine: &Engine) {
    engine.wait_for_close().await;
    tokio::time::sleep(SERVER_DRAIN_TIMEOUT).await;
}

/// Prints one line with the address, and a link that signs one browser in.
fn print_ready_line(engine: &Engine, address: SocketAddr) -> anyhow::Result<()> {
    let code = engine
        .access()
        .issue_login_code(quell_engine::access::LinkIssuer::Person)
        .context("cannot create a sign-in link")?;
    // On this machine, a daemon that listens on all addresses is reached by the loopback address.
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

/// SIGTERM and SIGINT, caught from the creation of this value on: no later one kills the process or is lost.
struct ShutdownSignals {
    term: Signal,
    int: Signal,
}

impl ShutdownSignals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => tracing::info!("SIGTERM: shutting down"),
            _ = self.int.recv() => tracing::info!("SIGINT: shutting down"),
        }
    }
}

/// Shuts down and returns the leftovers; a second signal forces.
async fn shut_down_engine(engine: &Engine, signals: &mut ShutdownSignals) -> RunLeftovers {
    let mut shutdown = std::pin::pin!(engine.shut_down());
    tokio::select! {
        left = &mut shutdown => return left,
        () = signals.next() => engine.force_shut_down(),
    }
    shutdown.await
}

/// Starts the built-in demo model when a provider, an agent or a route refers to it.
async fn start_demo_model(loaded: &mut LoadedConfig) -> anyhow::Result<Option<DemoModel>> {
    if !loaded.config.needs_demo_model() {
        return Ok(None);
    }
    let model = DemoModel::start(DemoScript::Chat).await.context("the demo model cannot be started")?;
    loaded.config.set_demo_model_url(&model.base_url());
    Ok(Some(model))
}
