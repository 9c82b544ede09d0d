//! Write a file atomically: write a temporary file next to it, sync it, rename it; remove created directories on
//! failure.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::confined_fs::{
    WorkdirRoot, open_directory_in, path_error, protected_error, quoted_path, require_regular_file,
};
use crate::file_tool::{FileToolError, READ_CHUNK_BYTES, StopFlag, failed_call};

/// The place to which a file will be written.
pub(super) struct AtomicWriteTarget {
    directory: OwnedFd,
    name: PathBuf,
    /// The path as the model wrote it; used in errors.
    path: PathBuf,
    /// The mode of the existing file, if there is one.
    mode: Option<Mode>,
    /// The user that the file gets.
    owner: Option<u32>,
    created_directories: CreatedDirectories,
}

/// Gives what a file tool has made to the user of the agent's commands, so that they can change it.
fn give_to(owner: Option<u32>, made: impl AsFd) -> Result<(), Errno> {
    match owner {
        Some(id) => rustix::fs::fchown(made, Some(Uid::from_raw(id)), Some(Gid::from_raw(id))),
        None => Ok(()),
    }
}

/// Directories created for a write, as pairs of parent and name, outermost first. They are removed unless the write
/// succeeds.
#[derive(Default)]
struct CreatedDirectories(Vec<(OwnedFd, PathBuf)>);

/// A temporary file. Its drop removes it unless it was renamed.
struct ReplacementFile<'a> {
    directory: &'a OwnedFd,
    name: String,
}

impl AtomicWriteTarget {
    /// Resolves `path`, through symlinks that stay inside the workdir, and creates missing directories.
    pub(super) fn resolve(root: &WorkdirRoot, path: &Path) -> Result<Self, FileToolError> {
        root.check_writable(path)?;
        let fail = |error| path_error(path, error);
        match root.find_path(path) {
            Ok(found) => {
                require_regular_file(path, found.kind)?;
                let real = root.real_path_of(&found.fd).map_err(fail)?;
                let mode = Mode::from_raw_mode(found.stat.st_mode) & Mode::from_raw_mode(0o777);
                Self::at_real_path(root, path, &real, Some(mode))
            }
            Err(Errno::NOENT) => Self::at_real_path(root, path, path, None),
            Err(error) => Err(fail(error)),
        }
    }

    pub(super) fn exists(&self) -> bool {
        self.mode.is_some()
    }

    /// Replaces the content of the file. After an error or a stop the old content is unchanged.
    pub(super) fn replace_content(mut self, content: &[u8], stop: &StopFlag<'_>) -> Result<(), FileToolError> {
        let done = self.write_and_rename(content, stop);
        if done.is_ok() {
            self.created_directories.0.clear();
        }
        done
    }

    fn at_real_path(root: &WorkdirRoot, path: &Path, real: &Path, mode: Option<Mode>) -> Result<Self, FileToolError> {
        let Some(name) = real.file_name().map(PathBuf::from) else {
            return Err(failed_call(format!("{} names no file", quoted_path(path))));
        };
        let parent = real.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut created_directories = CreatedDirectories::default();
        let directory =
            open_or_create_directory(root, parent, &mut created_directories).map_err(|e| path_error(path, e))?;
        if !root.is_allowed_place(&directory, Some(&name)) {
            return Err(protected_error(path));
        }
        let target = Self { directory, name, path: path.to_path_buf(), mode, owner: root.owner, created_directories };
        target.check_writable()?;
        Ok(target)
    }

