//! The sandbox of an agent's commands: which places are hidden, which directories are private, which variables lead
//! there.
//!
//! Each agent has a home directory of its own, in which the caches of its tools are. Each session has a directory for
//! temporary files, which goes with the session.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use quell_kernel::network_access::NetworkAccess;
use quell_process::{CommandUser, SandboxNetwork, SandboxSpec, SessionNetwork};
use quell_protocol::{AgentId, SessionKey};
use quell_tools::{ProtectedPaths, delete_tree};
use rustix::process::geteuid;
use sha2::{Digest, Sha256};

use super::Agent;
use super::session_networks::{NetworkOwner, SessionNetworks};

/// Parent of the agents' home directories, below that of the workdirs. No agent's directory begins with a dot.
const HOME_DIRECTORY: &str = ".home";

/// The parent of the directories in which MCP servers start. Sandboxes hide it with the directory of the workdirs.
pub fn mcp_directories(work_dir: &Path) -> PathBuf {
    work_dir.join(".servers")
}

/// What is wrong with a workdir, or another place that an agent may write: below the directory of the workdirs are the
/// homes of all agents and the directories of MCP servers.
pub fn reserved_place_problem(work_dir: &Path, place: &Path) -> Option<String> {
    let [homes, servers] = [work_dir.join(HOME_DIRECTORY), mcp_directories(work_dir)].map(|path| absolute(&path));
    let place = absolute(place);
    let place = place.canonicalize().unwrap_or(place);
    let overlaps = |reserved: &PathBuf| {
        let real = reserved.canonicalize().unwrap_or_else(|_| reserved.clone());
        place.starts_with(&real) || real.starts_with(&place)
    };
    [homes, servers].iter().find(|reserved| overlaps(reserved)).map(|reserved| {
        format!(
            "{} holds or lies in {}, where the homes of agents and MCP servers are; choose a directory of its own",
            place.display(),
            reserved.display()
        )
    })
}

/// What begins with a dot below the home directory of the daemon's user and can be read: programs, and settings of Git.
/// Everything else there that begins with a dot is hidden: no list of credentials is complete.
const OPEN_IN_HOME: &[&str] = &[
    // Toolchains, without the credentials and settings beside them.
    ".asdf",
    ".bun/bin",
    ".bun/install",
    ".cargo/bin",
    ".deno/bin",
    ".dotnet/sdk",
    ".dotnet/shared",
    ".dotnet/tools",
    ".elan",
    ".fnm",
    ".ghcup/bin",
    ".ghcup/ghc",
    ".goenv",
    ".jenv",
    ".juliaup",
    ".linuxbrew",
    ".local/bin",
    ".local/lib",
    ".local/share/fnm",
    ".local/pipx/venvs",
    ".local/share/mise",
    ".local/share/pipx/venvs",
    ".local/share/pnpm",
    ".local/share/uv/python",
    ".local/share/uv/tools",
    ".nodenv",
    ".npm-global/bin",
    ".npm-global/lib",
    ".nvm",
    ".opam",
    ".pixi",
    ".pyenv",
    ".rbenv",
    ".rustup",
    ".sdkman",
    ".volta",
    // `~/.gitconfig` is included in the settings of each agent.
    ".gitconfig",
    ".gitignore",
    ".gitignore_global",
    ".config/git/attributes",
    ".config/git/config",
    ".config/git/ignore",
    ".terminfo",
];

/// Data of programs from snap packages, browsers among them.
const HIDDEN_IN_HOME: &str = "snap";

/// Home directories of others, which a daemon of root could read.
const HOMES: [&str; 2] = ["/home", "/root"];

/// Secrets, and spools and sockets of services that start programs for others.
const HIDDEN_ON_THE_SYSTEM: &[&str] = &[
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssl/private",
    "/etc/kubernetes",
    "/var/spool/cron",
    "/var/spool/at",
    "/var/spool/atjobs",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/lib/libvirt",
    "/var/lib/sss",
    "/var/lib/NetworkManager",
];

