//! Paths of Quell's own configuration, data and keys, which no tool may open and no workdir may contain.
//!
//! A workdir must not be inside one of them either. The file tools refuse these files wherever they are and whatever
//! name is used.

use std::collections::HashSet;
use std::fs::{read_link, symlink_metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::Stat;

/// The maximum number of symlinks followed to a file, as in the kernel.
const MAX_LINKS: usize = 40;

/// The files that no tool of an agent may read or change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProtectedPaths {
    /// Directories, with everything below them.
    pub directories: Vec<PathBuf>,
    /// Files. They need not exist; creating them is refused, too.
    pub files: Vec<PathBuf>,
}

impl ProtectedPaths {
    /// Describes what is wrong with a workdir, symlinks resolved; none when it has nothing in common with the protected
    /// paths. The workdir need not exist.
    #[must_use]
    pub fn workdir_problem(&self, workdir: &Path) -> Option<String> {
        let (shown_workdir, workdir) = (workdir.display(), resolve_existing(workdir));
        for directory in &self.directories {
            let (shown, directory) = (directory.display(), resolve_existing(directory));
            if workdir.starts_with(&directory) {
                return Some(format!(
                    "its workdir {shown_workdir} lies in {shown}, where Quell keeps its keys and its database; move it to a place outside, \
                     such as a directory of its own in $QUELL_WORK, or leave `workdir` out"
                ));
            }
            if directory.starts_with(&workdir) {
                return Some(format!(
                    "its workdir {shown_workdir} holds {shown}, where Quell keeps its keys and its database; choose a directory that does \
                     not, or move the data with QUELL_HOME"
                ));
            }
        }
        let contained_file = self.files.iter().find(|file| path_chain(file).any(|name| name.starts_with(&workdir)))?;
        Some(format!(
            "its workdir {shown_workdir} holds {}, a file of keys or one with which an agent could change what it may do; move that file to a \
             place outside and name it there (quell serve --config FILE, QUELL_CONFIG, or the key that names it), or choose another workdir",
            contained_file.display()
        ))
    }

    /// True when a path is a protected one or lies in one, symlinks resolved. It need not exist.
    pub fn contains(&self, path: &Path) -> bool {
        self.resolve().is_protected_path(&resolve_existing(path))
    }

