//! The cancellation scope of a run: one token, every task, and the ledger of what the run holds.
//!
//! A scope is closed, not dropped: [`Scope::close`] waits until every task has ended and every [`Held`] thing is back, and
//! only it makes a [`Released`], so that no code can claim release while work is alive. The scope knows no runs, no models,
//! no processes; what it holds tells it how to be ended.

mod ledger;
mod point;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_protocol::ResourceKind;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
pub use ledger::{Held, Ledger, Row, StopLevel};
pub use point::{Point, Probe};

/// The scope was cancelled. Not an error: an outcome that is handed up until the run's finaliser takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;

/// Proof that a scope is closed: every task ended, everything held is back.
#[derive(Debug)]
pub struct Released(());

/// The scope of one run. Clones are the same scope.
#[derive(Debug, Clone)]
pub struct Scope(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    token: CancellationToken,
    forced: CancellationToken,
    tasks: TaskTracker,
    ledger: Ledger,
    probe: Probe,
}

impl Scope {
    /// An open scope that holds nothing.
    #[must_use]
    pub fn new(clock: Clock, probe: Probe) -> Self {
        Self(Arc::new(Inner {
            token: CancellationToken::new(),
            forced: CancellationToken::new(),
            tasks: TaskTracker::new(),
            ledger: Ledger::new(clock),
            probe,
        }))
    }

    /// Another open scope that holds nothing, for what is to outlive this one.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self::new(self.0.ledger.clock(), self.0.probe.clone())
    }

    /// Runs `work` until it is done or the scope is cancelled; then `work` is dropped. A cancel wins over a result that is
    /// ready at the same time.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope was cancelled first.
    ///
    /// # Cancel safety
    /// As safe as `work`: that is the point. What must not be dropped half-way belongs under [`Scope::check`].
    pub async fn race<F: Future>(&self, point: Point, work: F) -> Result<F::Output, Cancelled> {
        self.check(point)?;
        tokio::select! {
            biased;
            () = self.0.token.cancelled() => Err(Cancelled),
            output = work => Ok(output),
        }
    }

    /// Passes unless the scope is cancelled.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope is cancelled.
    pub fn check(&self, point: Point) -> Result<(), Cancelled> {
        self.0.probe.reached(point);
        if self.0.token.is_cancelled() { Err(Cancelled) } else { Ok(()) }
    }

    /// True once cancelled.
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

    /// Waits for force.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn forced(&self) {
        self.0.forced.cancelled().await;
    }

    /// Starts a task that the scope waits for at its close. It is not cancelled by itself: race inside it.
    pub fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        #[expect(clippy::disallowed_methods, reason = "this is the one place where a run's tasks are born, tracked")]
        tokio::spawn(self.0.tasks.track_future(task))
    }

    /// Runs blocking work on a thread. It gets a flag that turns true at the cancel and must look at it often; the ledger
    /// holds the work until it has really returned, also when its caller was dropped. A cancel does not end the wait: what
    /// the work came to after all is the truth about it. Force does.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope was cancelled before the work began, or was forced before it returned.
    ///
    /// # Cancel safety
    /// Safe: the flag is raised and the scope keeps waiting for the thread.
    pub async fn blocking<T, F>(&self, point: Point, label: &str, work: F) -> Result<T, Cancelled>
    where
        T: Send + 'static,
        F: FnOnce(&AtomicBool) -> T + Send + 'static,
    {
        self.check(point)?;
        let stop = Arc::new(AtomicBool::new(false));
        // A caller that is dropped without a cancel raises the flag too.
        let _abandoned = Raise(Arc::clone(&stop));
        let raise = Arc::clone(&stop);
        let held = self.hold(ResourceKind::Task, label).on_stop(move |_| raise.store(true, Ordering::Relaxed));
        #[expect(clippy::disallowed_methods, reason = "this is the one place where blocking work is born, tracked")]
        let handle = self.0.tasks.spawn_blocking(move || {
            let output = catch_unwind(AssertUnwindSafe(|| work(&stop)));
            held.release(match &output {
                Err(_) => "failed",
                Ok(_) if stop.load(Ordering::Relaxed) => "cancelled",
                Ok(_) => "finished",
            });
            output.unwrap_or_else(|panic| resume_unwind(panic))
        });
        self.0.probe.reached(point);
        let outcome = tokio::select! {
            biased;
            // The work is held by the ledger, and told: it may be left alone.
            () = self.forced() => return Err(Cancelled),
            outcome = handle => outcome,
        };
        match outcome {
            Ok(output) => Ok(output),
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            Err(_) => Err(Cancelled),
        }
    }

    /// Notes in the ledger that the run holds something from now on. If the scope is already cancelled, the thing is told at
    /// once when it says how to be ended ([`Held::on_stop`]).
    pub fn hold(&self, kind: ResourceKind, label: impl Into<String>) -> Held {
        self.0.ledger.open(kind, label.into())
    }

    /// Cancels: raced futures are dropped by their tasks, held things are told to end. Synchronous and idempotent.
    pub fn cancel(&self) {
        self.0.token.cancel();
        self.0.ledger.stop(StopLevel::Gentle);
    }

    /// Forces: everything that can be killed is killed. Synchronous and idempotent.
    pub fn kill(&self) {
        self.0.token.cancel();
        self.0.ledger.stop(StopLevel::Forced);
        self.0.forced.cancel();
    }

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// Waits until every task has ended and everything held is back.
    ///
    /// # Cancel safety
    /// Safe: it waits for conditions; call it again.
    pub async fn close(&self) -> Released {
        self.0.tasks.close();
        self.0.tasks.wait().await;
        self.0.ledger.empty().await;
        Released(())
    }
}

/// Raises a flag when it is dropped.
struct Raise(Arc<AtomicBool>);

impl Drop for Raise {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn blocking_work_that_panicked_is_failed_in_the_ledger_and_panics_its_caller() {
        let scope = Scope::new(Clock::start(), Probe::default());
        let work = scope.blocking(Point::Blocking, "broken", |_| panic!("as the test wants"));
        let caught = futures_util::FutureExt::catch_unwind(AssertUnwindSafe(work)).await;
        assert!(caught.is_err_and(|panic| *panic.downcast_ref::<&str>().unwrap() == "as the test wants"));
        scope.close().await;
        let rows = scope.ledger().rows();
        assert_eq!(rows.iter().map(|row| row.how).collect::<Vec<_>>(), ["failed"]);
    }
}
