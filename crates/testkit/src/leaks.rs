//! Count what is left over by asking the operating system: processes, descriptors, sockets, memory, and the tasks of a
//! runtime.
//!
//! Nothing here asks Quell. The system sends no event when the last resource is gone, so [`wait_until`] polls, and only
//! here.

mod baseline;
mod proc_fs;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::WAIT_TIMEOUT;
use crate::or_fail::OrFail as _;

pub use baseline::{LeakAllowance, ResourceBaseline, TaskBaseline};
pub use proc_fs::{
    DescriptorCounts, ObservedProcess, anonymous_bytes, children_of, count_descriptors, descendants_of,
    processes_by_marker, processes_with_env, processes_with_marker, read_process, rss_bytes, threads_of,
};
pub(crate) use proc_fs::{count_connecting, group_members, has_marker};

const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Polls `probe` until it succeeds; returns how long that took. It polls in its own thread, so that it does not block
/// the caller's runtime and ignores a paused clock.
///
/// # Panics
/// When `probe` still fails after `limit`, with its last error.
pub async fn wait_until(limit: Duration, mut probe: impl FnMut() -> Result<(), String> + Send + 'static) -> Duration {
    let (done, verdict) = oneshot::channel();
    let looking = move || {
        let begin = Instant::now();
        loop {
            let seen = probe();
            let over = seen.is_ok() || begin.elapsed() > limit;
            if over || done.is_closed() {
                // Nobody receives when the caller was dropped.
                let _ = done.send(seen.map(|()| begin.elapsed()));
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    };
    std::thread::Builder::new().name("leak-check".into()).spawn(looking).or_fail("no thread for looking at the system");
    match verdict.await.or_fail("the probe panicked") {
        Ok(took) => took,
        Err(why) => panic!("not settled after {limit:?}: {why}"),
    }
}

/// Waits until `probe` returns this value; `what` names it in the failure.
pub async fn wait_for_value<T: PartialEq + Debug + Send + 'static>(
    what: &'static str,
    wanted: T,
    mut probe: impl FnMut() -> T + Send + 'static,
) {
    wait_until(WAIT_TIMEOUT, move || match probe() {
        value if value == wanted => Ok(()),
        value => Err(format!("{what}: {value:?}, not {wanted:?}")),
    })
    .await;
}

/// Waits until this is true; `what` names it in the failure.
pub async fn wait_for_true(what: &'static str, probe: impl FnMut() -> bool + Send + 'static) {
    wait_for_value(what, true, probe).await;
}

/// Waits until no process has this exact environment entry, such as `QUELL_RUN_ID=...`.
pub async fn wait_no_process_with_env(entry: &str, limit: Duration) -> Duration {
    let entry = entry.to_owned();
    wait_until(limit, move || expect_none(&processes_with_env(&entry), &entry)).await
}

/// Waits until no process has this marker in its environment or arguments.
pub async fn wait_no_process_with_marker(marker: &str, limit: Duration) -> Duration {
    let marker = marker.to_owned();
    wait_until(limit, move || expect_none(&processes_with_marker(&marker), &marker)).await
}

fn expect_none(found: &[ObservedProcess], what: &str) -> Result<(), String> {
    if found.is_empty() { Ok(()) } else { Err(format!("{} processes with {what}: {found:#?}", found.len())) }
}
