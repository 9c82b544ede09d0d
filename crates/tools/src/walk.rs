//! Walk a directory tree in path order by directory handles, honouring ignore files.
//!
//! Handles keep the walk inside the workdir. The `ignore` crate parses the patterns but does not read the tree: its own
//! walker goes by path and opens ignore files without a check, and a `.gitignore` that is a named pipe would block the
//! thread forever. Every step here checks the stop flag.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{AtFlags, Dir, FileType};

use crate::confined_fs::{WorkdirRoot, open_directory_in, open_file_in};
use crate::file_tool::{FileToolError, StopFlag};
use crate::glob_pattern::check_glob_limits;

/// Deeper directories are skipped, because each level holds a file descriptor.
const MAX_LEVELS: usize = 100;
/// The walk ends after this many entries.
const MAX_ENTRIES: usize = 1_000_000;
/// How much of an ignore file is read.
const MAX_IGNORE_FILE_BYTES: u64 = 64 * 1024;
/// The ignore files, as pairs of the entry that must exist and the file; the strongest last.
const IGNORE_FILES: [(&str, &str); 3] =
    [(".git", ".git/info/exclude"), (".gitignore", ".gitignore"), (".ignore", ".ignore")];

pub(super) struct WalkEntry<'a> {
    pub(super) directory: BorrowedFd<'a>,
    pub(super) name: &'a OsStr,
    /// Relative to the workdir, or absolute outside of it.
    pub(super) path: &'a Path,
    pub(super) kind: FileType,
}

/// What a walk left out, apart from ignored entries.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct WalkOmissions {
    /// Directories that could not be read or are too deep.
    pub(super) directories: usize,
    /// True when the tree has too many entries.
    pub(super) has_more: bool,
}

/// Walks below the directory `start`, at most `depth` levels. Calls `visit` for each entry that no ignore file hides;
/// `visit` can end the walk. Symlinks are visited but not followed; `.git` is skipped.
pub(super) fn walk(
    root: &WorkdirRoot,
    start: &Path,
    depth: usize,
    stop: &StopFlag<'_>,
    visit: &mut dyn FnMut(&WalkEntry<'_>) -> Result<ControlFlow<()>, FileToolError>,
) -> Result<WalkOmissions, FileToolError> {
    let dir = root.open_directory(start)?;
    let mut walk = DirectoryWalk {
        stop,
        ancestor_rules: ancestor_ignore_rules(root, start, stop)?,
        levels: Vec::new(),
        entry_count: 0,
        omitted: WalkOmissions::default(),
    };
    let base = if start == Path::new(".") { PathBuf::new() } else { start.to_path_buf() };
    walk.enter_directory(dir, base)?;
    while let Some((entry_name, kind)) = walk.next_entry() {
        stop.check()?;
        let level_count = walk.levels.len();
        let Some(level) = walk.levels.last() else { break };
        let path = level.path.join(&entry_name);
        if walk.is_ignored(&path, kind == FileType::Directory) {
            continue;
        }
        let entry = WalkEntry { directory: level.directory.as_fd(), name: &entry_name, path: &path, kind };
        if visit(&entry)?.is_break() {
            break;
        }
        if kind != FileType::Directory || level_count >= depth {
            continue;
        }
        match open_directory_in(&level.directory, Path::new(&entry_name)) {
            Ok(inner) if level_count < MAX_LEVELS && root.is_allowed_place(&inner, None) => {
                walk.enter_directory(inner, path)?
            }
            _ => walk.omitted.directories += 1,
        }
    }
    Ok(walk.omitted)
}

struct DirectoryWalk<'a> {
    stop: &'a StopFlag<'a>,
    /// The rules of the directories between the workdir and the start, outermost first.
    ancestor_rules: Vec<IgnoreRules>,
    levels: Vec<WalkLevel>,
    entry_count: usize,
    omitted: WalkOmissions,
}

struct WalkLevel {
    directory: OwnedFd,
    path: PathBuf,
    ignore_rules: Option<IgnoreRules>,
    /// The entries that are not visited yet, the next one last.
    pending: Vec<(OsString, FileType)>,
}

