//! Background tasks without a process: registration, cancellation, and a guard that ends the task on drop.

use std::sync::Arc;

use quell_protocol::ResourceKind;
use quell_scope::{Held, Release, Scope, StopLevel};
use tokio::sync::watch;

use super::{BackgroundWork, RunIdentity, hold_scope};

/// The maximum number of unfinished tasks of one engine. One more is refused.
const MAX_TASKS: usize = 256;

/// Work without a process that goes on when its run is over. It ends by itself, or by a stop that covers its run or
/// session.
pub struct BackgroundTask {
    pub owner: RunIdentity,
    pub label: String,
    scope: Scope,
    is_over: watch::Sender<bool>,
}

/// The guard that the worker of a task holds. The task is over when it is dropped.
pub struct BackgroundTaskGuard {
    background: BackgroundWork,
    number: u64,
    task: Arc<BackgroundTask>,
    held: Option<Held>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BackgroundTaskError {
    #[error("{MAX_TASKS} tasks are at work in the background, which is the limit")]
    TooMany,
    #[error("the daemon is shutting down")]
    Closing,
}

impl BackgroundWork {
    /// Registers a task. From now on the ledger of `run` holds it, and a stop of the run ends it, even one that came
    /// before.
    ///
    /// # Errors
    /// [`BackgroundTaskError`]; nothing is held then.
    pub fn register_task(
        &self,
        owner: RunIdentity,
        label: &str,
        run: &Scope,
    ) -> Result<BackgroundTaskGuard, BackgroundTaskError> {
        let task = Arc::new(BackgroundTask {
            owner,
            label: label.to_owned(),
            scope: run.sibling(),
            is_over: watch::Sender::new(false),
        });
        let mut table = self.lock_table();
        if table.closed {
            return Err(BackgroundTaskError::Closing);
        }
        if table.tasks.len() >= MAX_TASKS {
            return Err(BackgroundTaskError::TooMany);
        }
        table.last_number += 1;
        let number = table.last_number;
        table.tasks.insert(number, Arc::clone(&task));
        drop(table);
        let held = hold_scope(run.hold(ResourceKind::Task, label), &task.scope);
        Ok(BackgroundTaskGuard { background: self.clone(), number, task, held: Some(held) })
    }
}

impl BackgroundTask {
    /// Tells the task to end, without waiting.
    pub(super) fn send_end(&self, level: StopLevel) {
        self.scope.stop(level);
    }

    /// True until everything that the task held is released.
    pub fn is_active(&self) -> bool {
        !*self.is_over.borrow()
    }

    /// Waits until the task is over.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn wait_ended(&self) {
        // waits: bounded by the caller, who stops it. The sender lives in `self`, so waiting cannot fail.
        let _ = self.is_over.subscribe().wait_for(|over| *over).await;
    }
}

impl BackgroundTaskGuard {
    /// The scope that the work of the task races.
    pub fn scope(&self) -> &Scope {
        &self.task.scope
    }

    /// Ends the task; `how` is recorded in the ledger of its run.
    ///
    /// # Cancel safety
    /// The task is over even if this is dropped; the tasks of its scope release what it held.
    pub async fn close(mut self, how: Release) {
        // waits: for futures that the cancel has dropped; they end by themselves.
        let _released = self.task.scope.close().await;
        if let Some(held) = self.held.take() {
            held.release(how);
        }
    }
}

impl Drop for BackgroundTaskGuard {
    fn drop(&mut self) {
        drop(self.held.take());
        self.background.lock_table().tasks.remove(&self.number);
        self.task.is_over.send_replace(true);
        if let Some(callback) = self.background.0.end_callback.get() {
            callback(&self.task.owner.run);
        }
    }
}

impl std::fmt::Debug for BackgroundTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BackgroundTask(of {})", self.owner.run)
    }
}

#[cfg(test)]
mod tests {
    use quell_protocol::{Principal, RunId, SessionKey};
    use quell_scope::PointProbe;
    use quell_scope::clock::Clock;

    use super::*;

    fn background() -> (BackgroundWork, Scope, RunIdentity) {
        let clock = Clock::start();
        let owner = RunIdentity {
            session: SessionKey::parse("s").unwrap(),
            run: RunId::parse("r").unwrap(),
            principal: Principal::parse("alice").unwrap(),
        };
        (BackgroundWork::new(clock, 1, |_| {}), Scope::new(clock, PointProbe::default()), owner)
    }

    #[test]
    fn there_are_no_more_than_may_be_and_none_when_the_daemon_closes() {
        let (background, run, owner) = background();
        let register = || background.register_task(owner.clone(), "a task", &run);
        let mut tasks: Vec<BackgroundTaskGuard> = (0..MAX_TASKS).map(|_| register().unwrap()).collect();
        assert_eq!(register().err(), Some(BackgroundTaskError::TooMany));
        tasks.pop();
        assert!(register().is_ok() && background.has_work_of_run(&owner.run));
        drop(tasks);
        assert!(!background.has_work_of_run(&owner.run));
        background.close();
        assert_eq!(register().err(), Some(BackgroundTaskError::Closing));
    }

    /// The run was stopped just before the task was registered.
    #[tokio::test]
    async fn a_task_of_a_run_that_is_stopped_is_stopped_at_once_and_dropped_it_is_over() {
        let (background, run, owner) = background();
        run.cancel();
        let task = background.register_task(owner.clone(), "a task", &run).unwrap();
        assert!(task.scope().is_cancelled());
        let [known] = &background.stop(StopLevel::Gentle, |_| true).tasks[..] else { panic!("one task") };
        assert!(known.is_active());
        drop(task);
        known.wait_ended().await;
        run.close().await;
        assert!(background.stop(StopLevel::Gentle, |_| true).tasks.is_empty());
    }
}
