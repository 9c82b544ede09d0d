//! The user that an agent's commands run as (`run_as`), and the directories that belong to it.
//!
//! Directories that Quell makes are given to that user while they are empty. It never changes the owner of files that
//! are there: an agent could have put links between them.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, fchown, lchown};
use std::path::Path;

use rustix::process::geteuid;

/// User and group id, which are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandUser(u32);

impl CommandUser {
    /// # Errors
    /// This process does not run as root, so its commands cannot run as another user.
    pub fn new(id: u32) -> Result<Self, String> {
        let own = geteuid();
        if !own.is_root() {
            return Err(format!("the daemon runs as user {own} and not as root, so its commands run as {own}, too"));
        }
        Ok(Self(id))
    }

    /// Gives the user a file that Quell has made.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn own_file(self, file: &File) -> io::Result<()> {
        fchown(file, Some(self.0), Some(self.0))
    }

    /// Gives the user an empty directory, and checks that another one can be reached and changed.
    ///
    /// # Errors
    /// A text with the command that gives the user what it lacks.
    pub fn own_directory(self, path: &Path) -> Result<(), String> {
        let Self(id) = self;
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        for above in path.ancestors().skip(1) {
            if !self.has_right(&fs::metadata(above).map_err(failed)?, 0o1) {
                return Err(format!(
                    "user {id} cannot enter {}, which is above {}; set `workdir`, or QUELL_WORK for all agents, to a \
                     place that every user can enter, such as /srv/quell-work",
                    above.display(),
                    path.display()
                ));
            }
        }
        let metadata = fs::metadata(path).map_err(failed)?;
        let is_empty = fs::read_dir(path).map_err(failed)?.next().is_none();
        if is_empty && metadata.uid() == 0 {
            return lchown(path, Some(id), Some(id)).map_err(failed);
        }
        if self.has_right(&metadata, 0o3) {
            return Ok(());
        }
        let path = path.display();
        Err(format!("user {id} cannot change {path}; give it the directory with `chown -R {id}:{id} {path}`"))
    }

    /// Whether a directory with this metadata grants these rights, as bits of its mode for one class of users.
    fn has_right(self, metadata: &Metadata, right: u32) -> bool {
        let shift = match (metadata.uid() == self.0, metadata.gid() == self.0) {
            (true, _) => 6,
            (false, true) => 3,
            (false, false) => 0,
        };
        (metadata.mode() >> shift) & right == right
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const ID: u32 = 20_001;

    fn owner(path: &Path) -> u32 {
        fs::metadata(path).unwrap().uid()
    }

    #[test]
    fn an_empty_directory_is_given_and_another_must_be_the_user_s() {
        let Ok(user) = CommandUser::new(ID) else { return eprintln!("skipped: needs root") };
        let place = tempfile::tempdir().unwrap();
        let (above, path) = (place.path().join("above"), place.path().join("above/work"));
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&above, Permissions::from_mode(0o700)).unwrap();
        let problem = user.own_directory(&path).unwrap_err();
        assert!(problem.contains("cannot enter") && problem.contains("QUELL_WORK"), "{problem}");
        fs::set_permissions(&above, Permissions::from_mode(0o711)).unwrap();
        user.own_directory(&path).unwrap();
        assert_eq!(owner(&path), ID);
        let (taken, file) = (above.join("taken"), above.join("taken/file"));
        fs::create_dir(&taken).unwrap();
        fs::write(&file, "").unwrap();
        let problem = user.own_directory(&taken).unwrap_err();
        assert!(problem.contains(&format!("chown -R {ID}:{ID} {}", taken.display())), "{problem}");
        assert_eq!((owner(&taken), owner(&file)), (0, 0));
        fs::set_permissions(&taken, Permissions::from_mode(0o777)).unwrap();
        user.own_directory(&taken).unwrap();
        assert_eq!(owner(&taken), 0);
    }
}
