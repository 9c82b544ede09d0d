//! Deletes a directory tree that an agent has filled: of any depth, with two open directories and no recursion.
//!
//! A directory that is not empty is moved up into the root of the tree before its turn comes, so the tree becomes flat.
//! No path is built, so its length has no limit; no symlink is followed; and a directory that its owner may not read is
//! made readable first.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// What the owner needs to empty a directory.
const OWNER_RIGHTS: Mode = Mode::RWXU;

/// Deletes what is at `path`, also if it is no directory. It is no error if there is nothing.
///
/// # Errors
/// The first error of the file system, after everything else was deleted; `Interrupted` if `stop` was raised, after which
/// the deletion can be tried again.
pub fn delete_tree(path: &Path, stop: &AtomicBool) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the root of the file system is never deleted"));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    match rustix::fs::open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(parent) => delete_tree_in(parent.as_fd(), Path::new(name), stop),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Like [`delete_tree`], for the entry `name` of an open directory.
pub(super) fn delete_tree_in(parent: BorrowedFd<'_>, name: &Path, stop: &AtomicBool) -> io::Result<()> {
    let root = match open_directory(parent, name) {
        Ok(root) => root,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(rustix::fs::unlinkat(parent, name, AtFlags::empty())?),
        Err(error) => return Err(error.into()),
    };
    let mut tree = FlatTree { root, moved: 0, deleted: 0, stop };
    loop {
        let (deleted_before, problem) = (tree.deleted, tree.delete_entries()?);
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            // What was moved into the root during a pass may be left for the next one.
            Err(Errno::NOTEMPTY | Errno::EXIST) if tree.deleted > deleted_before => {}
            Err(error) => return Err(problem.unwrap_or(error).into()),
            Ok(()) => return Ok(()),
        }
    }
}

/// The root of a tree, into which its inner directories are moved.
struct FlatTree<'a> {
    root: OwnedFd,
    /// Directories that were moved so far; the next name.
    moved: u64,
    deleted: u64,
    stop: &'a AtomicBool,
}

impl FlatTree<'_> {
    /// Deletes each entry of the root that can be deleted. Returns the first error of another one.
    fn delete_entries(&mut self) -> io::Result<Option<Errno>> {
        let mut problem = None;
        for name in entry_names(&self.root)? {
            let name = name?;
            if let Err(error) = self.delete_entry(&name)? {
                problem.get_or_insert(error);
            }
        }
        Ok(problem)
    }

    /// The outer error is that of a raised flag.
    fn delete_entry(&mut self, name: &CStr) -> io::Result<Result<(), Errno>> {
        self.check_stop()?;
        let deleted = match delete_plain(self.root.as_fd(), name) {
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ACCESS) => match self.empty_directory(name)? {
                Ok(()) => rustix::fs::unlinkat(&self.root, name, AtFlags::REMOVEDIR),
                problem => problem,
            },
            deleted => deleted,
        };
        self.deleted += u64::from(deleted.is_ok());
        Ok(deleted)
    }

    /// Deletes the entries of a directory of the root, and moves those that are directories with entries into the root.
    fn empty_directory(&mut self, name: &CStr) -> io::Result<Result<(), Errno>> {
        let directory = match open_directory(self.root.as_fd(), name) {
            Ok(directory) => directory,
            Err(error) => return Ok(Err(error)),
        };
        let mut problem = Ok(());
        for entry in entry_names(&directory)? {
            self.check_stop()?;
            let entry = entry?;
            let gone = match delete_plain(directory.as_fd(), &entry) {
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ACCESS) => self.move_to_root(&directory, &entry),
                deleted => deleted,
            };
            self.deleted += u64::from(gone.is_ok());
            problem = problem.and(gone);
        }
        Ok(problem)
    }

    fn move_to_root(&mut self, directory: &OwnedFd, entry: &CStr) -> Result<(), Errno> {
        // A move changes the `..` of what is moved, for which its owner needs the right to write.
        drop(open_directory(directory.as_fd(), entry)?);
        loop {
            let name = format!("quell-deletes-{}", self.moved);
            self.moved += 1;
            match rustix::fs::renameat_with(directory, entry, &self.root, name, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => {}
                moved => return moved,
            }
        }
    }

    fn check_stop(&self) -> io::Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the deletion was stopped"));
        }
        Ok(())
    }
}