/// Toolchains below the home directory of the daemon's user, which stay readable, with the variables that lead to them.
const TOOLCHAINS: [(&str, &str); 5] = [
    ("RUSTUP_HOME", ".rustup"),
    ("PYENV_ROOT", ".pyenv"),
    ("RBENV_ROOT", ".rbenv"),
    ("NVM_DIR", ".nvm"),
    ("SDKMAN_DIR", ".sdkman"),
];

/// Where the sandboxes of one engine keep their directories, and what all of them hide.
#[derive(Debug)]
pub struct SandboxSite {
    work_dir: PathBuf,
    temporary_dir: PathBuf,
    home_dir: Option<PathBuf>,
    protected: Vec<PathBuf>,
    hidden: Vec<PathBuf>,
    /// What can be read below the home directory although its name begins with a dot.
    open_in_home: Vec<PathBuf>,
    toolchains: Vec<(String, PathBuf)>,
    networks: SessionNetworks,
}

impl SandboxSite {
    /// `work_dir` is the parent of the default workdirs, `temporary_dir` that of the temporary files of sessions, and
    /// `home_dir` the home directory of the daemon's user. Relative paths are those of the current directory: commands
    /// work elsewhere.
    pub fn new(
        work_dir: PathBuf,
        temporary_dir: PathBuf,
        home_dir: Option<PathBuf>,
        protected: &ProtectedPaths,
    ) -> Self {
        let [work_dir, temporary_dir] = [work_dir, temporary_dir].map(|path| absolute(&path));
        let mut hidden: Vec<PathBuf> = HIDDEN_ON_THE_SYSTEM.iter().map(PathBuf::from).chain(host_keys()).collect();
        let mut toolchains = Vec::new();
        let mut open_in_home = Vec::new();
        if geteuid().is_root() {
            hidden.extend(HOMES.map(PathBuf::from));
        }
        if let Some(home) = &home_dir {
            hidden.push(home.join(HIDDEN_IN_HOME));
            open_in_home = open_places(home);
            let found = TOOLCHAINS.iter().map(|(variable, folder)| ((*variable).to_owned(), home.join(folder)));
            toolchains.extend(found.filter(|(_, folder)| folder.is_dir()));
        }
        hidden.push(work_dir.clone());
        let protected = protected.directories.iter().chain(&protected.files).map(|path| absolute(path)).collect();
        Self {
            work_dir,
            temporary_dir,
            home_dir,
            protected,
            hidden,
            open_in_home,
            toolchains,
            networks: SessionNetworks::default(),
        }
    }

    /// Parent of the workdirs of agents that configure none.
    pub fn work_dir(&self) -> &Path {
        &self.work_dir
    }

    /// The home directory of the daemon's user, for a leading `~/` in a path.
    pub fn home_dir(&self) -> Option<&Path> {
        self.home_dir.as_deref()
    }

    /// The sandbox of an agent's commands in one session. `other_workdirs` are those of the other agents.
    pub fn sandbox(&self, agent: &Agent, other_workdirs: &[PathBuf], session: &SessionKey) -> SandboxSpec {
        let rights = &agent.sandbox;
        // An agent that shares a directory with another one sees it.
        let is_shared = |other: &&PathBuf| agent.workdir.starts_with(other);
        let others = other_workdirs.iter().filter(|other| !is_shared(other));
        SandboxSpec {
            protected: self.protected.clone(),
            hidden: self.hidden.iter().chain(others).chain(&rights.hidden).cloned().collect(),
            closed_homes: self.home_dir.iter().cloned().collect(),
            readable: rights.readable.iter().chain(&self.open_in_home).cloned().collect(),
            writable: rights.writable.iter().chain([&agent.workdir]).cloned().collect(),
            home: Some(self.home_of(&agent.id)),
            variables: self.toolchains_for(rights.user),
            temporary: Some(self.temporary_dir_of(session, rights.user)),
            user: rights.user,
            network: match rights.network {
                NetworkAccess::On => SandboxNetwork::Daemon,
                NetworkAccess::Off => SandboxNetwork::Closed,
                NetworkAccess::List(_) => SandboxNetwork::Proxied,
            },
            nested_namespaces: rights.nested_namespaces,
            limits: rights.limits,
            is_required: rights.is_required,
            ..SandboxSpec::new(rights.mode)
        }
    }

