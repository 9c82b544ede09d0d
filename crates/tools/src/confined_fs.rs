//! Open files and directories below the workdir with `openat2(RESOLVE_BENEATH)`; only regular files, never a protected
//! one.
//!
//! The kernel checks and opens in the same call, so nothing can change in between: it refuses `..`, absolute paths and
//! symlinks that lead outside. Only regular files are opened for their content, and without blocking, so no pipe,
//! device or socket can block a thread.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::file_tool::{FileToolContext, FileToolError, failed_call};
use crate::protected_paths::ResolvedProtectedPaths;
use crate::text::quoted;

/// How often an open is retried when a part of the path is being renamed.
const RENAME_RETRIES: usize = 16;

#[derive(Debug)]
pub(super) struct WorkdirRoot {
    dir: OwnedFd,
    /// The workdir as configured and its real path; an absolute path may begin with either.
    known_paths: [PathBuf; 2],
    resolve: ResolveFlags,
    protected: ResolvedProtectedPaths,
    /// Whether a protected path may be reachable from here by its own name.
    may_reach_protected: bool,
    is_read_only: bool,
    /// The user that gets what is made here, if it is not that of the daemon.
    pub(super) owner: Option<u32>,
}

#[derive(Debug)]
pub(super) struct OpenedFile {
    pub(super) file: File,
    pub(super) bytes: u64,
    pub(super) stat: Stat,
}

#[derive(Debug)]
pub(super) struct FoundPath {
    /// Opened with `O_PATH`, not for its content.
    pub(super) fd: OwnedFd,
    pub(super) kind: FileType,
    pub(super) stat: Stat,
}

impl WorkdirRoot {
    pub(super) fn open(context: &FileToolContext) -> Result<Self, FileToolError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&context.workdir, flags, Mode::empty()).map_err(|e| {
            failed_call(format!("the working directory {} cannot be opened: {e}", context.workdir.display()))
        })?;
        let real = real_path(&dir).unwrap_or_else(|_| context.workdir.clone());
        let mut resolve = if context.unconfined {
            ResolveFlags::empty()
        } else {
            ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS
        };
        resolve.set(ResolveFlags::NO_SYMLINKS, !context.follows_links);
        let protected = context.protected.resolve();
        let is_near_border = context.unconfined || protected.may_be_below(&real);
        Ok(Self {
            dir,
            known_paths: [context.workdir.clone(), real],
            resolve,
            protected,
            may_reach_protected: is_near_border,
            is_read_only: context.is_read_only,
            owner: context.owner,
        })
    }

    /// The workdir as configured.
    pub(super) fn workdir(&self) -> &Path {
        &self.known_paths[0]
    }

    /// Refuses every change where the sandbox is read-only.
    pub(super) fn check_writable(&self, path: &Path) -> Result<(), FileToolError> {
        if self.is_read_only {
            return Err(failed_call(format!(
                "{} was not written: the sandbox of this agent is read-only. A person can permit changes of the working \
                 directory with sandbox = \"workspace\" in the agent's configuration",
                quoted_path(path)
            )));
        }
        Ok(())
    }

    /// Refuses a protected file, whatever name it was opened by.
    pub(super) fn check_not_protected(&self, path: &Path, opened: OpenedFile) -> Result<OpenedFile, FileToolError> {
        if self.protected.is_hard_link_to_protected(&opened.stat) || !self.is_allowed_place(&opened.file, None) {
            return Err(protected_error(path));
        }
        Ok(opened)
    }

    /// False for a protected directory, or a protected name in it.
    pub(super) fn is_allowed_place(&self, fd: &impl AsRawFd, name: Option<&Path>) -> bool {
        if !self.may_reach_protected {
            return true;
        }
        // A place whose path is unknown counts as protected.
        real_path(fd)
            .is_ok_and(|real| !self.protected.is_protected_path(&name.map_or(real.clone(), |name| real.join(name))))
    }

    /// The path for the kernel: relative to the workdir, or absolute when the tools are unconfined.
    pub(super) fn relative_path(&self, path: &str) -> Result<PathBuf, FileToolError> {
        if path.is_empty() {
            return Err(failed_call("the path is empty"));
        }
        if path.contains('\0') {
            return Err(failed_call(format!("the path {} holds a NUL character", quoted(path))));
        }
        let given = Path::new(path);
        let inside = self.known_paths.iter().find_map(|name| given.strip_prefix(name).ok());
        let plain: PathBuf = inside.unwrap_or(given).components().filter(|c| *c != Component::CurDir).collect();
        if plain.as_os_str().is_empty() { Ok(PathBuf::from(".")) } else { Ok(plain) }
    }

    /// Finds the object at `path` and follows symlinks that stay inside. It is not opened for its content.
    pub(super) fn find_path(&self, path: &Path) -> Result<FoundPath, Errno> {
        let fd = self.open_at(path, OFlags::PATH)?;
        let stat = rustix::fs::statat(&fd, "", AtFlags::EMPTY_PATH)?;
        Ok(FoundPath { fd, kind: FileType::from_raw_mode(stat.st_mode), stat })
    }

    pub(super) fn open_file(&self, path: &Path) -> Result<OpenedFile, FileToolError> {
        // Check the type before the open, because opening a device can have effects, and again after it, because the
        // file may have been replaced.
        let found = self.find_path(path).map_err(|e| path_error(path, e))?;
        require_regular_file(path, found.kind)?;
        let opened = self.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY);
        self.check_not_protected(path, into_opened_file(path, opened.map_err(|e| path_error(path, e))?)?)
    }

    pub(super) fn open_directory(&self, path: &Path) -> Result<OwnedFd, FileToolError> {
        let opened = self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(|e| path_error(path, e))?;
        if self.is_allowed_place(&opened, None) { Ok(opened) } else { Err(protected_error(path)) }
    }

    /// Opens a directory in which to create and rename files. The caller interprets a failure.
    pub(super) fn open_target_directory(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// The path of an opened object without symlinks, in the form of [`WorkdirRoot::relative_path`].
    pub(super) fn real_path_of(&self, fd: &impl AsRawFd) -> Result<PathBuf, Errno> {
        let real = real_path(fd)?;
        Ok(real.strip_prefix(&self.known_paths[1]).map(Path::to_path_buf).unwrap_or(real))
    }

    fn open_at(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        open_beneath(&self.dir, path, flags, self.resolve)
    }
}

