//! Work without a process that goes on when its run is over: it ends by itself, or with whatever stop covers its run or session.

use std::sync::Arc;

use quell_protocol::ResourceKind;
use tokio::sync::watch;

use super::{Background, Owner};
use crate::scope::{Held, Scope, StopLevel};

/// Tasks of one engine that are not over; who would be one more is not begun.
const MOST: usize = 256;

/// One such task.
pub struct BackgroundTask {
    /// Whose it is.
    pub owner: Owner,
    /// What it does, for people.
    pub label: String,
    scope: Scope,
    over: watch::Sender<bool>,
}

/// A task as it is held by who works on it: dropped, it is over.
pub struct TaskAtWork {
    background: Background,
    number: u64,
    task: Arc<BackgroundTask>,
    held: Option<Held>,
}

/// There are as many as there may be, or the daemon closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// Too many.
    #[error("{MOST} tasks are at work in the background, which is the limit")]
    TooMany,
    /// The daemon closes.
    #[error("the daemon is shutting down")]
    Closing,
}

impl Background {
    /// Takes in a task. From now on the ledger of `run` holds it, and a stop of the run ends it, also one that came a moment ago.
    ///
    /// # Errors
    /// [`NotTaken`]; nothing is held then.
    pub fn take_task(&self, owner: Owner, label: &str, run: &Scope) -> Result<TaskAtWork, NotTaken> {
        let task = Arc::new(BackgroundTask {
            owner,
            label: label.to_owned(),
            scope: run.beside(),
            over: watch::Sender::new(false),
        });
        let mut table = self.table();
        if table.closed {
            return Err(NotTaken::Closing);
        }
        if table.tasks.len() >= MOST {
            return Err(NotTaken::TooMany);
        }
        table.last += 1;
        let number = table.last;
        table.tasks.insert(number, Arc::clone(&task));
        drop(table);
        let told = Arc::clone(&task);
        let held = run.hold(ResourceKind::Task, label).in_background().on_stop(move |level| told.end(level));
        Ok(TaskAtWork { background: self.clone(), number, task, held: Some(held) })
    }

    /// Tells every task that is covered to end. Synchronous. Answers them.
    pub fn end_tasks(&self, level: StopLevel, covers: impl Fn(&Owner) -> bool) -> Vec<Arc<BackgroundTask>> {
        let covered: Vec<Arc<BackgroundTask>> =
            self.table().tasks.values().filter(|task| covers(&task.owner)).cloned().collect();
        covered.iter().for_each(|task| task.end(level));
        covered
    }
}

impl BackgroundTask {
    /// Tells it to end, at once and without waiting.
    fn end(&self, level: StopLevel) {
        match level {
            StopLevel::Gentle => self.scope.cancel(),
            StopLevel::Forced => self.scope.kill(),
        }
    }

    /// True until all that it held is back.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        !*self.over.borrow()
    }

    /// Waits until it is over.
    ///
    /// # Cancel safety
    /// Safe: it waits for a condition.
    pub async fn ended(&self) {
        // waits: bounded by who stops it. The sender lives in self, so waiting cannot fail.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }
}

impl TaskAtWork {
    /// What its work races.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.task.scope
    }

    /// It is over, in this way.
    ///
    /// # Cancel safety
    /// Dropped, it is over all the same; what its scope held is given back by its own tasks.
    pub async fn close(mut self, how: &'static str) {
        // waits: for what the cancel has dropped, which ends by itself.
        let _released = self.task.scope.close().await;
        if let Some(held) = self.held.take() {
            held.release(how);
        }
    }
}

impl Drop for TaskAtWork {
    fn drop(&mut self) {
        drop(self.held.take());
        self.background.table().tasks.remove(&self.number);
        self.task.over.send_replace(true);
        if let Some(ended) = self.background.0.ended.get() {
            ended(&self.task.owner.run);
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

    use super::*;
    use crate::cell::Hub;
    use crate::clock::Clock;
    use crate::scope::Probe;

    fn background() -> (Background, Scope, Owner) {
        let clock = Clock::start();
        let owner = Owner {
            session: SessionKey::parse("s").unwrap(),
            run: RunId::parse("r").unwrap(),
            principal: Principal::parse("alice").unwrap(),
        };
        (Background::new(clock, Hub::default(), 1), Scope::new(clock, Probe::default()), owner)
    }

    #[test]
    fn there_are_no_more_than_may_be_and_none_when_the_daemon_closes() {
        let (background, run, owner) = background();
        let take = || background.take_task(owner.clone(), "a task", &run);
        let mut tasks: Vec<TaskAtWork> = (0..MOST).map(|_| take().unwrap()).collect();
        assert_eq!(take().err(), Some(NotTaken::TooMany));
        tasks.pop();
        assert!(take().is_ok() && background.has_of_run(&owner.run));
        drop(tasks);
        assert!(!background.has_of_run(&owner.run));
        background.close();
        assert_eq!(take().err(), Some(NotTaken::Closing));
    }

    /// The run was stopped a moment before it.
    #[tokio::test]
    async fn a_task_of_a_run_that_is_stopped_is_stopped_at_once_and_dropped_it_is_over() {
        let (background, run, owner) = background();
        run.cancel();
        let task = background.take_task(owner.clone(), "a task", &run).unwrap();
        assert!(task.scope().is_cancelled());
        let [known] = &background.end_tasks(StopLevel::Gentle, |_| true)[..] else { panic!("one task") };
        assert!(known.is_at_work());
        drop(task);
        known.ended().await;
        run.close().await;
        assert!(background.end_tasks(StopLevel::Gentle, |_| true).is_empty());
    }
}
