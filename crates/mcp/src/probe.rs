//! Check for `quell doctor` whether a configured server starts and lists its tools.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::browse::person_options;
use super::{InstanceShutdown, InstanceState, Mcp};

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
    fn unavailable(why: String) -> Self {
        Self::Broken { why, stderr_tail: String::new(), remedy: None }
    }
}

/// Starts a configured server in `workdir`, lists its tools, and ends it.
///
/// # Cancel safety
/// If it is dropped, the server runs until the end of this process; its warden ends it then.
pub async fn probe(mcp: &Mcp, server: &str, workdir: &Path) -> McpServerHealth {
    let (Some(server), Ok(options)) = (mcp.0.servers.get(server), person_options(workdir)) else {
        return McpServerHealth::unavailable("it is not configured".to_owned());
    };
    let lease = match mcp.0.acquire(server, &options) {
        Ok(lease) => lease,
        Err(why) => return McpServerHealth::unavailable(why),
    };
    // waits: for a person's command, within the start timeout of the server; no run waits here.
    let health = match lease.instance().wait_started().await {
        Ok(connection) => McpServerHealth::Works(connection.tools().len()),
        Err(end) => McpServerHealth::Broken {
            why: end.cause.clone(),
            stderr_tail: end.stderr_tail.clone(),
            remedy: end.remedy.clone(),
        },
    };
    let instance = Arc::clone(lease.instance());
    instance.request_shutdown(InstanceShutdown::Drain);
    drop(lease);
    // waits: at most `CLOSE_TIMEOUT`.
    let waited = timeout_at(Instant::now() + CLOSE_TIMEOUT, instance.wait_ended()).await;
    if waited.is_err() && !matches!(instance.state(), InstanceState::Ended(_)) {
        instance.request_shutdown(InstanceShutdown::Kill);
        // waits: for the end of the killed process.
        instance.wait_ended().await;
    }
    health
}
