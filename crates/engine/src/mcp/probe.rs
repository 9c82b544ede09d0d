//! Whether a server starts and lists its tools. For a check by a person: no run waits for it.

use std::path::Path;
use std::time::Duration;

use quell_protocol::{RunId, SessionKey};
use tokio::time::Instant;

use super::{Mcp, State, Visitor};

/// For the end of a server that was only asked for its tools.
const FAREWELL: Duration = Duration::from_secs(2);

/// How a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It works and offers so many tools.
    Works(usize),
    /// It does not.
    Broken {
        /// Why.
        why: String,
        /// The end of what it printed on standard error.
        said: String,
        /// What to do about it, where that is known.
        remedy: Option<String>,
    },
}

/// Starts a configured server in `workdir`, asks for its tools, and ends it.
///
/// # Cancel safety
/// Dropping it leaves the server to the end of the process; wardens end it then.
pub async fn probe(mcp: &Mcp, server: &str, workdir: &Path) -> Health {
    let broken = |why: String| Health::Broken { why, said: String::new(), remedy: None };
    let (Some(server), Ok(session), Ok(run)) =
        (mcp.0.servers.get(server), SessionKey::parse("doctor"), RunId::parse("doctor"))
    else {
        return broken("it is not configured".to_owned());
    };
    let (servers, tools) = (None, vec!["*".to_owned()]);
    let visitor = Visitor { run, session, workdir: workdir.to_path_buf(), servers, endpoint: None, tools };
    let claim = match mcp.0.acquire(server, &visitor) {
        Ok(claim) => claim,
        Err(why) => return broken(why),
    };
    // waits: for a person, within the start time of the server; no run waits here.
    let health = match claim.slot().settled().await {
        Ok(link) => Health::Works(link.tools().len()),
        Err(over) => Health::Broken { why: over.cause.clone(), said: over.said.clone(), remedy: over.remedy.clone() },
    };
    let slot = std::sync::Arc::clone(claim.slot());
    slot.tell(super::Order::Close);
    drop(claim);
    // waits: no longer than `FAREWELL`.
    let waited = tokio::time::timeout_at(Instant::now() + FAREWELL, slot.over()).await;
    if waited.is_err() && !matches!(slot.state(), State::Over(_)) {
        slot.tell(super::Order::Kill);
        // waits: for the end of what was just killed.
        slot.over().await;
    }
    health
}
