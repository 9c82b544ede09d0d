//! The Landlock rules of a command: what it may open, and that it reaches no process and no abstract socket outside.
//!
//! Every domain forbids to trace processes outside of it and to open their memory, descriptors and environment.

use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, RestrictionStatus, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use rustix::io::Errno;
use rustix::process::geteuid;

use super::carve::{Grant, GrantAccess, grants};
use super::paths::{PlaceAccess, places};
use super::{SandboxError, SandboxNetwork, SandboxSpec};

/// The newest ABI whose rules were tested. Kernels with an older one apply what they know.
const TESTED_ABI: ABI = ABI::V7;
/// Devices that every command may use where `/dev` is the one of the system.
const SAFE_DEVICES: [&str; 10] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/shm",
    "/dev/fd",
];

pub(super) struct LandlockRules(RulesetCreated);

impl LandlockRules {
    /// Prepares the rules; `None` when the kernel has no Landlock. With `has_mounts`, the mount namespace already hides
    /// what is hidden, and the rules only say what may be written.
    pub(super) fn new(
        spec: &SandboxSpec,
        has_mounts: bool,
        has_own_network: bool,
    ) -> Result<Option<Self>, SandboxError> {
        if abi_version() < 1 {
            return Ok(None);
        }
        let grants = if has_mounts { grants_in_view(spec) } else { grants_without_view(spec) };
        let rules = ruleset(spec, &grants, has_own_network)
            .map_err(|error| SandboxError::new("prepare Landlock", io::Error::other(error)))?;
        Ok(Some(Self(rules)))
    }

    /// Binds the calling thread. Its privileges cannot grow any more after this.
    pub(super) fn restrict_self(self) -> io::Result<()> {
        let RestrictionStatus { ruleset, .. } = self.0.restrict_self().map_err(|error| os_error(&error))?;
        match ruleset {
            RulesetStatus::NotEnforced => Err(io::ErrorKind::Unsupported.into()),
            RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced => Ok(()),
        }
    }
}

/// The error of the system behind this one: whoever starts the command is told its number alone.
fn os_error(error: &(dyn std::error::Error + 'static)) -> io::Error {
    let causes = std::iter::successors(Some(error), |cause| cause.source());
    let number = causes.filter_map(|cause| cause.downcast_ref::<io::Error>()).find_map(io::Error::raw_os_error);
    number.map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}

/// The version of Landlock that the kernel has; 0 if it has none.
pub(in super::super) fn abi_version() -> i64 {
    ruleset_version().unwrap_or(0)
}

#[expect(unsafe_code, reason = "the crate does not tell the version without restricting the caller")]
fn ruleset_version() -> Result<i64, Errno> {
    /// `LANDLOCK_CREATE_RULESET_VERSION` of `linux/landlock.h`.
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the call reads nothing and returns a number.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION) };
    if version < 0 {
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::NOSYS))
    } else {
        Ok(version)
    }
}

/// Why there is no Landlock: a filter of system calls around the daemon needs another remedy than an old kernel.
pub(super) fn reason_of_absence() -> &'static str {
    match ruleset_version() {
        Err(Errno::PERM | Errno::ACCESS) => {
            "a filter of system calls around the daemon refuses landlock_create_ruleset"
        }
        Err(Errno::OPNOTSUPP) => "Landlock was switched off when the kernel was started",
        Ok(_) | Err(_) => "the kernel has no Landlock",
    }
}

/// What the command may open in its own view: everything that it sees, and to write what the view leaves writable.
fn grants_in_view(spec: &SandboxSpec) -> Vec<Grant> {
    let grant = |path: &Path, access| Grant { path: path.to_owned(), access };
    let mut grants = vec![grant(Path::new("/"), GrantAccess::Read)];
    grants.extend(["/dev", "/proc"].map(|path| grant(Path::new(path), GrantAccess::Full)));
    for (path, access) in places(spec) {
        if matches!(access, PlaceAccess::ReadWrite | PlaceAccess::Private | PlaceAccess::Replaced(_)) {
            grants.push(grant(&path, GrantAccess::Full));
        }
    }
    grants
}

/// What the command may open where it sees the file system as it is.
fn grants_without_view(spec: &SandboxSpec) -> Vec<Grant> {
    let mut places = places(spec);
    places.insert(PathBuf::from("/dev"), PlaceAccess::Hidden);
    if geteuid().is_root() {
        // Without any capability, root still owns the files with which the kernel is controlled.
        places.extend(["/proc", "/sys"].map(|path| (PathBuf::from(path), PlaceAccess::ReadOnly)));
    }
    let base = if spec.is_off() { GrantAccess::Full } else { GrantAccess::Read };
    let mut grants = grants(&places, base);
    let devices = SAFE_DEVICES.map(|path| Grant { path: path.into(), access: GrantAccess::Full });
    grants.extend(devices);
    if !geteuid().is_root() {
        grants.push(Grant { path: "/proc".into(), access: GrantAccess::Full });
    }
    grants
}

fn ruleset(spec: &SandboxSpec, grants: &[Grant], has_own_network: bool) -> Result<RulesetCreated, RulesetError> {
    let mut ruleset = Ruleset::default().handle_access(AccessFs::from_all(TESTED_ABI))?.scope(Scope::Signal)?;
    if !spec.is_off() {
        ruleset = ruleset.scope(Scope::AbstractUnixSocket)?;
    }
    if spec.network != SandboxNetwork::Daemon && !has_own_network {
        ruleset = ruleset.handle_access(AccessNet::from_all(TESTED_ABI))?;
    }
    let mut created = ruleset.create()?;
    for grant in grants {
        // What is gone by now, or cannot be opened, is not granted.
        let Ok(opened) = PathFd::new(&grant.path) else { continue };
        let is_directory = grant.path.is_dir();
        let access =
            access_rights(grant.access) & if is_directory { BitFlags::all() } else { AccessFs::from_file(TESTED_ABI) };
        if !access.is_empty() {
            created = created.add_rule(PathBeneath::new(opened, access))?;
        }
    }
    Ok(created)
}

fn access_rights(access: GrantAccess) -> BitFlags<AccessFs> {
    match access {
        GrantAccess::List => AccessFs::ReadDir.into(),
        GrantAccess::Read => AccessFs::from_read(TESTED_ABI),
        GrantAccess::Full => AccessFs::from_all(TESTED_ABI) & !(AccessFs::MakeChar | AccessFs::MakeBlock),
    }
}
