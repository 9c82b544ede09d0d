//! What is left over, counted by the operating system: processes, descriptors, sockets, memory, and the tasks of a runtime.
//!
//! Nothing here asks Quell. The system sends no event when the last of something is gone, so [`settled`] is the one place
//! that looks again and again.

mod baseline;
mod proc_fs;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

pub use baseline::{Allowance, Baseline, Tasks};
pub(crate) use proc_fs::is_marked;
pub use proc_fs::{
    Descriptors, Process, SocketRow, TcpState, children_of, descendants_of, descriptors_of, group_of, marked, marks,
    process, rss_bytes, sockets_of, tcp_sockets, threads_of, with_environment,
};

/// Pause between two looks at the system.
const PAUSE: Duration = Duration::from_millis(2);

/// Looks until `probe` is content, and returns how long that took. It looks from a thread of its own, so that it neither
/// blocks the caller's runtime nor obeys a clock that a test holds still.
///
/// # Cancel safety
/// Safe: the looking ends when the caller is gone.
///
/// # Panics
/// When `probe` is still not content after `limit`, with what it said last.
pub async fn settled(limit: Duration, mut probe: impl FnMut() -> Result<(), String> + Send + 'static) -> Duration {
    let (done, verdict) = oneshot::channel();
    let looking = move || {
        let begin = Instant::now();
        loop {
            let seen = probe();
            let over = seen.is_ok() || begin.elapsed() > limit;
            if over || done.is_closed() {
                // Nobody receives when the caller is gone, and then nobody needs to.
                let _ = done.send(seen.map(|()| begin.elapsed()));
                return;
            }
            std::thread::sleep(PAUSE);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("leak-check".into()).spawn(looking) {
        panic!("no thread for looking at the system: {error}");
    }
    match verdict.await {
        Ok(Ok(took)) => took,
        Ok(Err(why)) => panic!("not settled after {limit:?}: {why}"),
        Err(_) => panic!("the probe panicked"),
    }
}

/// Waits until no process carries this exact environment entry, such as `QUELL_RUN_ID=...`.
///
/// # Cancel safety
/// Safe: it only looks.
///
/// # Panics
/// When some are left after `limit`, with what they are.
pub async fn no_process_with(entry: &str, limit: Duration) -> Duration {
    let entry = entry.to_owned();
    settled(limit, move || none_left(&with_environment(&entry), &entry)).await
}

/// Waits until no process carries this marker in its environment or its arguments.
///
/// # Cancel safety
/// Safe: it only looks.
///
/// # Panics
/// When some are left after `limit`, with what they are.
pub async fn no_process_marked(marker: &str, limit: Duration) -> Duration {
    let marker = marker.to_owned();
    settled(limit, move || none_left(&marked(&marker), &marker)).await
}

fn none_left(found: &[Process], what: &str) -> Result<(), String> {
    if found.is_empty() { Ok(()) } else { Err(format!("{} processes with {what}: {found:#?}", found.len())) }
}
