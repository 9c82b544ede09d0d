//! Writing a whole file so that it happens entirely or not at all: a file next to it, then a rename.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::tools::confine::{Root, explain, protected, regular, shown};
use crate::tools::read::CHUNK;
use crate::tools::{Fault, Stop};

/// Where content will go.
pub(super) struct Target {
    place: OwnedFd,
    name: PathBuf,
    /// As the model called it.
    path: PathBuf,
    /// Of the file that is there now.
    mode: Option<Mode>,
    made: Made,
}

/// Directories that were made on the way, outermost first, by parent and name. They go again when the write does not happen.
#[derive(Default)]
struct Made(Vec<(OwnedFd, PathBuf)>);

/// A file that exists only until it is renamed or dropped.
struct Draft<'a> {
    place: &'a OwnedFd,
    name: String,
}

impl Target {
    /// Finds the place of `path`, through symlinks that stay inside; makes missing directories.
    pub(super) fn find(root: &Root, path: &Path) -> Result<Self, Fault> {
        let fail = |error| explain(path, error);
        match root.look(path) {
            Ok(found) => {
                regular(path, found.kind)?;
                let real = root.path_of(&found.fd).map_err(fail)?;
                let mode = Mode::from_raw_mode(found.stat.st_mode) & Mode::from_raw_mode(0o777);
                Self::at(root, path, &real, Some(mode))
            }
            Err(Errno::NOENT) => Self::at(root, path, path, None),
            Err(error) => Err(fail(error)),
        }
    }

    /// True when a file is there already.
    pub(super) fn exists(&self) -> bool {
        self.mode.is_some()
    }

    /// Puts `content` there. After an error, a stop included, the old state stands.
    pub(super) fn fill(mut self, content: &[u8], stop: &Stop<'_>) -> Result<(), Fault> {
        let done = self.write(content, stop);
        if done.is_ok() {
            self.made.0.clear();
        }
        done
    }

    fn at(root: &Root, path: &Path, real: &Path, mode: Option<Mode>) -> Result<Self, Fault> {
        let Some(name) = real.file_name().map(PathBuf::from) else {
            return Err(Fault::told(format!("{} names no file", shown(path))));
        };
        let parent = real.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut made = Made::default();
        let place = make(root, parent, &mut made).map_err(|e| explain(path, e))?;
        if !root.permits_place(&place, Some(&name)) {
            return Err(protected(path));
        }
        let target = Self { place, name, path: path.to_path_buf(), mode, made };
        target.permitted()?;
        Ok(target)
    }

    fn permitted(&self) -> Result<(), Fault> {
        if self.mode.is_some() {
            // A rename would also replace a file that may not be written.
            return rustix::fs::accessat(&self.place, &self.name, Access::WRITE_OK, AtFlags::empty())
                .map_err(|e| explain(&self.path, e));
        }
        match rustix::fs::statat(&self.place, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(_) => Ok(()),
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
                Err(Fault::told(format!("{} is a symlink to something that does not exist", shown(&self.path))))
            }
            Ok(_) => Err(Fault::told(format!("{} changed meanwhile; try again", shown(&self.path)))),
        }
    }

    fn write(&self, content: &[u8], stop: &Stop<'_>) -> Result<(), Fault> {
        let fail = |error| explain(&self.path, error);
        let failed = |error: std::io::Error| Fault::told(format!("{} cannot be written: {error}", shown(&self.path)));
        stop.check()?;
        let (draft, fd) = Draft::open(&self.place, self.mode).map_err(fail)?;
        let mut file = File::from(fd);
        for piece in content.chunks(CHUNK) {
            stop.check()?;
            file.write_all(piece).map_err(failed)?;
        }
        if let Some(mode) = self.mode {
            rustix::fs::fchmod(&file, mode).map_err(fail)?;
        }
        file.sync_all().map_err(failed)?;
        stop.check()?;
        draft.become_file(&self.name).map_err(fail)?;
        // The file is there; a directory that cannot be synced only makes a power cut more dangerous.
        let _ = rustix::fs::fsync(&self.place);
        Ok(())
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        while let Some((parent, name)) = self.0.pop() {
            // Fails, rightly, when somebody has put something there meanwhile.
            let _ = rustix::fs::unlinkat(&parent, &name, AtFlags::REMOVEDIR);
        }
    }
}

impl<'a> Draft<'a> {
    fn open(place: &'a OwnedFd, old: Option<Mode>) -> Result<(Self, OwnedFd), Errno> {
        // A new file gets its mode from the umask; one that replaces another is private until it has the other's mode.
        let mode = if old.is_some() { Mode::RUSR | Mode::WUSR } else { Mode::from_raw_mode(0o666) };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut number = [0; 8];
        getrandom::fill(&mut number).map_err(|_| Errno::IO)?;
        let name = format!(".quell-{:016x}.tmp", u64::from_le_bytes(number));
        let fd = rustix::fs::openat(place, &name, flags, mode)?;
        Ok((Self { place, name }, fd))
    }

    fn become_file(self, name: &Path) -> Result<(), Errno> {
        rustix::fs::renameat(self.place, &self.name, self.place, name)
        // The drop finds nothing any more.
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(self.place, &self.name, AtFlags::empty());
    }
}

/// Opens the directory `path`, making what is missing of it.
fn make(root: &Root, path: &Path, made: &mut Made) -> Result<OwnedFd, Errno> {
    match root.place(path) {
        Err(Errno::NOENT) => {}
        result => return result,
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::NOENT);
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let above = make(root, parent, made)?;
    match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o777)) {
        Ok(()) => made.0.push((above, name.into())),
        Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    root.place(path)
}
