//! The user that an agent's commands run as (`run_as`), and the directories that belong to it.
//!
//! Directories that Quell makes are made for that user. It never changes the owner of what is there: an agent could have
//! put links there.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use rustix::process::geteuid;

/// User and group id, which are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandUser(u32);

impl CommandUser {
    /// # Errors
    /// The id is not that of an ordinary user, or this process does not run as root, so that its commands cannot run as
    /// another user.
    pub fn new(id: u32) -> Result<Self, String> {
        let own = geteuid();
        // The kernel takes the last number for "no change".
        if id == 0 || id == u32::MAX {
            return Err(format!("{id} is not the id of an ordinary user"));
        }
        if !own.is_root() {
            return Err(format!("the daemon runs as user {own} and not as root, so its commands run as {own}, too"));
        }
        Ok(Self(id))
    }

    /// Checks that a directory of commands without a user of their own is this user's. It is another's after `run_as` was
    /// taken out.
    ///
    /// # Errors
    /// A text with the command that gives it back.
    pub fn check_own(path: &Path) -> Result<(), String> {
        let (own, owner) = (geteuid().as_raw(), fs::metadata(path).map_or(0, |metadata| metadata.uid()));
        if own == owner || own != 0 {
            return Ok(());
        }
        let path = path.display();
        Err(format!(
            "{path} belongs to user {owner}, as after another `run_as`; give it back with `chown -R 0:0 {path}`"
        ))
    }

    /// Whether the user can enter this directory, and all above it.
    pub fn can_enter(self, path: &Path) -> bool {
        path.ancestors().all(|above| fs::metadata(above).is_ok_and(|metadata| self.has_right(&metadata, 0o1)))
    }

    /// Makes a directory for the user alone, or checks that an existing one can be reached and changed.
    ///
    /// # Errors
    /// A text with the command that gives the user what it lacks.
    pub fn create_directory(self, path: &Path) -> Result<(), String> {
        let Self(id) = self;
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => self.own_new_directory(path).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
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
        if self.has_right(&metadata, 0o3) {
            return Ok(());
        }
        let path = path.display();
        Err(format!("user {id} cannot change {path}; give it the directory with `chown -R {id}:{id} {path}`"))
    }

    fn own_new_directory(self, path: &Path) -> io::Result<()> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let directory = File::options().read(true).custom_flags(flags).open(path)?;
        fchown(&directory, Some(self.0), Some(self.0))
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
    fn a_new_directory_is_the_user_s_and_another_must_be_open_to_it() {
        let Ok(user) = CommandUser::new(ID) else { return eprintln!("skipped: needs root") };
        let place = tempfile::tempdir().unwrap();
        let (above, path) = (place.path().join("above"), place.path().join("above/work"));
        fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(&above).unwrap();
        fs::set_permissions(&above, Permissions::from_mode(0o700)).unwrap();
        let problem = user.create_directory(&path).unwrap_err();
        assert!(problem.contains("cannot enter") && problem.contains("QUELL_WORK"), "{problem}");
        fs::set_permissions(&above, Permissions::from_mode(0o711)).unwrap();
        user.create_directory(&path).unwrap();
        assert_eq!((owner(&path), fs::metadata(&path).unwrap().mode() & 0o777), (ID, 0o700));
        assert!(user.can_enter(&path) && !CommandUser::new(ID + 1).unwrap().can_enter(&path));
        let taken = above.join("taken");
        fs::create_dir(&taken).unwrap();
        let problem = user.create_directory(&taken).unwrap_err();
        assert!(problem.contains(&format!("chown -R {ID}:{ID} {}", taken.display())), "{problem}");
        assert_eq!(owner(&taken), 0);
        fs::set_permissions(&taken, Permissions::from_mode(0o777)).unwrap();
        user.create_directory(&taken).unwrap();
        assert_eq!(owner(&taken), 0);
    }

    #[test]
    fn numbers_that_are_no_ordinary_user_are_refused() {
        for id in [0, u32::MAX] {
            assert!(CommandUser::new(id).unwrap_err().contains("ordinary user"));
        }
    }
}
