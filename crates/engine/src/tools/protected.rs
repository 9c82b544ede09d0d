//! Quell's own files: the configuration in force, the data directory, the admin token. No workdir may hold them or lie in them,
//! and no file tool opens them, wherever they lie and by whatever name.

use std::collections::HashSet;
use std::fs::{read_link, symlink_metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::Stat;

/// Symlinks that are followed to a file, as the kernel does.
const MOST_LINKS: usize = 40;

/// What no tool of an agent may read or change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Protected {
    /// Directories with all below them.
    pub directories: Vec<PathBuf>,
    /// Files. They need not exist: nobody may put something there either.
    pub files: Vec<PathBuf>,
}

impl Protected {
    /// What is wrong with a workdir; none when it keeps away from everything here, through symlinks too. It need not exist.
    #[must_use]
    pub fn problem_of(&self, workdir: &Path) -> Option<String> {
        let (place, workdir) = (workdir.display(), resolved(workdir));
        for directory in &self.directories {
            let (shown, directory) = (directory.display(), resolved(directory));
            if workdir.starts_with(&directory) {
                return Some(format!(
                    "its workdir {place} lies in {shown}, where Quell keeps its keys and its database; move it to a place outside, \
                     such as a directory of its own in $QUELL_WORK, or leave `workdir` out"
                ));
            }
            if directory.starts_with(&workdir) {
                return Some(format!(
                    "its workdir {place} holds {shown}, where Quell keeps its keys and its database; choose a directory that does \
                     not, or move the data with QUELL_HOME"
                ));
            }
        }
        let held = self.files.iter().find(|file| places_of(file).any(|name| name.starts_with(&workdir)))?;
        Some(format!(
            "its workdir {place} holds {}, a file of keys or one with which an agent could change what it may do; move that file to a \
             place outside and name it there (quell serve --config FILE, QUELL_CONFIG, or the key that names it), or choose another workdir",
            held.display()
        ))
    }

    /// The same as the file tools need it, once for each call.
    pub(super) fn border(&self) -> Border {
        let files: Vec<PathBuf> = self.files.iter().flat_map(|file| places_of(file)).collect();
        let ids = files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|file| (file.dev(), file.ino()));
        Border {
            ids: ids.collect(),
            directories: self.directories.iter().map(|directory| resolved(directory)).collect(),
            files,
            inside: OnceLock::new(),
        }
    }
}

/// What is protected, as the kernel calls it.
#[derive(Debug, Default)]
pub(super) struct Border {
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
    /// Device and inode of the files.
    ids: HashSet<(u64, u64)>,
    /// The same of the files right in the directories; read when a file with several names is opened.
    inside: OnceLock<HashSet<(u64, u64)>>,
}

impl Border {
    /// True when something protected may be reached below this directory, so that paths have to be looked at.
    pub(super) fn is_near(&self, root: &Path) -> bool {
        let all = || self.directories.iter().chain(&self.files);
        all().any(|place| place.starts_with(root)) || self.covers(root)
    }

    /// True for a protected place. `real` has no symlinks in it.
    pub(super) fn covers(&self, real: &Path) -> bool {
        self.directories.iter().any(|directory| real.starts_with(directory))
            || self.files.iter().any(|file| real == file)
    }

    /// True for a protected file that was opened by another of its names.
    pub(super) fn is_another_name(&self, stat: &Stat) -> bool {
        if stat.st_nlink < 2 {
            return false;
        }
        let id = (stat.st_dev, stat.st_ino);
        self.ids.contains(&id) || self.inside.get_or_init(|| ids_in(&self.directories)).contains(&id)
    }
}

fn ids_in(directories: &[PathBuf]) -> HashSet<(u64, u64)> {
    let entries = directories.iter().filter_map(|directory| std::fs::read_dir(directory).ok()).flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|it| (it.dev(), it.ino())).collect()
}

/// A path without symlinks as far as it exists.
fn resolved(path: &Path) -> PathBuf {
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

/// Where a file lies: as it is named, each symlink on the way to it, and the file itself. Who can write any of them can put another
/// file in its place.
fn places_of(file: &Path) -> impl Iterator<Item = PathBuf> {
    let mut places = vec![std::path::absolute(file).unwrap_or_else(|_| file.to_owned())];
    let mut next = Some(file.to_owned());
    while let Some(named) = next.take().filter(|_| places.len() <= MOST_LINKS) {
        let (Some(name), folder) = (named.file_name(), named.parent().unwrap_or(Path::new(""))) else { break };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let place = resolved(folder).join(name);
        if symlink_metadata(&place).is_ok_and(|it| it.is_symlink()) {
            next = read_link(&place).ok().map(|target| resolved(folder).join(target));
        }
        places.push(place);
    }
    places.into_iter()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    struct Site {
        dir: tempfile::TempDir,
    }

    impl Site {
        /// `data`, `work`, and `etc/quell.toml`.
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

        fn protected(&self, file: &str) -> Protected {
            Protected { directories: vec![self.path("data")], files: vec![self.path(file)] }
        }

        fn problem(&self, file: &str, workdir: &str) -> String {
            self.protected(file).problem_of(&self.path(workdir)).unwrap_or_default()
        }
    }

    #[test]
    fn a_workdir_keeps_away_from_data_and_configuration() {
        let site = Site::new();
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
        let site = Site::new();
        symlink(site.path("data"), site.path("linked")).unwrap();
        assert!(site.problem("etc/quell.toml", "linked").contains("keeps its keys"));
        assert!(site.problem("etc/quell.toml", "linked/new/work").contains("keeps its keys"));
        // The file is named by a link in the workdir, lies in it, or is reached through a folder of it.
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