    /// Those that the user of the commands can enter.
    fn toolchains_for(&self, user: Option<u32>) -> Vec<(String, PathBuf)> {
        let user = user.and_then(|user| CommandUser::new(user).ok());
        let can_enter = |(_, folder): &&(String, PathBuf)| user.is_none_or(|user| user.can_enter(folder));
        self.toolchains.iter().filter(can_enter).cloned().collect()
    }

    /// The network that a command with this sandbox shares with the other commands of its session; `None` for that of
    /// the daemon.
    pub fn session_network(
        &self,
        agent: &Agent,
        session: &SessionKey,
        sandbox: &SandboxSpec,
    ) -> Option<Arc<SessionNetwork>> {
        (sandbox.network != SandboxNetwork::Daemon).then(|| {
            self.networks.find_or_create(NetworkOwner {
                session: session.clone(),
                agent: agent.id.clone(),
                access: agent.sandbox.network.clone(),
                user: sandbox.user,
            })
        })
    }

    /// Creates the home directory of an agent. A new one uses the Git settings of the daemon's user, such as the name
    /// of the author. They are included, so that what the agent sets stays its own.
    ///
    /// # Errors
    /// A text that names the file or directory that could not be created, or given to the user of the agent's commands.
    pub fn create_home(&self, agent: &AgentId, user: Option<CommandUser>) -> Result<(), String> {
        let home = self.home_of(agent);
        let failed = |error: io::Error| format!("its home directory {} cannot be created: {error}", home.display());
        let Some(user) = user else {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&home).map_err(failed)?;
            CommandUser::check_own(&home)?;
            return self.include_git_settings(&home);
        };
        // Each home is closed; the way to it is open to the users of commands.
        let homes = self.work_dir.join(HOME_DIRECTORY);
        fs::create_dir_all(&homes).map_err(failed)?;
        fs::set_permissions(&homes, fs::Permissions::from_mode(0o711)).map_err(failed)?;
        user.create_directory(&home)
    }

    /// The user of a `run_as` could not read them.
    fn include_git_settings(&self, home: &Path) -> Result<(), String> {
        let settings = home.join(".gitconfig");
        let Some(own) = self.home_dir.as_ref().map(|own| own.join(".gitconfig")).filter(|own| own.is_file()) else {
            return Ok(());
        };
        // Only a new file: the agent may have put a link there.
        match fs::OpenOptions::new().write(true).create_new(true).open(&settings) {
            // A link of the home directory is not there for the commands; what it leads to may be.
            Ok(mut file) => {
                writeln!(file, "[include]\n\tpath = {}", own.canonicalize().unwrap_or(own).display())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
        .map_err(|error| format!("{} cannot be written: {error}", settings.display()))
    }

    /// Deletes the temporary files of a session.
    ///
    /// # Errors
    /// The error of the file system; none if there are no files.
    pub fn delete_temporary_files_of(&self, session: &SessionKey, stop: &AtomicBool) -> io::Result<()> {
        self.temporary_dirs_of(session).try_for_each(|directory| delete_tree(&directory, stop))
    }

    /// Whether commands of a session have left temporary files.
    pub fn has_temporary_files(&self, session: &SessionKey) -> bool {
        self.temporary_dirs_of(session).next().is_some()
    }

    /// Moves the temporary files of earlier starts out of the way, so that a start neither waits for their deletion nor
    /// depends on it. A failure is logged.
    pub fn put_aside_temporary_files(&self) {
        let found = self.temporary_dir.symlink_metadata();
        if found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return;
        }
        let aside = self.files_put_aside();
        let moved = fs::create_dir_all(&aside)
            .and_then(|()| fs::rename(&self.temporary_dir, aside.join(uuid::Uuid::now_v7().to_string())));
        if let Err(error) = moved {
            let directory = self.temporary_dir.display();
            tracing::warn!(%directory, %error, "the temporary files of an earlier start stay where they are");
        }
    }

    /// Deletes what was put aside, now or at an earlier start.
    ///
    /// # Errors
    /// Those of [`delete_tree`], with the directory. What is left is tried again at the next start.
    pub fn delete_files_put_aside(&self, stop: &AtomicBool) -> io::Result<()> {
        let aside = self.files_put_aside();
        let explain = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", aside.display()));
        delete_tree(&aside, stop).map_err(explain)
    }

    fn files_put_aside(&self) -> PathBuf {
        self.temporary_dir.with_extension("of-earlier-starts")
    }

    /// The home directory that commands of this agent see.
    pub fn home_of(&self, agent: &AgentId) -> PathBuf {
        self.work_dir.join(HOME_DIRECTORY).join(directory_name(agent))
    }

    /// Each user of commands has one of its own.
    fn temporary_dir_of(&self, session: &SessionKey, user: Option<u32>) -> PathBuf {
        let name = session_directory_name(session);
        self.temporary_dir.join(user.map_or(name.clone(), |user| format!("{name}-{user}")))
    }

    fn temporary_dirs_of(&self, session: &SessionKey) -> impl Iterator<Item = PathBuf> {
        let name = session_directory_name(session);
        let entries = fs::read_dir(&self.temporary_dir).into_iter().flatten().flatten();
        let is_of_session = move |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&name);
        entries.filter(is_of_session).map(|entry| entry.path())
    }
}

