//! Whether a daemon runs here and answers, or whether one could start.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use quell_client::{Link, LinkError, Target};
use quell_engine::store::Holder;
use quell_surfaces::serve::SOCKET_FILE;
use serde_json::Value;

use super::Setup;
use super::finding::Finding;
use crate::daemon::ADDRESS_FILE;

/// How a daemon says that it does not take its configuration file.
const STALE_LINE: &str = "quell_config_stale 1";
/// A daemon on this machine answers in a millisecond or is not well.
const PATIENCE: Duration = Duration::from_secs(3);

/// A running daemon answers and is of this version; without one, its port is free.
pub(super) fn daemon(setup: &Setup<'_>) -> Vec<Finding> {
    let holder = setup.inspection().as_ref().ok().and_then(|found| found.holder);
    let mut findings = vec![match holder {
        Some(holder) => running(setup, holder),
        None => startable(setup.loaded.config.server.listen),
    }];
    findings.extend(exposed(setup.loaded.config.server.listen));
    findings
}

fn running(setup: &Setup<'_>, holder: Holder) -> Finding {
    let process = holder.pid.map_or_else(|| "a daemon".to_owned(), |pid| format!("a daemon (pid {pid})"));
    let token = std::fs::read_to_string(setup.loaded.token_file(setup.data_dir)).unwrap_or_default();
    let place = match std::fs::read_to_string(setup.data_dir.join(ADDRESS_FILE)) {
        Ok(address) => format!("http://{}", address.trim()),
        // On a full disk it has not said where.
        Err(_) if setup.data_dir.join(SOCKET_FILE).exists() => SOCKET_FILE.to_owned(),
        Err(_) => {
            return Finding::warn(
                format!("{process} uses the data directory, but has not said where it listens"),
                "it is starting or closing; look again in a moment",
            );
        }
    };
    match setup.runtime.block_on(look(setup.data_dir, token.trim())) {
        Ok(Standing { unready: Some(why), .. }) => Finding::fail(
            format!("{process} answers on {place}, and it takes no runs: {why}"),
            "looks and stops work; make room on the disk, or end the program that locks the database: no restart is needed",
        ),
        Ok(Standing { is_stale: true, .. }) => Finding::warn(
            format!("{process} on {place} does not take its configuration file, and works with what it had before"),
            "correct the file; `quell config check` and the daemon's log say what is wrong with it",
        ),
        Ok(Standing { version, .. }) if version == env!("CARGO_PKG_VERSION") => {
            Finding::ok(format!("{process} answers on {place}, version {version}"))
        }
        Ok(Standing { version, .. }) => Finding::warn(
            format!("{process} on {place} is version {version}, this is {}", env!("CARGO_PKG_VERSION")),
            "restart the daemon with this version",
        ),
        Err(Trouble::Token) => Finding::fail(
            format!("{process} on {place} refuses the token in the data directory"),
            "restart the daemon; it takes the token that is in the file when it starts",
        ),
        Err(Trouble::Silent(cause)) => Finding::fail(
            format!("{process} uses the data directory but does not answer on {place}: {cause}"),
            "look at its log; if it hangs, end it and start it again",
        ),
    }
}

enum Trouble {
    Token,
    Silent(String),
}

/// What a daemon says of itself.
struct Standing {
    version: String,
    is_stale: bool,
    /// Why it takes no runs.
    unready: Option<String>,
}

/// Asks the daemon of this data directory, once it is known for the real one: before that no token is shown.
async fn look(data_dir: &Path, token: &str) -> Result<Standing, Trouble> {
    let target = Target { url: None, token: Some(token.to_owned()), data_dir: Some(data_dir.to_owned()) };
    let asked = tokio::time::timeout(PATIENCE, async {
        let link = Link::discover(&target)?;
        let document = link.text(&["openapi.json"]).await?;
        let unready = match link.text(&["readyz"]).await {
            Err(LinkError::Refused(problem)) => Some(problem.detail.unwrap_or(problem.title)),
            Err(error) => return Err(error),
            Ok(_) => None,
        };
        Ok((document, link.text(&["metrics"]).await?, unready))
    });
    let (document, metrics, unready) = match asked.await {
        Ok(Ok(answers)) => answers,
        Ok(Err(LinkError::BadToken { .. } | LinkError::NoToken { .. })) => return Err(Trouble::Token),
        Ok(Err(error)) => return Err(Trouble::Silent(error.to_string())),
        Err(_elapsed) => return Err(Trouble::Silent(format!("nothing within {PATIENCE:?}"))),
    };
    let document: Option<Value> = serde_json::from_str(&document).ok();
    let version = document.and_then(|document| document.pointer("/info/version")?.as_str().map(str::to_owned));
    let version = version.ok_or_else(|| Trouble::Silent("something else answers there".to_owned()))?;
    Ok(Standing { version, unready, is_stale: metrics.lines().any(|line| line == STALE_LINE) })
}

/// No daemon runs; could one listen?
pub(super) fn startable(listen: SocketAddr) -> Finding {
    match TcpListener::bind(listen) {
        Ok(_) => Finding::ok(format!("none runs; {listen} is free for one (`quell serve`)")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Finding::fail(
            format!("none runs on this data directory, and {listen} is taken by another program"),
            "quell serve --listen 127.0.0.1:0 takes a free port; listen in [server] sets one for good",
        ),
        Err(error) => Finding::fail(
            format!("a daemon cannot listen on {listen}: {error}"),
            "set listen in [server] to an address of this machine, such as 127.0.0.1:7171",
        ),
    }
}

/// The doors speak plain HTTP.
pub(super) fn exposed(listen: SocketAddr) -> Option<Finding> {
    (!listen.ip().is_loopback()).then(|| {
        Finding::warn(
            format!("{listen} is open to other machines, and tokens and messages travel there in the clear"),
            "listen on 127.0.0.1 and put a proxy with TLS in front",
        )
    })
}
