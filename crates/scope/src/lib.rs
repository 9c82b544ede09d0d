//! The cancellation scope of a run: one token, every task, and the ledger of what the run holds.
//!
//! A scope is closed, not dropped: [`Scope::close`] waits until every task has ended and every [`Held`] resource is
//! released. Only it creates a [`Released`], so that no code can claim the release while work is active. The scope
//! knows no runs, models or processes; each held resource registers how to end it.

pub mod clock;
mod ledger;
mod point;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_protocol::ResourceKind;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
pub use ledger::{Held, Ledger, LedgerRow, Release, RowState};
pub use point::{Point, PointProbe};
pub use quell_kernel::StopLevel;

/// The scope was cancelled. Not an error but an outcome, which is returned up to the task of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;

/// Why an operation that a scope can cancel gave no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interrupted<E> {
    /// The scope was cancelled. The caller returns this up to the task of the run.
    Cancelled,
    Failed(E),
}

impl<E> From<Cancelled> for Interrupted<E> {
    fn from(Cancelled: Cancelled) -> Self {
        Self::Cancelled
    }
}

impl<E> Interrupted<E> {
    pub fn map<F>(self, convert: impl FnOnce(E) -> F) -> Interrupted<F> {
        match self {
            Self::Cancelled => Interrupted::Cancelled,
            Self::Failed(error) => Interrupted::Failed(convert(error)),
        }
    }

    /// The failure, or `error` after a cancel.
    pub fn failure_or(self, error: E) -> E {
        match self {
            Self::Cancelled => error,
            Self::Failed(failure) => failure,
        }
    }

    /// Separates a failure, which the caller handles, from a cancel, which it returns with `?`.
    pub fn into_failure(self) -> Result<E, Cancelled> {
        match self {
            Self::Cancelled => Err(Cancelled),
            Self::Failed(error) => Ok(error),
        }
    }
}

/// Proof that a scope is closed: every task has ended, and every held resource is released.
#[derive(Debug)]
pub struct Released(());

/// The scope of one run. Clones share one scope.
#[derive(Debug, Clone)]
pub struct Scope(Arc<ScopeInner>);

#[derive(Debug)]
struct ScopeInner {
    token: CancellationToken,
    forced_token: CancellationToken,
    tasks: TaskTracker,
    ledger: Ledger,
    probe: PointProbe,
}

impl Scope {
    /// Creates an open scope that holds nothing.
    pub fn new(clock: Clock, probe: PointProbe) -> Self {
        Self(Arc::new(ScopeInner {
            token: CancellationToken::new(),
            forced_token: CancellationToken::new(),
            tasks: TaskTracker::new(),
            ledger: Ledger::new(clock),
            probe,
        }))
    }