/// Deletes an entry that is no directory, or an empty one.
fn delete_plain(directory: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR),
        deleted => deleted,
    }
}

/// Opens a directory, never through a symlink, and gives its owner the rights to empty it.
fn open_directory<P: rustix::path::Arg + Copy>(parent: BorrowedFd<'_>, name: P) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::openat(parent, name, flags | OFlags::PATH, Mode::empty())?;
    let stat = rustix::fs::statat(&place, "", AtFlags::EMPTY_PATH)?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && !mode.contains(OWNER_RIGHTS) {
        // The opened directory itself: its name may have been given to something else.
        rustix::fs::chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), mode | OWNER_RIGHTS)?;
    }
    rustix::fs::openat(place, ".", flags | OFlags::RDONLY, Mode::empty())
}

/// The names in a directory, read as they are asked for.
fn entry_names(directory: &OwnedFd) -> io::Result<impl Iterator<Item = io::Result<CString>> + use<>> {
    let entries = Dir::read_from(directory)?;
    Ok(entries
        .map(|entry| Ok(entry?.file_name().to_owned()))
        .filter(|name: &io::Result<CString>| !matches!(name.as_deref().map(CStr::to_bytes), Ok(b"." | b".."))))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::thread;

    use super::*;

    static NOT_STOPPED: AtomicBool = AtomicBool::new(false);

    /// Nests directories as a command does it: each new one becomes the parent of all before.
    fn nest(root: &Path, levels: usize) {
        let directory = rustix::fs::open(root, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
        rustix::fs::mkdirat(&directory, "nested", Mode::RWXU).unwrap();
        for _ in 1..levels {
            rustix::fs::mkdirat(&directory, "new", Mode::RWXU).unwrap();
            rustix::fs::renameat(&directory, "nested", &directory, "new/nested").unwrap();
            rustix::fs::renameat(&directory, "new", &directory, "nested").unwrap();
        }
    }

    #[test]
    fn a_tree_of_a_hundred_thousand_levels_is_deleted_on_a_small_stack() {
        // In memory, where it takes a second; a journal of a disk makes it a minute.
        let parent = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let root = parent.path().join("tree");
        fs::create_dir(&root).unwrap();
        nest(&root, 100_000);
        let delete = move || delete_tree(&root, &NOT_STOPPED);
        thread::Builder::new().stack_size(2 << 20).spawn(delete).unwrap().join().unwrap().unwrap();
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_wide_tree_with_locked_directories_is_deleted_and_links_are_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        let (root, outside) = (parent.path().join("tree"), parent.path().join("outside"));
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        for number in 0..50 {
            let inner = root.join(format!("{number}/quell-deletes-0/c"));
            fs::create_dir_all(&inner).unwrap();
            fs::write(inner.join("file"), "").unwrap();
            symlink(&outside, inner.join("link")).unwrap();
            fs::set_permissions(&inner, fs::Permissions::from_mode(0o000)).unwrap();
            fs::set_permissions(inner.parent().unwrap(), fs::Permissions::from_mode(0o500)).unwrap();
        }
        symlink(&outside, root.join("link")).unwrap();
        delete_tree(&root, &NOT_STOPPED).unwrap();
        assert!(!root.exists() && outside.join("kept").exists());
        // A link in place of the tree is itself deleted.
        symlink(&outside, &root).unwrap();
        delete_tree(&root, &NOT_STOPPED).unwrap();
        assert!(root.symlink_metadata().is_err() && outside.join("kept").exists());
        delete_tree(&root, &NOT_STOPPED).unwrap();
    }

    #[test]
    fn a_raised_flag_ends_the_deletion() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("tree");
        fs::create_dir_all(root.join("a/b")).unwrap();
        let stopped = delete_tree(&root, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(stopped.kind(), io::ErrorKind::Interrupted);
        assert!(root.join("a/b").exists());
    }
}
