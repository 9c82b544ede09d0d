//! What a process held at one moment, to be compared with what it holds later.

use std::time::Duration;

use tokio::runtime::Handle;

use super::proc_fs::{Descriptors, children_of, descriptors_of, threads_of};
use super::settled;

/// What may be there more than before, where a pool or a cache is no leak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allowance {
    /// Sockets, such as kept-alive connections.
    pub sockets: usize,
    /// Descriptors of any other kind.
    pub others: usize,
    /// Threads, such as those of a pool that grows on use.
    pub threads: u64,
}

/// What a process held at one moment.
#[derive(Debug, Clone)]
pub struct Baseline {
    pid: u32,
    descriptors: Descriptors,
    threads: u64,
    children: Vec<u32>,
}

impl Baseline {
    /// What the process holds now. The test's own process says something only where no other test runs in it.
    ///
    /// # Panics
    /// When the process is gone or cannot be looked into.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        match (descriptors_of(pid), threads_of(pid)) {
            (Ok(descriptors), Some(threads)) => {
                let children = children_of(pid).into_iter().map(|child| child.pid).collect();
                Self { pid, descriptors, threads, children }
            }
            (Err(error), _) => panic!("cannot look into process {pid}: {error}"),
            (_, None) => panic!("process {pid} is gone"),
        }
    }

    /// Descriptors at that moment.
    #[must_use]
    pub fn descriptors(&self) -> Descriptors {
        self.descriptors
    }

    /// Waits until the process holds no more than at that moment, and returns how long that took.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it still holds more after `limit`, with what it is.
    pub async fn assert_back(&self, limit: Duration) -> Duration {
        self.assert_back_but_for(Allowance::default(), limit).await
    }

    /// As [`Self::assert_back`], with an allowance.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// As [`Self::assert_back`].
    pub async fn assert_back_but_for(&self, allowance: Allowance, limit: Duration) -> Duration {
        let baseline = self.clone();
        // The looking itself takes one thread where the process looks at itself.
        let looking = u64::from(self.pid == std::process::id());
        settled(limit, move || {
            let excess = baseline.excess(allowance, looking);
            if excess.is_empty() { Ok(()) } else { Err(excess.join("; ")) }
        })
        .await
    }

    fn excess(&self, allowance: Allowance, looking: u64) -> Vec<String> {
        let mut excess = Vec::new();
        let Ok(now) = descriptors_of(self.pid) else { return vec![format!("process {} is gone", self.pid)] };
        let (then, others) = (self.descriptors, allowance.others);
        let kinds = [
            ("sockets", then.sockets + allowance.sockets, now.sockets),
            ("pipes", then.pipes + others, now.pipes),
            ("files", then.files + others, now.files),
            ("process descriptors", then.pidfds + others, now.pidfds),
            ("anonymous descriptors", then.anonymous + others, now.anonymous),
        ];
        for (kind, allowed, held) in kinds {
            if held > allowed {
                excess.push(format!("{held} {kind}, at most {allowed} expected"));
            }
        }
        let threads = threads_of(self.pid).unwrap_or(0);
        if threads > self.threads + allowance.threads + looking {
            excess.push(format!("{threads} threads, {} before", self.threads));
        }
        for child in children_of(self.pid) {
            if !self.children.contains(&child.pid) {
                excess.push(format!("child {child:?}"));
            }
        }
        excess
    }
}

/// The living tasks of a runtime at one moment. Other runtimes of the same process do not count.
#[derive(Debug, Clone)]
pub struct Tasks {
    runtime: Handle,
    alive: usize,
}

impl Tasks {
    /// Those of the caller's runtime now.
    ///
    /// # Panics
    /// Outside a runtime.
    #[must_use]
    pub fn now() -> Self {
        let runtime = Handle::current();
        let alive = runtime.metrics().num_alive_tasks();
        Self { runtime, alive }
    }

    /// Waits until no more are alive than at that moment, and returns how long that took.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When more are still alive after `limit`.
    pub async fn assert_back(&self, limit: Duration) -> Duration {
        let then = self.clone();
        settled(limit, move || {
            let alive = then.runtime.metrics().num_alive_tasks();
            if alive <= then.alive { Ok(()) } else { Err(format!("{alive} tasks alive, {} before", then.alive)) }
        })
        .await
    }
}
