//! Write a file atomically: write a temporary file next to it, sync it, rename it; remove created directories on
//! failure.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::confined_fs::{
    OpenedFile, WorkdirRoot, open_directory_in, open_file_in, path_error, protected_error, quoted_path,
    require_regular_file,
};
use crate::file_tool::{FileToolError, READ_CHUNK_BYTES, StopFlag, failed_call};

/// Directories that one write may create; a walk goes no deeper, either.
const MAX_NEW_DIRECTORIES: usize = 100;

/// The place to which a file will be written. A drop removes what was made for a write that did not succeed.
pub(super) struct AtomicWriteTarget {
    directory: OwnedFd,
    name: PathBuf,
    /// The path as the model wrote it; used in errors.
    path: PathBuf,
    /// The mode of the existing file, if there is one.
    mode: Option<Mode>,
    /// What the existing file was when it was looked at.
    stamp: Option<FileIdentity>,
    /// The user that the file gets.
    owner: Option<u32>,
    /// The name of the temporary file with the new content, once it is written.
    temporary: Option<String>,
    created_directories: CreatedDirectories,
}

/// Tells whether a file is still the same one with the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    id: (u64, u64),
    bytes: i64,
    modified: (i64, i64),
}

impl FileIdentity {
    fn of(stat: &Stat) -> Self {
        let nanoseconds = i64::try_from(stat.st_mtime_nsec).unwrap_or_default();
        Self { id: (stat.st_dev, stat.st_ino), bytes: stat.st_size, modified: (stat.st_mtime, nanoseconds) }
    }
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

impl AtomicWriteTarget {
    /// Resolves `path`, through symlinks that stay inside the workdir, and creates missing directories.
    pub(super) fn resolve(root: &WorkdirRoot, path: &Path) -> Result<Self, FileToolError> {
        root.check_writable(path)?;
        let fail = |error| path_error(path, error);
        match root.find_path(path) {
            Ok(found) => {
                require_regular_file(path, found.kind)?;
                let real = root.real_path_of(&found.fd).map_err(fail)?;
                Self::at_real_path(root, path, &real, Some(&found.stat))
            }
            Err(Errno::NOENT) => Self::at_real_path(root, path, path, None),
            Err(error) => Err(fail(error)),
        }
    }

    pub(super) fn exists(&self) -> bool {
        self.mode.is_some()
    }

    /// The permission bits of the existing file.
    pub(super) fn mode(&self) -> Option<u32> {
        self.mode.map(|mode| mode.as_raw_mode())
    }

    /// The file gets these permission bits instead of those of the existing one.
    pub(super) fn set_mode(&mut self, mode: u32) {
        self.mode = Some(Mode::from_raw_mode(mode & 0o777));
    }

    /// The path without symlinks, relative to the workdir or absolute outside of it.
    pub(super) fn real_path(&self, root: &WorkdirRoot) -> Result<PathBuf, FileToolError> {
        let directory = root.real_path_of(&self.directory).map_err(|e| path_error(&self.path, e))?;
        Ok(directory.join(&self.name))
    }

    /// Opens the existing file for reading; `None` if there is none.
    pub(super) fn open_existing(&self) -> Result<Option<OpenedFile>, FileToolError> {
        if !self.exists() {
            return Ok(None);
        }
        let opened = open_file_in(&self.directory, &self.name, &self.path)?;
        if self.stamp == Some(FileIdentity::of(&opened.stat)) { Ok(Some(opened)) } else { Err(self.changed_error()) }
    }

    /// Replaces the content of the file. After an error or a stop the old content is unchanged.
    pub(super) fn replace_content(mut self, content: &[u8], stop: &StopFlag<'_>) -> Result<(), FileToolError> {
        self.prepare(content, stop)?;
        stop.check()?;
        self.commit()
    }

    /// Writes the new content beside the file, synced. Nothing is visible under the name of the file yet.
    pub(super) fn prepare(&mut self, content: &[u8], stop: &StopFlag<'_>) -> Result<(), FileToolError> {
        let fail = |error| path_error(&self.path, error);
        let failed =
            |error: std::io::Error| failed_call(format!("{} cannot be written: {error}", quoted_path(&self.path)));
        stop.check()?;
        let (temporary, fd) = create_temporary(&self.directory, self.mode).map_err(fail)?;
        self.temporary = Some(temporary);
        give_to(self.owner, &fd).map_err(|e| path_error(&self.path, e))?;
        let mut file = File::from(fd);
        for piece in content.chunks(READ_CHUNK_BYTES) {
            stop.check()?;
            file.write_all(piece).map_err(failed)?;
        }
        if let Some(mode) = self.mode {
            rustix::fs::fchmod(&file, mode).map_err(|e| path_error(&self.path, e))?;
        }
        file.sync_all().map_err(failed)?;
        Ok(())
    }

