//! Check that the running daemon answers, or that its port is free.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use quell_client::{ClientError, DaemonClient, DaemonTarget};
use quell_server::serve::SOCKET_FILE;
use quell_store::LockHolder;
use serde_json::Value;

use super::ConfiguredInput;
use super::finding::DoctorFinding;
use crate::daemon::ADDRESS_FILE;
use crate::runtime::block_on;

/// The metric of a daemon that refuses its configuration file.
const STALE_METRIC_LINE: &str = "quell_config_stale 1";
/// A healthy daemon on this machine answers within milliseconds.
const QUERY_TIMEOUT: Duration = Duration::from_secs(3);

/// A running daemon must answer and have this version. If none runs, its port must be free.
pub(super) fn daemon(input: &ConfiguredInput<'_>) -> Vec<DoctorFinding> {
    let holder = input.inspection().as_ref().ok().and_then(|found| found.holder);
    let mut findings = vec![match holder {
        Some(holder) => check_running(input, holder),
        None => check_listen_address(input.loaded.config.server.listen),
    }];
    findings.extend(check_exposure(input.loaded.config.server.listen));
    findings
}

fn check_running(input: &ConfiguredInput<'_>, holder: LockHolder) -> DoctorFinding {
    let process = holder.pid.map_or_else(|| "a daemon".to_owned(), |pid| format!("a daemon (pid {pid})"));
    let token = std::fs::read_to_string(input.loaded.token_file(input.data_dir)).unwrap_or_default();
    let place = match std::fs::read_to_string(input.data_dir.join(ADDRESS_FILE)) {
        Ok(address) => format!("http://{}", address.trim()),
        // On a full disk the daemon could not write its address.
        Err(_) if input.data_dir.join(SOCKET_FILE).exists() => SOCKET_FILE.to_owned(),
        Err(_) => {
            return DoctorFinding::warn(
                format!("{process} uses the data directory, but has not said where it listens"),
                "it is starting or closing; look again in a moment",
            );
        }
    };
    match block_on(&input.base.runtime, query_daemon(input.data_dir, token.trim())) {
        Ok(DaemonReadiness { unready: Some(why), .. }) => DoctorFinding::fail(
            format!("{process} answers on {place}, and it takes no runs: {why}"),
            "looks and stops work; make room on the disk, or end the program that locks the database: no restart is needed",
        ),
        Ok(DaemonReadiness { is_stale: true, .. }) => DoctorFinding::warn(
            format!("{process} on {place} does not take its configuration file, and works with what it had before"),
            "correct the file; `quell config check` and the daemon's log say what is wrong with it",
        ),
        Ok(DaemonReadiness { version, .. }) if version == env!("CARGO_PKG_VERSION") => {
            DoctorFinding::ok(format!("{process} answers on {place}, version {version}"))
        }
        Ok(DaemonReadiness { version, .. }) => DoctorFinding::warn(
            format!("{process} on {place} is version {version}, this is {}", env!("CARGO_PKG_VERSION")),
            "restart the daemon with this version",
        ),
        Err(DaemonQueryError::BadToken) => DoctorFinding::fail(
            format!("{process} on {place} refuses the token in the data directory"),
            "restart the daemon; it takes the token that is in the file when it starts",
        ),
        Err(DaemonQueryError::NoAnswer(cause)) => DoctorFinding::fail(
            format!("{process} uses the data directory but does not answer on {place}: {cause}"),
            "look at its log; if it hangs, end it and start it again",
        ),
    }
}

enum DaemonQueryError {
    BadToken,
    NoAnswer(String),
}

/// State of a daemon, as it reports it.
struct DaemonReadiness {
    version: String,
    is_stale: bool,
    /// The reason why it accepts no runs.
    unready: Option<String>,
}

/// Queries the daemon of this data directory. Sends the token only after the client has verified the daemon.
async fn query_daemon(data_dir: &Path, token: &str) -> Result<DaemonReadiness, DaemonQueryError> {
    let target = DaemonTarget { url: None, token: Some(token.to_owned()), data_dir: Some(data_dir.to_owned()) };
    let asked = tokio::time::timeout(QUERY_TIMEOUT, async {
        let link = DaemonClient::discover(&target)?;
        let document = link.get_text(&["openapi.json"]).await?;
        let unready = match link.get_text(&["readyz"]).await {
            Err(ClientError::Refused(problem)) => Some(problem.detail.unwrap_or(problem.title)),
            Err(error) => return Err(error),
            Ok(_) => None,
        };
        Ok((document, link.get_text(&["metrics"]).await?, unready))
    });
    let (document, metrics, unready) = match asked.await {
        Ok(Ok(answers)) => answers,
        Ok(Err(ClientError::BadToken { .. } | ClientError::NoToken { .. })) => return Err(DaemonQueryError::BadToken),
        Ok(Err(error)) => return Err(DaemonQueryError::NoAnswer(error.to_string())),
        Err(_elapsed) => return Err(DaemonQueryError::NoAnswer(format!("nothing within {QUERY_TIMEOUT:?}"))),
    };
    let document: Option<Value> = serde_json::from_str(&document).ok();
    let version = document.and_then(|document| document.pointer("/info/version")?.as_str().map(str::to_owned));
    let version = version.ok_or_else(|| DaemonQueryError::NoAnswer("something else answers there".to_owned()))?;
    Ok(DaemonReadiness { version, unready, is_stale: metrics.lines().any(|line| line == STALE_METRIC_LINE) })
}

/// No daemon runs: checks whether one could listen.
pub(super) fn check_listen_address(listen: SocketAddr) -> DoctorFinding {
    match TcpListener::bind(listen) {
        Ok(_) => DoctorFinding::ok(format!("none runs; {listen} is free for one (`quell serve`)")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => DoctorFinding::fail(
            format!("none runs on this data directory, and {listen} is taken by another program"),
            "quell serve --listen 127.0.0.1:0 takes a free port; listen in [server] sets one for good",
        ),
        Err(error) => DoctorFinding::fail(
            format!("a daemon cannot listen on {listen}: {error}"),
            "set listen in [server] to an address of this machine, such as 127.0.0.1:7171",
        ),
    }
}

/// The server speaks plain HTTP.
pub(super) fn check_exposure(listen: SocketAddr) -> Option<DoctorFinding> {
    (!listen.ip().is_loopback()).then(|| {
        DoctorFinding::warn(
            format!("{listen} is open to other machines, and tokens and messages travel there in the clear"),
            "listen on 127.0.0.1 and put a proxy with TLS in front",
        )
    })
}
