//! The places of the file system that a sandbox treats specially, in the order in which they cover each other.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use quell_protocol::sandbox::SandboxMode;

use super::SandboxSpec;

/// Directories with sockets of services, and with files of other programs: each command gets empty ones of its own.
const PRIVATE_DIRECTORIES: [&str; 3] = ["/run", "/tmp", "/var/tmp"];

/// What programs need of `/run`: the addresses of name servers, and the programs of NixOS.
const NEEDED_IN_RUN: [&str; 3] = ["/etc/resolv.conf", "/run/current-system", "/run/opengl-driver"];

/// Entries of a home directory that are shown. Each is a mount of every command, of some 20 µs.
const MAX_SHOWN_IN_HOME: usize = 500;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PlaceAccess {
    /// Covered.
    Hidden,
    ReadOnly,
    /// As `ReadOnly`, but left out if it cannot be opened: an entry of a home directory may be gone by now, or be a file
    /// system that does not answer.
    Shown,
    ReadWrite,
    /// Empty, to read and write, gone with the command.
    Private,
    /// Another directory, shown here, to read and write.
    Replaced(PathBuf),
}

impl PlaceAccess {
    pub(super) fn is_hidden(&self) -> bool {
        matches!(self, Self::Hidden | Self::Private | Self::Replaced(_))
    }
}

/// The places, each before those inside of it. The innermost place that contains a path decides; no place is inside of
/// a protected one. Symbolic links are resolved, and places that do not exist are left out.
pub(super) fn places(spec: &SandboxSpec) -> BTreeMap<PathBuf, PlaceAccess> {
    let protected = resolve(&spec.protected);
    let mut places = BTreeMap::new();
    if !spec.is_off() {
        places.extend(resolve(&spec.hidden).into_iter().map(|path| (path, PlaceAccess::Hidden)));
        for home in resolve(&spec.closed_homes) {
            let is_open = unmoved(&spec.writable).chain(unmoved(&spec.readable)).any(|open| home.starts_with(open));
            // A home directory below `/tmp` is hidden with it.
            let is_private = PRIVATE_DIRECTORIES.iter().any(|directory| home.starts_with(directory));
            if is_open || !is_private {
                close_home(&home, is_open, &mut places);
            }
        }
        let needed = resolve(NEEDED_IN_RUN).into_iter().filter(|path| path.starts_with("/run"));
        let readable = unmoved(&spec.readable).chain(needed);
        places.extend(readable.map(|path| (path, PlaceAccess::ReadOnly)));
        let is_read_only = spec.mode == SandboxMode::ReadOnly;
        let writable = if is_read_only { PlaceAccess::ReadOnly } else { PlaceAccess::ReadWrite };
        places.extend(unmoved(&spec.writable).map(|path| (path, writable.clone())));
        places.extend(resolve(&spec.home).into_iter().map(|path| (path, PlaceAccess::ReadWrite)));
        for directory in resolve(PRIVATE_DIRECTORIES) {
            let access = match &spec.temporary {
                Some(temporary) if !directory.starts_with("/run") => PlaceAccess::Replaced(temporary.clone()),
                _ => PlaceAccess::Private,
            };
            places.entry(directory).or_insert(access);
        }
    }
    places.retain(|path, _| !protected.iter().any(|protected| path.starts_with(protected)));
    places.extend(protected.into_iter().map(|path| (path, PlaceAccess::Hidden)));
    without_repetitions(places)
}

/// Hides a home directory but for the entries that are shown. If it `is_open` as a whole, as a workdir or as a part of one,
/// each of the other entries is hidden: one that is made later is not.
fn close_home(home: &Path, is_open: bool, places: &mut BTreeMap<PathBuf, PlaceAccess>) {
    let (mut shown, mut others) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(home).into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        let has_dot = entry.file_name().as_encoded_bytes().starts_with(b".");
        match (has_dot, kind.is_symlink()) {
            (false, false) if kind.is_file() || kind.is_dir() => shown.push(entry.path()),
            // What `~/.ssh -> dotfiles/ssh` leads to is hidden, too; but not all that is around it.
            (true, true) => {
                others.extend(entry.path().canonicalize().into_iter().filter(|target| !home.starts_with(target)));
            }
            // What a plain link leads to is a place of its own.
            (false, true) => {}
            (_, false) => others.push(entry.path()),
        }
    }
    if !is_open {
        places.insert(home.to_owned(), PlaceAccess::Hidden);
        for path in shown.into_iter().take(MAX_SHOWN_IN_HOME) {
            places.entry(path).or_insert(PlaceAccess::Shown);
        }
    }
    places.extend(others.into_iter().map(|path| (path, PlaceAccess::Hidden)));
}

