//! The programs of PostgreSQL on this machine, and the empty data directory that tests copy.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::geteuid;

use crate::or_fail::OrFail as _;

const OLDEST_VERSION: u32 = 15;
/// PostgreSQL refuses to run as root. A test of root runs it as this user, `nobody`.
const USER_FOR_ROOT: u32 = 65534;

/// Where the programs of PostgreSQL are.
#[derive(Debug)]
pub(super) struct ServerPrograms {
    dir: PathBuf,
    /// Such as `15.18`.
    version: String,
}

impl ServerPrograms {
    /// Debian's newest, or the first on the PATH.
    pub(super) fn find() -> Option<Self> {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let newest = versions.filter_map(|entry| Self::in_dir(entry.path().join("bin"))).max_by_key(Self::major);
        let path = std::env::var_os("PATH").unwrap_or_default();
        newest.or_else(|| std::env::split_paths(&path).find_map(Self::in_dir))
    }

    fn in_dir(dir: PathBuf) -> Option<Self> {
        if !dir.join("initdb").exists() {
            return None;
        }
        let mut programs = Self { dir, version: String::new() };
        let output = programs.command("postgres").arg("--version").output().ok()?;
        programs.version = parse_version(&String::from_utf8_lossy(&output.stdout))?;
        (programs.major() >= OLDEST_VERSION).then_some(programs)
    }

    fn major(&self) -> u32 {
        let digits = self.version.split(|c: char| !c.is_ascii_digit()).next();
        digits.and_then(|digits| digits.parse().ok()).unwrap_or_default()
    }

    /// A program without the machine's own settings, as a user that PostgreSQL accepts.
    pub(super) fn command(&self, name: &str) -> Command {
        #[expect(clippy::disallowed_methods, reason = "the test starts an external program")]
        let mut command = Command::new(self.dir.join(name));
        set_surroundings(&mut command);
        if geteuid().is_root() {
            command.uid(USER_FOR_ROOT).gid(USER_FOR_ROOT);
        }
        command
    }

    /// Like [`Self::command`], for root, in the mount namespace at this path.
    pub(super) fn command_in_namespace(&self, namespace: &Path, name: &str) -> Command {
        #[expect(clippy::disallowed_methods, reason = "the test starts an external program")]
        let mut command = Command::new("nsenter");
        set_surroundings(&mut command);
        let user = USER_FOR_ROOT.to_string();
        command.arg(format!("--mount={}", namespace.display())).args(["--setuid", &user, "--setgid", &user, "--"]);
        command.arg(self.dir.join(name));
        command
    }

    /// The folder of the template, which tests of this version and user share.
    pub(super) fn folder(&self) -> PathBuf {
        std::env::temp_dir().join(format!("quell-postgres-{}-{}", self.version, geteuid().as_raw()))
    }

    /// An empty data directory to copy. The first test on a machine creates it; others wait for that.
    pub(super) fn template(&self) -> PathBuf {
        let folder = self.folder();
        self.make_template(&folder).or_fail(format_args!("no data directory in {}", folder.display()));
        folder.join("template")
    }

    fn make_template(&self, folder: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).create(folder)?;
        if fs::metadata(folder)?.uid() != geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user"));
        }
        // The user of the server has to enter it.
        fs::set_permissions(folder, Permissions::from_mode(0o711))?;
        let lock = File::create(folder.join("lock"))?;
        lock.lock()?;
        let (template, unfinished) = (folder.join("template"), folder.join("unfinished"));
        if template.exists() {
            return Ok(());
        }
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished)?;
        }
        create_server_dir(&unfinished)?;
        let mut initdb = self.command("initdb");
        initdb.args(["--wal-segsize=1", "--encoding=UTF8", "--locale=C", "--auth=trust", "--username=postgres"]);
        let output = initdb.arg("--no-sync").arg("--pgdata").arg(&unfinished).output()?;
        if !output.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        fs::rename(unfinished, template)
    }
}

fn set_surroundings(command: &mut Command) {
    command.env_clear().envs([("LC_ALL", "C"), ("TZ", "UTC")]).current_dir("/").stdin(Stdio::null());
}

/// Parses the first line of `postgres --version`, such as `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
fn parse_version(text: &str) -> Option<String> {
    let (_, version) = text.split_once("(PostgreSQL) ")?;
    version.split_ascii_whitespace().next().map(str::to_owned)
}

pub(super) fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    create_server_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy_folder(&source, &target)?;
        } else {
            fs::copy(&source, &target)?;
            give_to_server(&target)?;
        }
    }
    Ok(())
}

fn create_server_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)?;
    give_to_server(path)
}

fn give_to_server(path: &Path) -> io::Result<()> {
    if geteuid().is_root() { chown(path, Some(USER_FOR_ROOT), Some(USER_FOR_ROOT)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_the_program() {
        for (text, version, major) in [
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", "15.18", 15),
            ("postgres (PostgreSQL) 19devel\n", "19devel", 19),
        ] {
            let programs = ServerPrograms { dir: PathBuf::new(), version: parse_version(text).unwrap() };
            assert_eq!((programs.version.as_str(), programs.major()), (version, major));
        }
        assert_eq!(parse_version("no such program"), None);
    }
}
