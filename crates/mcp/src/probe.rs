//! Check for `quell doctor` whether a configured server starts and lists its tools; ask it for a person.

use std::path::Path;
use std::time::Duration;

use quell_protocol::{RunId, SessionKey};
use tokio::time::Instant;

use super::instance::McpConnection;
use super::{InstanceShutdown, InstanceState, Mcp, McpClientOptions};

/// How long a probed server may take to end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpServerHealth {
    /// The server is ready and offers this many tools.
    Works(usize),
    Broken {
        why: String,
        /// The end of the standard error output.
        stderr_tail: String,
        /// What to do about it, if that is known.
        remedy: Option<String>,
    },
}

impl McpServerHealth {
    /// A server that could not be asked, for this reason.
    pub(super) fn unavailable(why: String) -> Self {
        Self::Broken { why, stderr_tail: String::new(), remedy: None }
    }
}

/// Starts a configured server in `workdir`, lists its tools, and ends it.
///
/// # Cancel safety
/// If it is dropped, the server runs until the end of this process; its warden ends it then.
pub async fn probe(mcp: &Mcp, server: &str, workdir: &Path) -> McpServerHealth {
    // waits: for a diagnosis by a person; no run waits here.
    match with_server(mcp, server, workdir, async |connection| connection.tools().len()).await {
        Ok(tools) => McpServerHealth::Works(tools),
        Err(broken) => broken,
    }
}

/// Starts a configured server in `workdir`, does some work with its connection, and ends it.
pub(super) async fn with_server<T>(
    mcp: &Mcp,
    server: &str,
    workdir: &Path,
    work: impl AsyncFnOnce(&McpConnection) -> T,
) -> Result<T, McpServerHealth> {
    let (Some(server), Ok(session), Ok(run)) =
        (mcp.0.servers.get(server), SessionKey::parse("doctor"), RunId::parse("doctor"))
    else {
        return Err(McpServerHealth::unavailable("it is not configured".to_owned()));
    };
    let options = McpClientOptions {
        run,
        session,
        workdir: workdir.to_path_buf(),
        sandbox: None,
        network: None,
        allowed_servers: None,
        endpoint: None,
        allowed_tools: vec!["*".to_owned()],
    };
    let lease = mcp.0.acquire(server, &options).map_err(McpServerHealth::unavailable)?;
    // waits: for a person's command, within the start timeout of the server; no run waits here.
    let done = match lease.instance().wait_started().await {
        // waits: for the same person.
        Ok(connection) => Ok(work(&connection).await),
        Err(end) => Err(McpServerHealth::Broken {
            why: end.cause.clone(),
            stderr_tail: end.stderr_tail.clone(),
            remedy: end.remedy.clone(),
        }),
    };
    let instance = std::sync::Arc::clone(lease.instance());
    instance.request_shutdown(InstanceShutdown::Drain);
    drop(lease);
    // waits: at most `CLOSE_TIMEOUT`.
    let waited = tokio::time::timeout_at(Instant::now() + CLOSE_TIMEOUT, instance.wait_ended()).await;
    if waited.is_err() && !matches!(instance.state(), InstanceState::Ended(_)) {
        instance.request_shutdown(InstanceShutdown::Kill);
        // waits: for the end of the killed process.
        instance.wait_ended().await;
    }
    done
}
