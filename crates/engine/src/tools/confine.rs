//! The border of the file tools: every path is opened by the kernel below the workdir, or not at all.
//!
//! `openat2` with `RESOLVE_BENEATH` leaves no gap between a check and its use: `..`, absolute paths and symlinks that lead out
//! are refused by the same call that opens. Only regular files are ever opened for their content, and without blocking, so
//! that no pipe, device or socket can hold a thread.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::tools::protected::Border;
use crate::tools::text::quoted;
use crate::tools::{Fault, Ground};

/// How often an open is tried again when something in the path is being renamed.
const RENAME_RETRIES: usize = 16;

/// The workdir, opened.
#[derive(Debug)]
pub(super) struct Root {
    dir: OwnedFd,
    /// The workdir as configured and as the kernel calls it: absolute paths may begin with either.
    names: [PathBuf; 2],
    resolve: ResolveFlags,
    border: Border,
    /// Whether something protected may be reached from here by its own name.
    is_near_border: bool,
}

/// A regular file, opened for reading.
#[derive(Debug)]
pub(super) struct Readable {
    pub(super) file: File,
    pub(super) bytes: u64,
    stat: Stat,
}

/// What stands at a path.
#[derive(Debug)]
pub(super) struct Found {
    /// The thing itself, not opened for its content.
    pub(super) fd: OwnedFd,
    pub(super) kind: FileType,
    pub(super) stat: Stat,
}

impl Root {
    /// Opens the workdir.
    pub(super) fn open(ground: &Ground) -> Result<Self, Fault> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&ground.workdir, flags, Mode::empty()).map_err(|e| {
            Fault::told(format!("the working directory {} cannot be opened: {e}", ground.workdir.display()))
        })?;
        let real = real_path(&dir).unwrap_or_else(|_| ground.workdir.clone());
        let resolve =
            if ground.unconfined { ResolveFlags::empty() } else { ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS };
        let border = ground.protected.border();
        let is_near_border = ground.unconfined || border.is_near(&real);
        Ok(Self { dir, names: [ground.workdir.clone(), real], resolve, border, is_near_border })
    }

    /// Refuses a file that is Quell's own, by whatever name it was opened.
    pub(super) fn permits(&self, path: &Path, opened: Readable) -> Result<Readable, Fault> {
        if self.border.is_another_name(&opened.stat) || !self.permits_place(&opened.file, None) {
            return Err(protected(path));
        }
        Ok(opened)
    }

    /// False for a directory, or a name in it, that is Quell's own.
    pub(super) fn permits_place(&self, fd: &impl AsRawFd, name: Option<&Path>) -> bool {
        if !self.is_near_border {
            return true;
        }
        // What cannot be told is taken for protected.
        real_path(fd).is_ok_and(|real| !self.border.covers(&name.map_or(real.clone(), |name| real.join(name))))
    }

    /// The path as the kernel should take it: relative to the workdir, or absolute when nothing is confined.
    pub(super) fn relative(&self, path: &str) -> Result<PathBuf, Fault> {
        if path.is_empty() {
            return Err(Fault::told("the path is empty"));
        }
        if path.contains('\0') {
            return Err(Fault::told(format!("the path {} holds a NUL character", quoted(path))));
        }
        let given = Path::new(path);
        let inside = self.names.iter().find_map(|name| given.strip_prefix(name).ok());
        let plain: PathBuf = inside.unwrap_or(given).components().filter(|c| *c != Component::CurDir).collect();
        if plain.as_os_str().is_empty() { Ok(PathBuf::from(".")) } else { Ok(plain) }
    }

    /// Looks at what stands at `path`, following symlinks that stay inside; nothing is opened for its content.
    pub(super) fn look(&self, path: &Path) -> Result<Found, Errno> {
        let fd = self.open_at(path, OFlags::PATH)?;
        let stat = rustix::fs::statat(&fd, "", AtFlags::EMPTY_PATH)?;
        Ok(Found { fd, kind: FileType::from_raw_mode(stat.st_mode), stat })
    }

    /// Opens a regular file for reading.
    pub(super) fn file(&self, path: &Path) -> Result<Readable, Fault> {
        // Looked at first because opening a device can do things, and once more after because it may have been exchanged.
        let found = self.look(path).map_err(|e| explain(path, e))?;
        regular(path, found.kind)?;
        let opened = self.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY);
        self.permits(path, readable(path, opened.map_err(|e| explain(path, e))?)?)
    }

    /// Opens a directory.
    pub(super) fn directory(&self, path: &Path) -> Result<OwnedFd, Fault> {
        let opened = self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(|e| explain(path, e))?;
        if self.permits_place(&opened, None) { Ok(opened) } else { Err(protected(path)) }
    }

    /// Opens a directory as a place to create and rename in; the caller says what a failure means.
    pub(super) fn place(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// The path of an opened thing without symlinks, in the form of [`Root::relative`].
    pub(super) fn path_of(&self, fd: &impl AsRawFd) -> Result<PathBuf, Errno> {
        let real = real_path(fd)?;
        Ok(real.strip_prefix(&self.names[1]).map(Path::to_path_buf).unwrap_or(real))
    }

    fn open_at(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        open_beneath(&self.dir, path, flags, self.resolve)
    }
}