/// Adds each directory above a place that could be renamed: as a place of its own it is a mount point, which the kernel
/// refuses to rename (EBUSY). Otherwise the next command, which finds places by their paths, would see what was moved
/// away, or use what was put there.
pub(super) fn with_fixed_ancestors(
    places: BTreeMap<PathBuf, PlaceAccess>,
    is_off: bool,
) -> BTreeMap<PathBuf, PlaceAccess> {
    let is_writable = |directory: &Path| match directory.ancestors().find_map(|outer| places.get(outer)) {
        Some(PlaceAccess::ReadWrite) => true,
        Some(_) => false,
        None => is_off,
    };
    let ancestors = places.keys().flat_map(|path| path.ancestors().skip(1));
    let renameable = ancestors.filter(|directory| directory.parent().is_some() && is_writable(directory));
    let fixed: Vec<PathBuf> =
        renameable.filter(|directory| !places.contains_key(*directory)).map(Path::to_owned).collect();
    places.into_iter().chain(fixed.into_iter().map(|directory| (directory, PlaceAccess::ReadWrite))).collect()
}

/// Leaves out what is hidden inside of something hidden.
fn without_repetitions(places: BTreeMap<PathBuf, PlaceAccess>) -> BTreeMap<PathBuf, PlaceAccess> {
    let is_repeated = |path: &Path, access: &PlaceAccess| {
        let outer = path.ancestors().skip(1).find_map(|ancestor| places.get(ancestor));
        *access == PlaceAccess::Hidden && outer.is_some_and(PlaceAccess::is_hidden)
    };
    places
        .iter()
        .filter(|(path, access)| !is_repeated(path, access))
        .map(|(path, access)| (path.clone(), access.clone()))
        .collect()
}

/// Those that still are where they were when the agent was configured: another agent may have put a link there since.
fn unmoved(paths: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
    paths.iter().filter(|path| path.canonicalize().is_ok_and(|real| real == **path)).cloned()
}

