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
use quell_protocol::AgentId;

/// Stands for the workdir of the agent in `args` and in the values of `env`.
pub(super) const WORKDIR_PLACEHOLDER: &str = "{workdir}";

/// The directories of one server.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerDirectory {
    /// Where the process starts; with a `user` it may read there only.
    pub(super) current: PathBuf,
    /// The home directory of a sandboxed process, which it may change.
    pub(super) home: PathBuf,
}

/// Whose home directory a process gets; with the user of agents' commands that it runs as, if that is not the daemon's.
#[derive(Debug, Clone, Copy)]
pub(super) enum ServerHome<'a> {
    OfAgent(&'a AgentId, Option<u32>),
    Shared(Option<u32>),
}

impl ServerHome<'_> {
    fn user(self) -> Option<u32> {
        match self {
            Self::OfAgent(_, user) | Self::Shared(user) => user,
        }
    }

    fn directory_name(self) -> String {
        let owner = match self {
            Self::OfAgent(agent, _) => format!("home-{}", agent.as_str().replace(['/', '\\', '.'], "_")),
            Self::Shared(_) => "home".to_owned(),
        };
        self.user().map_or(owner.clone(), |user| format!("{owner}-{user}"))
    }
}

impl ServerDirectory {
    /// Makes the directories of a server below `parent` that are not there.
    ///
    /// # Errors
    /// A text that names the directory and the reason.
    pub(super) fn create(parent: &Path, server: &str, home: ServerHome<'_>) -> Result<Self, String> {
        let (current, user) = (parent.join(server), home.user());
        let home = current.join(home.directory_name());
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
        let (root, agent) = (parent.path().canonicalize().unwrap(), AgentId::parse("main").unwrap());
        let made =
            ServerDirectory::create(&parent.path().join(".servers"), "git", ServerHome::OfAgent(&agent, None)).unwrap();
        assert_eq!(made.current, root.join(".servers/git"));
        assert_eq!(made.home, root.join(".servers/git/home-main"));
        for directory in [&made.current, &made.home] {
            assert_eq!(fs::metadata(directory).unwrap().permissions().mode() & 0o777, 0o700, "{directory:?}");
        }
        assert_eq!(
            ServerDirectory::create(&root.join(".servers"), "git", ServerHome::OfAgent(&agent, None)).unwrap(),
            made,
            "also when it is there"
        );
        assert_eq!(fs::read_dir(&made.home).unwrap().count(), 0);
    }

    #[test]
    fn a_place_that_cannot_be_made_is_named() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("git"), "").unwrap();
        let problem = ServerDirectory::create(parent.path(), "git", ServerHome::Shared(None)).unwrap_err();
        assert!(problem.contains(parent.path().join("git").to_str().unwrap()), "{problem}");
    }

    #[test]
    fn the_placeholder_is_the_workdir() {
        assert_eq!(with_workdir("--root={workdir}/src", Path::new("/work/main")), "--root=/work/main/src");
        assert_eq!(with_workdir("{other}", Path::new("/work/main")), "{other}");
    }
}
