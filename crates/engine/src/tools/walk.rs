//! A walk over a directory tree in the order of its paths, by directory handles, so that nothing outside can be reached.
//!
//! The `ignore` crate reads the patterns, but not the tree: its own walker goes by path and opens ignore files blindly, and a
//! `.gitignore` that is a named pipe would hold the thread for ever. Here every step looks at the stop flag.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{AtFlags, Dir, FileType};

use crate::tools::confine::{Root, directory_in, file_in};
use crate::tools::{Fault, Stop};

/// Deeper directories are passed over: each level holds a file descriptor.
const MOST_LEVELS: usize = 100;
/// The walk ends after so many entries.
const MOST_ENTRIES: usize = 1_000_000;
/// Of an ignore file, so much is read.
const IGNORE_BYTES: u64 = 64 * 1024;
/// Where patterns come from, the strongest last.
const IGNORE_FILES: [(&str, &str); 3] =
    [(".git", ".git/info/exclude"), (".gitignore", ".gitignore"), (".ignore", ".ignore")];

/// One thing in the tree.
pub(super) struct Entry<'a> {
    /// The directory that holds it.
    pub(super) place: BorrowedFd<'a>,
    pub(super) name: &'a OsStr,
    /// From the workdir, or absolute outside of it.
    pub(super) path: &'a Path,
    pub(super) kind: FileType,
}

/// What a walk left out, apart from what is ignored.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Omitted {
    /// Directories that could not be read or lie too deep.
    pub(super) directories: usize,
    /// True when the tree has too many entries.
    pub(super) rest: bool,
}

/// Walks below the directory `start`, at most `depth` levels, and shows each entry that no ignore file hides to `visit`, which
/// may end the walk. Symlinks are shown but not followed; `.git` is passed over.
pub(super) fn walk(
    root: &Root,
    start: &Path,
    depth: usize,
    stop: &Stop<'_>,
    visit: &mut dyn FnMut(&Entry<'_>) -> Result<ControlFlow<()>, Fault>,
) -> Result<Omitted, Fault> {
    let place = root.directory(start)?;
    let mut walk = Walk {
        stop,
        outer: outer_patterns(root, start, stop)?,
        levels: Vec::new(),
        seen: 0,
        omitted: Omitted::default(),
    };
    let base = if start == Path::new(".") { PathBuf::new() } else { start.to_path_buf() };
    walk.enter(place, base)?;
    while let Some((entry_name, kind)) = walk.next() {
        stop.check()?;
        let level_count = walk.levels.len();
        let Some(level) = walk.levels.last() else { break };
        let path = level.base.join(&entry_name);
        if walk.is_ignored(&path, kind == FileType::Directory) {
            continue;
        }
        let entry = Entry { place: level.place.as_fd(), name: &entry_name, path: &path, kind };
        if visit(&entry)?.is_break() {
            break;
        }
        if kind != FileType::Directory || level_count >= depth {
            continue;
        }
        match directory_in(&level.place, Path::new(&entry_name)) {
            Ok(inner) if level_count < MOST_LEVELS && root.permits_place(&inner, None) => walk.enter(inner, path)?,
            _ => walk.omitted.directories += 1,
        }
    }
    Ok(walk.omitted)
}

struct Walk<'a> {
    stop: &'a Stop<'a>,
    /// Of the directories between the workdir and the start, outermost first.
    outer: Vec<Patterns>,
    levels: Vec<Level>,
    seen: usize,
    omitted: Omitted,
}

struct Level {
    place: OwnedFd,
    base: PathBuf,
    patterns: Option<Patterns>,
    /// What is still to be visited, the next last.
    rest: Vec<(OsString, FileType)>,
}

/// What the ignore files of one directory say.
struct Patterns {
    base: PathBuf,
    rules: Gitignore,
}

impl Walk<'_> {
    fn enter(&mut self, place: OwnedFd, base: PathBuf) -> Result<(), Fault> {
        let mut rest = Vec::new();
        let Ok(directory) = Dir::read_from(&place) else {
            self.omitted.directories += 1;
            return Ok(());
        };
        for entry in directory {
            self.stop.check()?;
            let Ok(entry) = entry else {
                self.omitted.directories += 1;
                break;
            };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if self.seen == MOST_ENTRIES {
                self.omitted.rest = true;
                break;
            }
            self.seen += 1;
            rest.push((name.to_owned(), kind_of(&place, name, entry.file_type())));
        }
        let patterns = patterns(&place, &base, |name| rest.iter().any(|(n, _)| n == name), self.stop)?;
        rest.retain(|(name, _)| name != ".git");
        rest.sort_unstable_by(|a, b| b.0.cmp(&a.0));
        self.levels.push(Level { place, base, patterns, rest });
        Ok(())
    }

    fn next(&mut self) -> Option<(OsString, FileType)> {
        loop {
            let level = self.levels.last_mut()?;
            match level.rest.pop() {
                Some(entry) => return Some(entry),
                None => self.levels.pop(),
            };
        }
    }

    fn is_ignored(&self, path: &Path, is_directory: bool) -> bool {
        let inner = self.levels.iter().filter_map(|level| level.patterns.as_ref());
        for patterns in self.outer.iter().chain(inner).rev() {
            let below = path.strip_prefix(&patterns.base).unwrap_or(path);
            match patterns.rules.matched(below, is_directory) {
                ignore::Match::None => {}
                verdict => return verdict.is_ignore(),
            }
        }
        false
    }
}

fn kind_of(place: &OwnedFd, name: &OsStr, told: FileType) -> FileType {
    if told != FileType::Unknown {
        return told;
    }
    let stat = rustix::fs::statat(place, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
}

fn outer_patterns(root: &Root, start: &Path, stop: &Stop<'_>) -> Result<Vec<Patterns>, Fault> {
    let mut all = Vec::new();
    // With `..` in it, or outside, the way to the start says nothing about what contains it.
    if start == Path::new(".") || !start.components().all(|c| matches!(c, Component::Normal(_))) {
        return Ok(all);
    }
    let mut above: Vec<&Path> = start.ancestors().skip(1).collect();
    above.reverse();
    for base in above {
        let at = if base.as_os_str().is_empty() { Path::new(".") } else { base };
        // One that may be passed through but not read hides nothing.
        if let Ok(place) = root.place(at) {
            all.extend(patterns(&place, base, |_| true, stop)?);
        }
    }
    Ok(all)
}

/// Reads the ignore files of a directory, of those that `exists` does not rule out.
fn patterns(
    place: &OwnedFd,
    base: &Path,
    exists: impl Fn(&str) -> bool,
    stop: &Stop<'_>,
) -> Result<Option<Patterns>, Fault> {
    let mut builder = GitignoreBuilder::new(".");
    for (sign, name) in IGNORE_FILES {
        if !exists(sign) {
            continue;
        }
        // One that cannot be read, or is no regular file, hides nothing.
        let Ok(source) = file_in(place, Path::new(name), base) else { continue };
        let mut bytes = Vec::new();
        if source.file.take(IGNORE_BYTES).read_to_end(&mut bytes).is_err() {
            continue;
        }
        for line in String::from_utf8_lossy(&bytes).trim_start_matches('\u{feff}').lines() {
            stop.check()?;
            // A line that is no pattern hides nothing either, as in git.
            let _ = builder.add_line(None, line);
        }
    }
    match builder.build() {
        Ok(rules) if !rules.is_empty() => Ok(Some(Patterns { base: base.to_path_buf(), rules })),
        _ => Ok(None),
    }
}