fn resolve<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Vec<PathBuf> {
    paths.into_iter().filter_map(|path| path.as_ref().canonicalize().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct PlacesFixture {
        dir: tempfile::TempDir,
    }

    impl PlacesFixture {
        fn new() -> Self {
            // Not in /tmp, which every command gets anew.
            let dir = tempfile::tempdir_in("/dev/shm").unwrap();
            for name in ["home/.ssh", "home/data/backup", "work/main", "work/other"] {
                std::fs::create_dir_all(dir.path().join(name)).unwrap();
            }
            Self { dir }
        }

        fn paths(&self, names: &[&str]) -> Vec<PathBuf> {
            names.iter().map(|name| self.dir.path().canonicalize().unwrap().join(name)).collect()
        }

        /// The access of the places inside of this fixture, by their name in it.
        fn places(&self, spec: &SandboxSpec) -> Vec<(String, PlaceAccess)> {
            let root = self.dir.path().canonicalize().unwrap();
            let inside = places(spec)
                .into_iter()
                .filter_map(|(path, access)| Some((path.strip_prefix(&root).ok()?.to_str()?.to_owned(), access)));
            inside.collect()
        }
    }

    fn named(places: &[(&str, PlaceAccess)]) -> Vec<(String, PlaceAccess)> {
        places.iter().map(|(name, access)| ((*name).to_owned(), access.clone())).collect()
    }

    #[test]
    fn the_innermost_place_decides_and_outer_ones_come_first() {
        let fixture = PlacesFixture::new();
        let spec = SandboxSpec {
            hidden: fixture.paths(&["work", "work/other", "home/.ssh", "home/missing"]),
            writable: fixture.paths(&["work/main"]),
            ..SandboxSpec::new(SandboxMode::Workspace)
        };
        let expected =
            [("home/.ssh", PlaceAccess::Hidden), ("work", PlaceAccess::Hidden), ("work/main", PlaceAccess::ReadWrite)];
        assert_eq!(fixture.places(&spec), named(&expected));
    }

    #[test]
    fn of_a_home_directory_only_plain_entries_are_shown() {
        let fixture = PlacesFixture::new();
        let home = fixture.dir.path().join("home");
        std::fs::write(home.join(".netrc"), "").unwrap();
        std::fs::write(home.join("notes"), "").unwrap();
        std::fs::create_dir(home.join(".toolchain")).unwrap();
        symlink("/etc", home.join("link")).unwrap();
        symlink("data/backup", home.join(".vault")).unwrap();
        symlink("..", home.join(".up")).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(home.join("docker.sock")).unwrap();
        let closed = SandboxSpec {
            closed_homes: fixture.paths(&["home"]),
            hidden: fixture.paths(&["home/notes"]),
            readable: fixture.paths(&["home/.toolchain"]),
            writable: fixture.paths(&["work/main"]),
            ..SandboxSpec::new(SandboxMode::Workspace)
        };
        let expected = [
            ("home", PlaceAccess::Hidden),
            ("home/.toolchain", PlaceAccess::ReadOnly),
            ("home/data", PlaceAccess::Shown),
            ("home/data/backup", PlaceAccess::Hidden),
            ("work/main", PlaceAccess::ReadWrite),
        ];
        assert_eq!(fixture.places(&closed), named(&expected));
        // A workdir around it opens what is shown, and nothing else.
        let open = SandboxSpec { writable: fixture.paths(&["home"]), hidden: Vec::new(), ..closed };
        let expected = [
            ("home", PlaceAccess::ReadWrite),
            ("home/.netrc", PlaceAccess::Hidden),
            ("home/.ssh", PlaceAccess::Hidden),
            ("home/.toolchain", PlaceAccess::ReadOnly),
            ("home/data/backup", PlaceAccess::Hidden),
            ("home/docker.sock", PlaceAccess::Hidden),
        ];
        assert_eq!(fixture.places(&open), named(&expected));
    }

    #[test]
    fn nothing_opens_what_is_protected() {
        let fixture = PlacesFixture::new();
        symlink(fixture.dir.path().join("home/data"), fixture.dir.path().join("link")).unwrap();
        let spec = SandboxSpec {
            protected: fixture.paths(&["link"]),
            readable: fixture.paths(&["link/backup"]),
            writable: fixture.paths(&["home", "home/data", "home/data/backup"]),
            ..SandboxSpec::new(SandboxMode::Workspace)
        };
        let expected = [("home", PlaceAccess::ReadWrite), ("home/data", PlaceAccess::Hidden)];
        assert_eq!(fixture.places(&spec), named(&expected));
    }

    #[test]
    fn directories_above_a_place_cannot_be_renamed() {
        let fixture = PlacesFixture::new();
        let spec = SandboxSpec {
            hidden: fixture.paths(&["home/data/backup"]),
            writable: fixture.paths(&["home"]),
            ..SandboxSpec::new(SandboxMode::Workspace)
        };
        let fixed = with_fixed_ancestors(places(&spec), false);
        assert_eq!(fixed.get(&fixture.paths(&["home/data"])[0]), Some(&PlaceAccess::ReadWrite));
        assert!(!fixed.contains_key(fixture.dir.path()), "it is read-only");
        let off = SandboxSpec { protected: fixture.paths(&["home/data"]), ..SandboxSpec::new(SandboxMode::Off) };
        let fixed = with_fixed_ancestors(places(&off), true);
        let root = fixture.dir.path().canonicalize().unwrap();
        for directory in root.join("home").ancestors().filter(|directory| directory.parent().is_some()) {
            assert_eq!(fixed.get(directory), Some(&PlaceAccess::ReadWrite), "{}", directory.display());
        }
    }

    #[test]
    fn a_place_that_became_a_link_is_not_opened() {
        let fixture = PlacesFixture::new();
        symlink(fixture.dir.path().join("home"), fixture.dir.path().join("work/link")).unwrap();
        let spec = SandboxSpec {
            writable: fixture.paths(&["work/link", "work/main"]),
            readable: fixture.paths(&["work/link"]),
            ..SandboxSpec::new(SandboxMode::Workspace)
        };
        assert_eq!(fixture.places(&spec), named(&[("work/main", PlaceAccess::ReadWrite)]));
    }

    #[test]
    fn switched_off_hides_only_what_is_protected() {
        let fixture = PlacesFixture::new();
        let spec = SandboxSpec {
            protected: fixture.paths(&["home/data"]),
            hidden: fixture.paths(&["home/.ssh"]),
            writable: fixture.paths(&["work"]),
            ..SandboxSpec::new(SandboxMode::Off)
        };
        assert_eq!(places(&spec).into_keys().collect::<Vec<_>>(), fixture.paths(&["home/data"]));
    }
}
