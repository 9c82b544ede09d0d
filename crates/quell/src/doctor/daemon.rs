//! Whether a daemon runs here and answers, or whether one could start.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use quell_engine::store::Holder;
use reqwest::{Client, Response, StatusCode};
use serde_json::Value;

use super::Setup;
use super::finding::Finding;
use crate::daemon::ADDRESS_FILE;

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
    let file = setup.data_dir.join(ADDRESS_FILE);
    let Ok(address) = std::fs::read_to_string(&file) else {
        return Finding::warn(
            format!("{process} uses the data directory, but has not said where it listens"),
            "it is starting or closing; look again in a moment",
        );
    };
    let address = address.trim();
    let token = std::fs::read_to_string(setup.loaded.token_file(setup.data_dir)).unwrap_or_default();
    match setup.runtime.block_on(version(address, token.trim())) {
        Ok(version) if version == env!("CARGO_PKG_VERSION") => {
            Finding::ok(format!("{process} answers on http://{address}, version {version}"))
        }
        Ok(version) => Finding::warn(
            format!("{process} on http://{address} is version {version}, this is {}", env!("CARGO_PKG_VERSION")),
            "restart the daemon with this version",
        ),
        Err(Trouble::Token) => Finding::fail(
            format!("{process} on http://{address} refuses the token in the data directory"),
            "restart the daemon; it takes the token that is in the file when it starts",
        ),
        Err(Trouble::Silent(cause)) => Finding::fail(
            format!("{process} uses the data directory but does not answer on http://{address}: {cause}"),
            "look at its log; if it hangs, end it and start it again",
        ),
    }
}

enum Trouble {
    Token,
    Silent(String),
}

/// The version that the daemon at this address says it is.
async fn version(address: &str, token: &str) -> Result<String, Trouble> {
    let asked = tokio::time::timeout(PATIENCE, ask(address, token)).await;
    let response = match asked {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => return Err(Trouble::Silent(cause(&error))),
        Err(_elapsed) => return Err(Trouble::Silent(format!("nothing within {PATIENCE:?}"))),
    };
    match response.status() {
        StatusCode::UNAUTHORIZED => Err(Trouble::Token),
        StatusCode::OK => match response.json::<Value>().await {
            Ok(document) => {
                let version = document.pointer("/info/version").and_then(Value::as_str);
                version.map(str::to_owned).ok_or_else(|| Trouble::Silent("something else answers there".to_owned()))
            }
            Err(error) => Err(Trouble::Silent(cause(&error))),
        },
        other => Err(Trouble::Silent(format!("it answers {other}"))),
    }
}

async fn ask(address: &str, token: &str) -> reqwest::Result<Response> {
    // The daemon is on this machine: no proxy, and no certificates to load.
    let client = Client::builder().no_proxy().tls_certs_only([]).build()?;
    client.get(format!("http://{address}/openapi.json")).bearer_auth(token).send().await
}

fn cause(error: &reqwest::Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.last().map_or_else(|| error.to_string(), ToString::to_string)
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
