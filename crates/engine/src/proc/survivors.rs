//! What is alive of a dead daemon's runs. Its wardens end everything once its pipe is closed; whoever starts next waits for
//! that, and what is alive after it is named.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::time::Duration;

use quell_protocol::RunId;
use tokio::time::{Instant, sleep};

use super::RUN_ID_VARIABLE;
use super::tree;

/// How long the wardens of a dead daemon may take. They kill at once; a busy machine takes some milliseconds for that.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Processes that carry the id of one of these runs and do not end, by name. What may not be looked into (somebody else's
/// processes) is not found.
///
/// # Cancel safety
/// Safe: it only looks.
pub async fn survivors(runs: &HashSet<&str>) -> BTreeMap<RunId, Vec<String>> {
    let until = Instant::now() + PATIENCE;
    loop {
        let found = look(runs);
        if found.is_empty() || Instant::now() >= until {
            return found;
        }
        sleep(PAUSE).await;
    }
}

fn look(runs: &HashSet<&str>) -> BTreeMap<RunId, Vec<String>> {
    let mut found = BTreeMap::<RunId, Vec<String>>::new();
    if runs.is_empty() {
        return found;
    }
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Some(run) = run_of(pid).filter(|run| runs.contains(run.as_str())) else { continue };
        let name =
            rustix::process::Pid::from_raw(pid).and_then(tree::stat).map_or_else(|| "?".to_owned(), |stat| stat.name);
        found.entry(run).or_default().push(format!("pid {pid} ({name}), outlived the daemon that started it"));
    }
    found
}

/// The run in whose name a process was started. A process that is over has no environment any more.
fn run_of(pid: i32) -> Option<RunId> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let id = environment
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(RUN_ID_VARIABLE.as_bytes())?.strip_prefix(b"="))?;
    RunId::parse(std::str::from_utf8(id).ok()?).ok()
}
