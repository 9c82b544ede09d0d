//! Report changes in a directory, by the inotify of the kernel.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use quell_process::into_async_fd;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// Reads are no changes. A file that is replaced is moved here.
const CHANGES: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::ONLYDIR);

pub(super) struct DirectoryWatch(AsyncFd<OwnedFd>);

impl DirectoryWatch {
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&queue, directory, CHANGES)?;
        Ok(Self(into_async_fd(queue)?))
    }

    /// Waits for changes since the last call. Several may be reported as one, and one that was lost in a full queue is
    /// reported, too.
    ///
    /// # Cancel safety
    /// Safe: the next call reports what was not reported.
    pub(super) async fn wait_for_change(&self) {
        // An error of the queue counts as a change, so that the caller looks for itself.
        let Ok(mut ready) = self.0.readable().await else { return };
        let mut events = [0; 4096];
        // Not without end: others may write in the directory all the time. What is left is the next change.
        for _ in 0..64 {
            match rustix::io::read(self.0.get_ref(), &mut events) {
                Ok(1..) | Err(Errno::INTR) => {}
                Ok(0) | Err(_) => return ready.clear_ready(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rstest::rstest;

    use super::*;

    type Change = fn(&Path, &Path) -> io::Result<()>;

    #[rstest]
    #[case::written(write)]
    #[case::replaced(replace)]
    #[case::removed(remove)]
    #[case::link_replaced(replace_by_link)]
    #[tokio::test]
    async fn each_way_to_change_a_file_is_reported_once(#[case] change: Change) {
        let directory = tempfile::tempdir().unwrap();
        let other_directory = tempfile::tempdir().unwrap();
        let (file, other) = (directory.path().join("file"), other_directory.path().join("other"));
        fs::write(&file, "old").unwrap();
        fs::write(&other, "new").unwrap();
        let watch = DirectoryWatch::new(directory.path()).unwrap();
        let _ = fs::read(&file).unwrap();
        assert_eq!(read_event(&watch), Err(Errno::AGAIN), "a read is no change");
        change(&file, &other).unwrap();
        tokio::time::timeout(std::time::Duration::from_secs(10), watch.wait_for_change()).await.unwrap();
        assert_eq!(read_event(&watch), Err(Errno::AGAIN), "everything was reported");
    }

    /// Reads from the queue of the kernel, without waiting.
    fn read_event(watch: &DirectoryWatch) -> Result<usize, Errno> {
        rustix::io::read(watch.0.get_ref(), &mut [0; 4096])
    }

    fn write(file: &Path, _: &Path) -> io::Result<()> {
        fs::write(file, "new")
    }

    fn replace(file: &Path, other: &Path) -> io::Result<()> {
        fs::rename(other, file)
    }

    fn remove(file: &Path, _: &Path) -> io::Result<()> {
        fs::remove_file(file)
    }

    fn replace_by_link(file: &Path, other: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink("target", other.with_extension("link"))?;
        fs::rename(other.with_extension("link"), file)
    }

    #[tokio::test]
    async fn a_missing_directory_cannot_be_watched() {
        let directory = tempfile::tempdir().unwrap();
        assert!(DirectoryWatch::new(&directory.path().join("missing")).is_err());
    }
}