/// What of [`OPEN_IN_HOME`] is there, without symbolic links.
pub fn open_places(home: &Path) -> Vec<PathBuf> {
    let real = OPEN_IN_HOME.iter().filter_map(|name| home.join(name).canonicalize().ok());
    real.filter(|path| home.canonicalize().is_ok_and(|home| path.starts_with(home))).collect()
}

fn session_directory_name(session: &SessionKey) -> String {
    Sha256::digest(session.as_str()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// The name of an agent's directories.
pub(super) fn directory_name(agent: &AgentId) -> String {
    agent.as_str().replace(['/', '\\', '.'], "_")
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The private keys of the SSH server.
fn host_keys() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/etc/ssh").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with("_key"))
}

#[cfg(test)]
mod tests {
    use super::*;

    static NOT_STOPPED: AtomicBool = AtomicBool::new(false);

    fn site_in(data_dir: &Path) -> SandboxSite {
        SandboxSite::new(data_dir.join("work"), data_dir.join("tmp"), None, &ProtectedPaths::default())
    }

    fn count_entries(directory: &Path) -> usize {
        fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn a_start_deletes_no_file_before_it_goes_on() {
        let data_dir = tempfile::tempdir().unwrap();
        let (site, temporary) = (site_in(data_dir.path()), data_dir.path().join("tmp"));
        let aside = site.files_put_aside();
        for starts in 1..=2 {
            fs::create_dir_all(temporary.join("session/deep")).unwrap();
            fs::write(temporary.join("session/deep/file"), "").unwrap();
            site.put_aside_temporary_files();
            assert!(!temporary.exists());
            assert_eq!(count_entries(&aside), starts);
            // The end of the daemon interrupts the deletion.
            let interrupted = site.delete_files_put_aside(&AtomicBool::new(true)).unwrap_err();
            assert_eq!(interrupted.kind(), io::ErrorKind::Interrupted);
            assert!(interrupted.to_string().contains(&aside.display().to_string()), "{interrupted}");
        }
        // A session begins before the deletion.
        fs::create_dir_all(temporary.join("new")).unwrap();
        site.delete_files_put_aside(&NOT_STOPPED).unwrap();
        assert!(!aside.exists() && temporary.join("new").exists());
    }

    #[test]
    fn a_start_deletes_what_an_interrupted_deletion_has_left() {
        let data_dir = tempfile::tempdir().unwrap();
        let site = site_in(data_dir.path());
        fs::create_dir_all(site.files_put_aside().join("left/deep")).unwrap();
        site.put_aside_temporary_files();
        site.delete_files_put_aside(&NOT_STOPPED).unwrap();
        assert_eq!(count_entries(data_dir.path()), 0);
    }

    #[test]
    fn a_start_without_temporary_files_makes_no_directory() {
        let data_dir = tempfile::tempdir().unwrap();
        let site = site_in(data_dir.path());
        site.put_aside_temporary_files();
        assert_eq!(count_entries(data_dir.path()), 0);
        site.delete_files_put_aside(&NOT_STOPPED).unwrap();
        assert_eq!(count_entries(data_dir.path()), 0);
    }
}