    /// Refuses if the file is not what it was when it was looked at.
    pub(super) fn check_unchanged(&self) -> Result<(), FileToolError> {
        let now = match rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(FileIdentity::of(&stat)),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(path_error(&self.path, error)),
        };
        if now == self.stamp { Ok(()) } else { Err(self.changed_error()) }
    }

    /// Puts the prepared content in place of the file.
    pub(super) fn commit(&mut self) -> Result<(), FileToolError> {
        let Some(temporary) = &self.temporary else { return Ok(()) };
        rustix::fs::renameat(&self.directory, temporary, &self.directory, &self.name)
            .map_err(|e| path_error(&self.path, e))?;
        self.temporary = None;
        self.created_directories.0.clear();
        // The file is renamed already. If the directory cannot be synced, only a power failure could undo the rename.
        let _ = rustix::fs::fsync(&self.directory);
        Ok(())
    }

    /// Removes the file.
    pub(super) fn remove(&self) -> Result<(), FileToolError> {
        rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty()).map_err(|e| path_error(&self.path, e))?;
        let _ = rustix::fs::fsync(&self.directory);
        Ok(())
    }

    fn changed_error(&self) -> FileToolError {
        failed_call(format!("{} changed meanwhile; read it and try again", quoted_path(&self.path)))
    }

    fn at_real_path(
        root: &WorkdirRoot,
        path: &Path,
        real: &Path,
        existing: Option<&Stat>,
    ) -> Result<Self, FileToolError> {
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
        let target = Self {
            directory,
            name,
            path: path.to_path_buf(),
            mode: existing.map(|stat| Mode::from_raw_mode(stat.st_mode) & Mode::from_raw_mode(0o777)),
            stamp: existing.map(FileIdentity::of),
            owner: root.owner,
            temporary: None,
            created_directories,
        };
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
}

impl Drop for AtomicWriteTarget {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = rustix::fs::unlinkat(&self.directory, temporary, AtFlags::empty());
        }
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

/// Creates a temporary file. Returns its name.
fn create_temporary(directory: &OwnedFd, old: Option<Mode>) -> Result<(String, OwnedFd), Errno> {
    // A new file gets its mode from the umask. A replacement stays private until it has the mode of the old file.
    let mode = if old.is_some() { Mode::RUSR | Mode::WUSR } else { Mode::from_raw_mode(0o666) };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut number = [0; 8];
    getrandom::fill(&mut number).map_err(|_| Errno::IO)?;
    let name = format!(".quell-{:016x}.tmp", u64::from_le_bytes(number));
    let fd = rustix::fs::openat(directory, &name, flags, mode)?;
    Ok((name, fd))
}

/// Opens the directory `path` and creates its missing parts, at most [`MAX_NEW_DIRECTORIES`].
fn open_or_create_directory(
    root: &WorkdirRoot,
    path: &Path,
    created_directories: &mut CreatedDirectories,
) -> Result<OwnedFd, Errno> {
    let mut missing = Vec::new();
    for path in path.ancestors() {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        match root.open_target_directory(path) {
            Err(Errno::NOENT) if path.file_name().is_some() => missing.push(path),
            Err(error) => return Err(error),
            Ok(directory) if missing.is_empty() => return Ok(directory),
            Ok(directory) => return create_directories(root, directory, missing, created_directories),
        }
    }
    Err(Errno::NOENT)
}

/// Creates directories below `above` and opens the last one. `missing` has the innermost first.
fn create_directories(
    root: &WorkdirRoot,
    mut above: OwnedFd,
    missing: Vec<&Path>,
    created_directories: &mut CreatedDirectories,
) -> Result<OwnedFd, Errno> {
    if missing.len() > MAX_NEW_DIRECTORIES {
        return Err(Errno::NAMETOOLONG);
    }
    for path in missing.into_iter().rev() {
        let name = path.file_name().ok_or(Errno::NOENT)?;
        match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o777)) {
            Ok(()) => {
                give_new_directory(root.owner, &above, name)?;
                created_directories.0.push((above, name.into()));
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        above = root.open_target_directory(path)?;
    }
    Ok(above)
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