struct IgnoreRules {
    base: PathBuf,
    rules: Gitignore,
}

impl DirectoryWalk<'_> {
    fn enter_directory(&mut self, dir: OwnedFd, base: PathBuf) -> Result<(), FileToolError> {
        let mut rest = Vec::new();
        let Ok(directory) = Dir::read_from(&dir) else {
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
            if self.entry_count == MAX_ENTRIES {
                self.omitted.has_more = true;
                break;
            }
            self.entry_count += 1;
            rest.push((name.to_owned(), file_type_of(&dir, name, entry.file_type())));
        }
        let patterns = read_ignore_rules(&dir, &base, |name| rest.iter().any(|(n, _)| n == name), self.stop)?;
        rest.retain(|(name, _)| name != ".git");
        rest.sort_unstable_by(|a, b| b.0.cmp(&a.0));
        self.levels.push(WalkLevel { directory: dir, path: base, ignore_rules: patterns, pending: rest });
        Ok(())
    }

    fn next_entry(&mut self) -> Option<(OsString, FileType)> {
        loop {
            let level = self.levels.last_mut()?;
            match level.pending.pop() {
                Some(entry) => return Some(entry),
                None => self.levels.pop(),
            };
        }
    }

    fn is_ignored(&self, path: &Path, is_directory: bool) -> bool {
        let inner = self.levels.iter().filter_map(|level| level.ignore_rules.as_ref());
        for patterns in self.ancestor_rules.iter().chain(inner).rev() {
            let below = path.strip_prefix(&patterns.base).unwrap_or(path);
            match patterns.rules.matched(below, is_directory) {
                ignore::Match::None => {}
                matched => return matched.is_ignore(),
            }
        }
        false
    }
}

fn file_type_of(dir: &OwnedFd, name: &OsStr, reported: FileType) -> FileType {
    if reported != FileType::Unknown {
        return reported;
    }
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
}

fn ancestor_ignore_rules(
    root: &WorkdirRoot,
    start: &Path,
    stop: &StopFlag<'_>,
) -> Result<Vec<IgnoreRules>, FileToolError> {
    let mut all = Vec::new();
    // If the path contains `..` or is outside the workdir, its ancestors are unknown.
    if start == Path::new(".") || !start.components().all(|c| matches!(c, Component::Normal(_))) {
        return Ok(all);
    }
    let mut above: Vec<&Path> = start.ancestors().skip(1).collect();
    above.reverse();
    for base in above {
        let at = if base.as_os_str().is_empty() { Path::new(".") } else { base };
        // A directory that cannot be opened contributes no rules.
        if let Ok(dir) = root.open_target_directory(at) {
            all.extend(read_ignore_rules(&dir, base, |_| true, stop)?);
        }
    }
    Ok(all)
}

/// Reads the ignore files of a directory, except those for which `exists` returns false.
fn read_ignore_rules(
    dir: &OwnedFd,
    base: &Path,
    exists: impl Fn(&str) -> bool,
    stop: &StopFlag<'_>,
) -> Result<Option<IgnoreRules>, FileToolError> {
    let mut builder = GitignoreBuilder::new(".");
    for (sign, name) in IGNORE_FILES {
        if !exists(sign) {
            continue;
        }
        // A file that cannot be read, or is no regular file, contributes no rules.
        let Ok(source) = open_file_in(dir, Path::new(name), base) else { continue };
        let mut bytes = Vec::new();
        if source.file.take(MAX_IGNORE_FILE_BYTES).read_to_end(&mut bytes).is_err() {
            continue;
        }
        for line in String::from_utf8_lossy(&bytes).trim_start_matches('\u{feff}').lines() {
            stop.check()?;
            // An invalid line is ignored, as in git; so is one that no person has written.
            if check_glob_limits(line).is_ok() {
                let _ = builder.add_line(None, line);
            }
        }
    }
    match builder.build() {
        Ok(rules) if !rules.is_empty() => Ok(Some(IgnoreRules { base: base.to_path_buf(), rules })),
        _ => Ok(None),
    }
}