    fn check_writable(&self) -> Result<(), FileToolError> {
        if self.mode.is_some() {
            // The rename would also replace a file that is not writable, so check first.
            return rustix::fs::accessat(&self.directory, &self.name, Access::WRITE_OK, AtFlags::empty())
                .map_err(|e| path_error(&self.path, e));
        }
        match rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(_) => Ok(()),
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
                Err(failed_call(format!("{} is a symlink to something that does not exist", quoted_path(&self.path))))
            }
            Ok(_) => Err(failed_call(format!("{} changed meanwhile; try again", quoted_path(&self.path)))),
        }
    }

    fn write_and_rename(&self, content: &[u8], stop: &StopFlag<'_>) -> Result<(), FileToolError> {
        let fail = |error| path_error(&self.path, error);
        let failed =
            |error: std::io::Error| failed_call(format!("{} cannot be written: {error}", quoted_path(&self.path)));
        stop.check()?;
        let (replacement, fd) = ReplacementFile::open(&self.directory, self.mode).map_err(fail)?;
        give_to(self.owner, &fd).map_err(fail)?;
        let mut file = File::from(fd);
        for piece in content.chunks(READ_CHUNK_BYTES) {
            stop.check()?;
            file.write_all(piece).map_err(failed)?;
        }
        if let Some(mode) = self.mode {
            rustix::fs::fchmod(&file, mode).map_err(fail)?;
        }
        file.sync_all().map_err(failed)?;
        stop.check()?;
        replacement.rename_to(&self.name).map_err(fail)?;
        // The file is renamed already. If the directory cannot be synced, only a power failure could undo the rename.
        let _ = rustix::fs::fsync(&self.directory);
        Ok(())
    }
}

impl Drop for CreatedDirectories {
    fn drop(&mut self) {
        while let Some((parent, name)) = self.0.pop() {
            // This fails, as intended, if another program has put something there meanwhile.
            let _ = rustix::fs::unlinkat(&parent, &name, AtFlags::REMOVEDIR);
        }
    }
}

impl<'a> ReplacementFile<'a> {
    fn open(directory: &'a OwnedFd, old: Option<Mode>) -> Result<(Self, OwnedFd), Errno> {
        // A new file gets its mode from the umask. A replacement stays private until it has the mode of the old file.
        let mode = if old.is_some() { Mode::RUSR | Mode::WUSR } else { Mode::from_raw_mode(0o666) };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut number = [0; 8];
        getrandom::fill(&mut number).map_err(|_| Errno::IO)?;
        let name = format!(".quell-{:016x}.tmp", u64::from_le_bytes(number));
        let fd = rustix::fs::openat(directory, &name, flags, mode)?;
        Ok((Self { directory, name }, fd))
    }

    fn rename_to(self, name: &Path) -> Result<(), Errno> {
        rustix::fs::renameat(self.directory, &self.name, self.directory, name)
        // The drop that follows finds no file to remove.
    }
}

impl Drop for ReplacementFile<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(self.directory, &self.name, AtFlags::empty());
    }
}

/// Opens the directory `path` and creates its missing parts.
fn open_or_create_directory(
    root: &WorkdirRoot,
    path: &Path,
    created_directories: &mut CreatedDirectories,
) -> Result<OwnedFd, Errno> {
    match root.open_target_directory(path) {
        Err(Errno::NOENT) => {}
        result => return result,
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::NOENT);
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let above = open_or_create_directory(root, parent, created_directories)?;
    match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o777)) {
        Ok(()) => give_new_directory(root.owner, &above, name)?,
        Err(Errno::EXIST) => return root.open_target_directory(path),
        Err(error) => return Err(error),
    }
    created_directories.0.push((above, name.into()));
    root.open_target_directory(path)
}

/// A command of the agent may have put something else in its place meanwhile: only what is still the daemon's, and is no
/// link, is given away.
fn give_new_directory(owner: Option<u32>, above: &OwnedFd, name: &std::ffi::OsStr) -> Result<(), Errno> {
    if owner.is_none() {
        return Ok(());
    }
    let made = open_directory_in(above, Path::new(name))?;
    let stat = rustix::fs::fstat(&made)?;
    let is_empty =
        rustix::fs::Dir::read_from(&made)?.flatten().all(|entry| matches!(entry.file_name().to_bytes(), b"." | b".."));
    if stat.st_uid == geteuid().as_raw() && is_empty { give_to(owner, &made) } else { Ok(()) }
}