/// Opens the regular file `name` in `dir` for reading, never through a symlink. `path` is its name in errors.
pub(super) fn file_in(dir: impl AsFd, name: &Path, path: &Path) -> Result<Readable, Fault> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let opened = open_beneath(&dir, name, flags, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS);
    readable(path, opened.map_err(|e| explain(path, e))?)
}

/// Opens the directory `name` in `dir`, never through a symlink.
pub(super) fn directory_in(dir: impl AsFd, name: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    open_beneath(&dir, name, flags, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
}

/// What went wrong at a path, in words that help.
pub(super) fn explain(path: &Path, error: Errno) -> Fault {
    let path = shown(path);
    Fault::told(match error {
        Errno::NOENT => format!("{path} does not exist"),
        Errno::XDEV => format!(
            "{path} leads outside the working directory (by `..`, an absolute path, or a symlink), where this tool may not go"
        ),
        Errno::LOOP => format!("{path} goes through too many symlinks, or through one that is not allowed"),
        Errno::ACCESS | Errno::PERM => format!("{path}: permission denied"),
        Errno::NOTDIR => format!("{path} is not a directory, or a part of that path is not"),
        Errno::ISDIR => format!("{path} is a directory"),
        Errno::NAMETOOLONG => format!("{path}: the path is too long"),
        Errno::NOSYS => "file tools need openat2, that is Linux 5.6 or newer".to_owned(),
        other => format!("{path}: {other}"),
    })
}

/// Refuses everything but a regular file.
pub(super) fn regular(path: &Path, kind: FileType) -> Result<(), Fault> {
    let what = match kind {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "is a directory; use list_files to see what is in it",
        FileType::Fifo => "is a named pipe, not a regular file",
        FileType::Socket => "is a socket, not a regular file",
        FileType::CharacterDevice | FileType::BlockDevice => "is a device, not a regular file",
        FileType::Symlink => "is a symlink, not a regular file",
        FileType::Unknown => "is not a regular file",
    };
    Err(Fault::told(format!("{} {what}", shown(path))))
}

/// A path inside a sentence.
pub(super) fn shown(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

fn readable(path: &Path, fd: OwnedFd) -> Result<Readable, Fault> {
    let stat = rustix::fs::fstat(&fd).map_err(|e| explain(path, e))?;
    regular(path, FileType::from_raw_mode(stat.st_mode))?;
    Ok(Readable { file: File::from(fd), bytes: u64::try_from(stat.st_size).unwrap_or(0), stat })
}

/// Why Quell's own files are left alone.
pub(super) fn protected(path: &Path) -> Fault {
    Fault::told(format!("{} is Quell's own configuration or data, which no tool may read or change", shown(path)))
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
