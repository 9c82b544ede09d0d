//! Where the processes of servers start: in directories of their own, in which no agent writes.
//!
//! Many programs load code and settings from their current directory and their home directory before they look
//! elsewhere (`python3 -m`, `node_modules`, `.npmrc`). In a workdir an agent could put them there, and they would run
//! with the key of the server and perhaps outside of the agent's sandbox.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use quell_process::CommandUser;

/// Stands for the workdir of the agent in `args` and in the values of `env`.
const WORKDIR_PLACEHOLDER: &str = "{workdir}";

/// The directories of one server.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerDirectory {
    /// Where the process starts; with a `user` it may read there only.
    pub(super) current: PathBuf,
    /// The home directory of a sandboxed process, which it may change.
    pub(super) home: PathBuf,
}

impl ServerDirectory {
    /// Makes the directories of a server below `parent`, or checks the ones that are there. Each `user` of agents'
    /// commands has a home directory of its own.
    ///
    /// # Errors
    /// A text that names the directory and the reason.
    pub(super) fn create(parent: &Path, server: &str, user: Option<u32>) -> Result<Self, String> {
        let current = parent.join(server);
        let home = current.join(user.map_or("home".to_owned(), |user| format!("home-{user}")));
        let failed = |error: io::Error| format!("its directory {} cannot be made: {error}", current.display());
        match user {
            None => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(&home).map_err(failed)?;
                CommandUser::check_own(&home)?;
            }
            Some(user) => {
                fs::create_dir_all(&current).map_err(failed)?;
                for passed in [parent, &current] {
                    fs::set_permissions(passed, fs::Permissions::from_mode(0o711)).map_err(failed)?;
                }
                CommandUser::new(user)?.create_directory(&home)?;
            }
        }
        // The sandbox opens a directory only if the path that it is given has no symbolic links.
        Ok(Self { current: current.canonicalize().map_err(failed)?, home: home.canonicalize().map_err(failed)? })
    }
}

/// Puts the workdir in place of `{workdir}`.
pub(super) fn with_workdir(text: &str, workdir: &Path) -> String {
    text.replace(WORKDIR_PLACEHOLDER, &workdir.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_an_empty_directory_that_is_closed_to_others() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().canonicalize().unwrap();
        let made = ServerDirectory::create(&parent.path().join(".servers"), "git", None).unwrap();
        assert_eq!(made.current, root.join(".servers/git"));
        assert_eq!(made.home, root.join(".servers/git/home"));
        for directory in [&made.current, &made.home] {
            assert_eq!(fs::metadata(directory).unwrap().permissions().mode() & 0o777, 0o700, "{directory:?}");
        }
        assert_eq!(
            ServerDirectory::create(&root.join(".servers"), "git", None).unwrap(),
            made,
            "also when it is there"
        );
        assert_eq!(fs::read_dir(&made.home).unwrap().count(), 0);
    }

    #[test]
    fn a_place_that_cannot_be_made_is_named() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("git"), "").unwrap();
        let problem = ServerDirectory::create(parent.path(), "git", None).unwrap_err();
        assert!(problem.contains(parent.path().join("git").to_str().unwrap()), "{problem}");
    }

    #[test]
    fn the_placeholder_is_the_workdir() {
        assert_eq!(with_workdir("--root={workdir}/src", Path::new("/work/main")), "--root=/work/main/src");
        assert_eq!(with_workdir("{other}", Path::new("/work/main")), "{other}");
    }
}