    /// Resolves the paths for the file tools, once per call.
    pub(super) fn resolve(&self) -> ResolvedProtectedPaths {
        let files: Vec<PathBuf> = self.files.iter().flat_map(|file| path_chain(file)).collect();
        let ids = files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|file| (file.dev(), file.ino()));
        ResolvedProtectedPaths {
            file_ids: ids.collect(),
            directories: self.directories.iter().map(|directory| resolve_existing(directory)).collect(),
            files,
            directory_file_ids: OnceLock::new(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct ResolvedProtectedPaths {
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
    /// Device and inode of each file.
    file_ids: HashSet<(u64, u64)>,
    /// Device and inode of the files directly in the directories; read only when a file with several hard links is
    /// opened.
    directory_file_ids: OnceLock<HashSet<(u64, u64)>>,
}

impl ResolvedProtectedPaths {
    /// True when a protected path may be reachable below this directory, so that opened paths must be checked.
    pub(super) fn may_be_below(&self, root: &Path) -> bool {
        let all = || self.directories.iter().chain(&self.files);
        all().any(|path| path.starts_with(root)) || self.is_protected_path(root)
    }

    /// True for a protected path. `real` contains no symlinks.
    pub(super) fn is_protected_path(&self, real: &Path) -> bool {
        self.directories.iter().any(|directory| real.starts_with(directory))
            || self.files.iter().any(|file| real == file)
    }

    /// True for a protected file that was opened through another hard link.
    pub(super) fn is_hard_link_to_protected(&self, stat: &Stat) -> bool {
        if stat.st_nlink < 2 {
            return false;
        }
        let id = (stat.st_dev, stat.st_ino);
        self.file_ids.contains(&id)
            || self.directory_file_ids.get_or_init(|| file_ids_in(&self.directories)).contains(&id)
    }
}

fn file_ids_in(directories: &[PathBuf]) -> HashSet<(u64, u64)> {
    let entries = directories.iter().filter_map(|directory| std::fs::read_dir(directory).ok()).flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|it| (it.dev(), it.ino())).collect()
}

/// Resolves symlinks in the part of a path that exists.
fn resolve_existing(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for above in whole.ancestors() {
        if let Ok(real) = above.canonicalize() {
            return match whole.strip_prefix(above) {
                Ok(rest) if !rest.as_os_str().is_empty() => real.join(rest),
                _ => real,
            };
        }
    }
    whole
}

/// All paths of a file: its configured path, each symlink on the way to it, and the file itself. Write access to any of
/// them is enough to replace the file.
fn path_chain(file: &Path) -> impl Iterator<Item = PathBuf> {
    let mut paths = vec![std::path::absolute(file).unwrap_or_else(|_| file.to_owned())];
    let mut next = Some(file.to_owned());
    while let Some(named) = next.take().filter(|_| paths.len() <= MAX_LINKS) {
        let (Some(name), folder) = (named.file_name(), named.parent().unwrap_or(Path::new(""))) else { break };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let path = resolve_existing(folder).join(name);
        if symlink_metadata(&path).is_ok_and(|it| it.is_symlink()) {
            next = read_link(&path).ok().map(|target| resolve_existing(folder).join(target));
        }
        paths.push(path);
    }
    paths.into_iter()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    struct ProtectedFixture {
        dir: tempfile::TempDir,
    }

    impl ProtectedFixture {
        /// The fixture has `data`, `work`, and `etc/quell.toml`.
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            for name in ["data", "work", "etc"] {
                fs::create_dir(dir.path().join(name)).unwrap();
            }
            fs::write(dir.path().join("etc/quell.toml"), "").unwrap();
            Self { dir }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn protected(&self, file: &str) -> ProtectedPaths {
            ProtectedPaths { directories: vec![self.path("data")], files: vec![self.path(file)] }
        }

        fn problem(&self, file: &str, workdir: &str) -> String {
            self.protected(file).workdir_problem(&self.path(workdir)).unwrap_or_default()
        }
    }

    #[test]
    fn a_workdir_keeps_away_from_data_and_configuration() {
        let site = ProtectedFixture::new();
        assert_eq!(site.problem("etc/quell.toml", "work"), "");
        assert_eq!(site.problem("etc/quell.toml", "data-work/main"), "", "a name that only begins alike");
        for inside in ["data", "data/work/main", "work/../data/x"] {
            assert!(site.problem("etc/quell.toml", inside).contains("keeps its keys"), "{inside}");
        }
        assert!(site.problem("etc/quell.toml", "").contains("choose a directory that does not"));
        assert!(site.problem("etc/quell.toml", "etc").contains("holds"));
        assert!(site.problem("work/quell.toml", "work").contains("name it"), "it need not exist");
    }

    #[test]
    fn no_symlink_hides_one_in_the_other() {
        let site = ProtectedFixture::new();
        symlink(site.path("data"), site.path("linked")).unwrap();
        assert!(site.problem("etc/quell.toml", "linked").contains("keeps its keys"));
        assert!(site.problem("etc/quell.toml", "linked/new/work").contains("keeps its keys"));
        // The file is named by a link in the workdir, is in the workdir, or is reached through a folder of it.
        symlink(site.path("etc/quell.toml"), site.path("work/linked.toml")).unwrap();
        assert!(site.problem("work/linked.toml", "work").contains("holds"));
        fs::write(site.path("work/real.toml"), "").unwrap();
        symlink(site.path("work/real.toml"), site.path("etc/outer.toml")).unwrap();
        assert!(site.problem("etc/outer.toml", "work").contains("holds"));
        symlink(site.path("work/linked.toml"), site.path("etc/twice.toml")).unwrap();
        assert!(site.problem("etc/twice.toml", "work").contains("holds"), "a link on the way lies there");
        symlink(site.path("etc"), site.path("work/folder")).unwrap();
        assert!(site.problem("work/folder/quell.toml", "work").contains("holds"));
    }
}
