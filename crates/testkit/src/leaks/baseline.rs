//! Resources of a process at one moment, to compare with later.

use std::time::Duration;

use tokio::runtime::Handle;

use super::proc_fs::{DescriptorCounts, children_of, count_descriptors, threads_of};
use super::wait_until;

/// Growth that is no leak, for example of a pool or a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeakAllowance {
    /// Sockets, such as kept-alive connections.
    pub sockets: usize,
    /// Descriptors of any other kind.
    pub other_descriptors: usize,
    /// Threads, such as those of a pool that grows on use.
    pub threads: u64,
}

#[derive(Debug, Clone)]
pub struct ResourceBaseline {
    pid: u32,
    descriptors: DescriptorCounts,
    threads: u64,
    children: Vec<u32>,
}

impl ResourceBaseline {
    /// Records the resources of a process. For the test's own process this is useful only if no other test runs in it.
    pub fn capture(pid: u32) -> Self {
        match (count_descriptors(pid), threads_of(pid)) {
            (Ok(descriptors), Some(threads)) => {
                let children = children_of(pid).into_iter().map(|child| child.pid).collect();
                Self { pid, descriptors, threads, children }
            }
            (Err(error), _) => panic!("cannot look into process {pid}: {error}"),
            (_, None) => panic!("process {pid} is gone"),
        }
    }

    /// Waits until the process holds no more than at that moment and the allowance; returns how long that took.
    pub async fn assert_restored(&self, allowance: LeakAllowance, limit: Duration) -> Duration {
        let baseline = self.clone();
        // The polling itself takes one thread if the process checks itself.
        let probe_threads = u64::from(self.pid == std::process::id());
        wait_until(limit, move || {
            let excess = baseline.excess(allowance, probe_threads);
            if excess.is_empty() { Ok(()) } else { Err(excess.join("; ")) }
        })
        .await
    }

    fn excess(&self, allowance: LeakAllowance, probe_threads: u64) -> Vec<String> {
        let mut excess = Vec::new();
        let Ok(now) = count_descriptors(self.pid) else { return vec![format!("process {} is gone", self.pid)] };
        let (then, others) = (self.descriptors, allowance.other_descriptors);
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
        if threads > self.threads + allowance.threads + probe_threads {
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

/// Number of live tasks of a runtime at one moment. Other runtimes of the same process do not count.
#[derive(Debug, Clone)]
pub struct TaskBaseline {
    runtime: Handle,
    alive: usize,
}

impl TaskBaseline {
    /// Records the tasks of the caller's runtime.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn capture() -> Self {
        let runtime = Handle::current();
        let alive = runtime.metrics().num_alive_tasks();
        Self { runtime, alive }
    }

    /// Waits until no more tasks are alive than at that moment; returns how long that took.
    pub async fn assert_restored(&self, limit: Duration) -> Duration {
        let then = self.clone();
        wait_until(limit, move || {
            let alive = then.runtime.metrics().num_alive_tasks();
            if alive <= then.alive { Ok(()) } else { Err(format!("{alive} tasks alive, {} before", then.alive)) }
        })
        .await
    }
}