/// The path that `path` leads to, relative to the workdir if it is not absolute, without symbolic links: for a call that a
/// person lets out of the sandbox, who is to see what it acts on. What does not exist yet stays as it is.
///
/// # Errors
/// The path goes up (`..`) from a directory that does not exist, so nobody can say where it leads. The text is for the
/// model.
pub fn real_target(workdir: &Path, path: &str) -> Result<PathBuf, String> {
    let whole = workdir.join(path);
    let mut existing = whole.ancestors().filter_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, real)) = existing.next() else { return Ok(whole) };
    let rest = whole.strip_prefix(above).unwrap_or(Path::new(""));
    if rest.components().any(|part| part == Component::ParentDir) {
        return Err(format!("{} goes up from a directory that does not exist", quoted(path)));
    }
    Ok(if rest.as_os_str().is_empty() { real } else { real.join(rest) })
}

/// Opens the regular file `name` in `dir` for reading, never through a symlink. `path` is its name in errors.
pub(super) fn open_file_in(dir: impl AsFd, name: &Path, path: &Path) -> Result<OpenedFile, FileToolError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let opened = open_beneath(&dir, name, flags, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS);
    into_opened_file(path, opened.map_err(|e| path_error(path, e))?)
}

/// Opens the directory `name` in `dir`, never through a symlink.
pub(super) fn open_directory_in(dir: impl AsFd, name: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    open_beneath(&dir, name, flags, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

/// Explains an error of the file system to the model.
pub(super) fn path_error(path: &Path, error: Errno) -> FileToolError {
    let path = quoted_path(path);
    failed_call(match error {
        Errno::NOENT => format!("{path} does not exist"),
        Errno::XDEV => format!(
            "{path} leads outside the working directory (by `..`, an absolute path, or a symlink), where this tool may not go"
        ),
        Errno::LOOP => format!(
            "{path} goes through too many symlinks, or through one that is not allowed; write the path that it leads to"
        ),
        Errno::ACCESS | Errno::PERM => format!("{path}: permission denied"),
        Errno::NOTDIR => format!("{path} is not a directory, or a part of that path is not"),
        Errno::ISDIR => format!("{path} is a directory"),
        Errno::NAMETOOLONG => format!("{path}: the path is too long"),
        Errno::NOSYS => "file tools need openat2, that is Linux 5.6 or newer".to_owned(),
        other => format!("{path}: {other}"),
    })
}

pub(super) fn require_regular_file(path: &Path, kind: FileType) -> Result<(), FileToolError> {
    let what = match kind {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "is a directory; use list_files to see what is in it",
        FileType::Fifo => "is a named pipe, not a regular file",
        FileType::Socket => "is a socket, not a regular file",
        FileType::CharacterDevice | FileType::BlockDevice => "is a device, not a regular file",
        FileType::Symlink => "is a symlink, not a regular file",
        FileType::Unknown => "is not a regular file",
    };
    Err(failed_call(format!("{} {what}", quoted_path(path))))
}

pub(super) fn quoted_path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

fn into_opened_file(path: &Path, fd: OwnedFd) -> Result<OpenedFile, FileToolError> {
    let stat = rustix::fs::fstat(&fd).map_err(|e| path_error(path, e))?;
    require_regular_file(path, FileType::from_raw_mode(stat.st_mode))?;
    Ok(OpenedFile { file: File::from(fd), bytes: u64::try_from(stat.st_size).unwrap_or(0), stat })
}

pub(super) fn protected_error(path: &Path) -> FileToolError {
    failed_call(format!("{} is Quell's own configuration or data, which no tool may read or change", quoted_path(path)))
}

fn open_beneath(dir: &impl AsFd, path: &Path, flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    let mut tries = 0;
    loop {
        match rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) if tries < RENAME_RETRIES => tries += 1,
            result => return result,
        }
    }
}

fn real_path(fd: &impl AsRawFd) -> Result<PathBuf, Errno> {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let path = rustix::fs::readlink(link, Vec::new())?;
    Ok(PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(path.into_bytes())))
}
