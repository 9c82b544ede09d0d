//! One lock for each workdir, so that changes of its files happen one after the other.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// The locks that are held or waited for.
#[derive(Debug, Default)]
pub struct WorkdirLocks(Mutex<HashMap<PathBuf, Weak<tokio::sync::Mutex<()>>>>);

/// Held while files of a workdir change. A drop gives it back.
#[derive(Debug)]
pub struct WorkdirGuard(#[expect(dead_code, reason = "it is held")] OwnedMutexGuard<()>);

impl WorkdirLocks {
    /// Waits until nothing else changes files of this workdir.
    ///
    /// # Cancel safety
    /// Safe: a dropped call waits no more.
    pub async fn lock(&self, workdir: &Path) -> WorkdirGuard {
        // waits: raced by runs; an undo waits for one call of a tool.
        WorkdirGuard(self.lock_of(workdir).lock_owned().await)
    }

    fn lock_of(&self, workdir: &Path) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = locks.get(workdir).and_then(Weak::upgrade) {
            return known;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        locks.insert(workdir.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_workdir_has_a_lock() {
        let locks = WorkdirLocks::default();
        let guard = locks.lock(Path::new("/work/a")).await;
        let same = locks.lock_of(Path::new("/work/a"));
        assert!(same.try_lock().is_err());
        assert!(locks.lock_of(Path::new("/work/b")).try_lock().is_ok());
        drop(guard);
        assert!(same.try_lock().is_ok());
        drop(same);
        drop(locks.lock_of(Path::new("/work/c")));
        assert_eq!(locks.0.lock().unwrap().len(), 1, "those that nobody has are forgotten");
    }
}