    /// Creates another empty scope, for work that outlives this one.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self::new(self.0.ledger.clock(), self.0.probe.clone())
    }

    /// Runs `work` until it is done or the scope is cancelled; then `work` is dropped. A cancel wins over a result that
    /// is ready at the same time.
    ///
    /// # Cancel safety
    /// As safe as `work`, which is dropped on a cancel. For work that must not be dropped half-way, use
    /// [`Scope::check`].
    pub async fn race<F: Future>(&self, point: Point, work: F) -> Result<F::Output, Cancelled> {
        self.check(point)?;
        tokio::select! {
            biased;
            () = self.0.token.cancelled() => Err(Cancelled),
            output = work => Ok(output),
        }
    }

    /// Fails if the scope is cancelled.
    pub fn check(&self, point: Point) -> Result<(), Cancelled> {
        self.0.probe.reached(point);
        if self.0.token.is_cancelled() { Err(Cancelled) } else { Ok(()) }
    }

    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.token.is_cancelled()
    }

    /// Waits for the cancel.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn cancelled(&self) {
        self.0.token.cancelled().await;
    }

    /// Waits until the scope is forced.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn forced(&self) {
        self.0.forced_token.cancelled().await;
    }

    /// Starts a task that [`Scope::close`] waits for. It is not cancelled by itself: race inside it. The future is
    /// boxed, so that the runtime's code for tasks is compiled once for each output and not for each future.
    pub fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let task: Pin<Box<dyn Future<Output = F::Output> + Send>> = Box::pin(task);
        #[expect(clippy::disallowed_methods, reason = "the only place that spawns a run's tasks; all are tracked")]
        tokio::spawn(self.0.tasks.track_future(task))
    }

    /// Runs blocking work on a thread. The work gets a flag that turns true at the cancel, and must check it often. The
    /// ledger holds the work until it has really returned, even if the caller was dropped. A cancel does not end the
    /// wait, because only the returned result is correct; force does.
    ///
    /// # Errors
    /// [`Cancelled`] if the scope was cancelled before the work began, or was forced before it returned.
    ///
    /// # Cancel safety
    /// Safe: the flag is raised and the scope keeps waiting for the thread.
    pub async fn blocking<T, F>(&self, point: Point, label: &str, work: F) -> Result<T, Cancelled>
    where
        T: Send + 'static,
        F: FnOnce(&AtomicBool) -> T + Send + 'static,
    {
        self.check(point)?;
        let stop_flag = Arc::new(AtomicBool::new(false));
        // Dropping the caller without a cancel raises the flag, too.
        let _raise_on_drop = RaiseOnDrop(Arc::clone(&stop_flag));
        let raised_flag = Arc::clone(&stop_flag);
        let held = self.hold(ResourceKind::Task, label).on_stop(move |_| raised_flag.store(true, Ordering::Relaxed));
        #[expect(clippy::disallowed_methods, reason = "the only place that starts blocking work; it is tracked")]
        let handle = self.0.tasks.spawn_blocking(move || {
            let output = catch_unwind(AssertUnwindSafe(|| work(&stop_flag)));
            held.release(match &output {
                Err(_) => Release::Failed,
                Ok(_) if stop_flag.load(Ordering::Relaxed) => Release::Cancelled,
                Ok(_) => Release::Finished,
            });
            output.unwrap_or_else(|panic| resume_unwind(panic))
        });
        self.0.probe.reached(point);
        let outcome = tokio::select! {
            biased;
            // The ledger holds the work, and its flag is raised: it is not waited for here.
            () = self.forced() => return Err(Cancelled),
            outcome = handle => outcome,
        };
        match outcome {
            Ok(output) => Ok(output),
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(_) => Err(Cancelled),
        }
    }

    /// Adds a resource to the ledger. If the scope is already cancelled, a resource with a stop callback
    /// ([`Held::on_stop`]) is told to end at once.
    pub fn hold(&self, kind: ResourceKind, label: impl Into<String>) -> Held {
        self.0.ledger.open_entry(kind, label.into())
    }

    /// Cancels: tasks drop their raced futures, held resources are told to end. Synchronous and idempotent.
    pub fn cancel(&self) {
        self.stop(StopLevel::Gentle);
    }

    /// Forces: everything that can be killed is killed. Synchronous and idempotent.
    pub fn kill(&self) {
        self.stop(StopLevel::Forced);
    }

    /// Cancels or forces. Returns true for the first stop of the scope.
    pub fn stop(&self, level: StopLevel) -> bool {
        self.0.token.cancel();
        let is_first = self.0.ledger.notify_stop(level);
        if level == StopLevel::Forced {
            self.0.forced_token.cancel();
        }
        is_first
    }

    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// Waits until every task has ended and every held resource is released.
    ///
    /// # Cancel safety
    /// Safe: it waits for conditions; it can be called again.
    pub async fn close(&self) -> Released {
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.0.ledger.wait_empty().await;
        Released(())
    }
}

struct RaiseOnDrop(Arc<AtomicBool>);

impl Drop for RaiseOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn blocking_work_that_panicked_is_failed_in_the_ledger_and_panics_its_caller() {
        let scope = Scope::new(Clock::start(), PointProbe::default());
        let work = scope.blocking(Point::Blocking, "broken", |_| panic!("as the test wants"));
        let caught = futures_util::FutureExt::catch_unwind(AssertUnwindSafe(work)).await;
        assert!(caught.is_err_and(|panic| *panic.downcast_ref::<&str>().unwrap() == "as the test wants"));
        scope.close().await;
        let rows = scope.ledger().rows();
        assert_eq!(rows.iter().map(LedgerRow::release).collect::<Vec<_>>(), [Some(Release::Failed)]);
    }
}
