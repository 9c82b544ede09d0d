//! The view of the file system in the command's own mount namespace.
//!
//! What stays visible is cloned first, then all is made read-only, then places are covered and opened from the outside
//! to the inside.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, open};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind, mount_change, move_mount,
    open_tree,
};
use rustix::process::{geteuid, umask};

use super::paths::{PlaceAccess, places, with_fixed_ancestors};
use super::syscalls::set_read_only;
use super::{SandboxError, SandboxSpec};

/// The devices of every command. None gives access to the machine.
const BASIC_DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Further devices in the mode `off`. Block devices and raw memory are in no mode: root could read what is protected.
const DEVICES_WHEN_OFF: [&str; 8] = ["dri", "kvm", "fuse", "net", "snd", "nvidia0", "nvidiactl", "nvidia-uvm"];
/// An empty file without permissions, which covers hidden files.
const COVER_FILE: &str = "/dev/.hidden";
/// Covers hidden directories: entering is permitted, as far as something inside is open, and listing is not.
const COVER_OPTIONS: &str = "mode=0111,size=256k";
/// Parts of `/proc` with which root controls the kernel.
const KERNEL_CONTROLS: [&str; 4] = ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"];

/// Builds the view in the own mount namespace. False when the system permits no mounts there; nothing has changed then.
pub(super) fn apply(spec: &SandboxSpec) -> Result<bool, SandboxError> {
    if !permits_mounts() {
        return Ok(false);
    }
    // Other users pass through the directories that are made here (`SandboxSpec::user`).
    let umask_of_command = umask(Mode::from_raw_mode(0o022));
    let cwd = std::env::current_dir().map_err(|error| SandboxError::new("find the working directory", error))?;
    let places = with_fixed_ancestors(places(spec), spec.is_off());
    let mut view = FileSystemView::default();
    for (path, access) in &places {
        view.clone_place(path, access)?;
    }
    view.clone_devices(spec.is_off())?;
    match spec.is_off() {
        true => make_kernel_files_read_only()?,
        false => make_read_only("/")?,
    }
    view.attach_devices()?;
    for (path, access) in places {
        view.attach_place(&path, &access)?;
    }
    view.close_covers()?;
    umask(umask_of_command);
    std::env::set_current_dir(&cwd).map_err(|error| SandboxError::new(format!("enter {}", cwd.display()), error))?;
    Ok(true)
}

/// Whether the calls work that the view needs, tried in the own mount namespace. AppArmor may give a user namespace
/// without privileges, a filter of system calls may know only the older calls, and `mount_setattr` is of Linux 5.12.
fn permits_mounts() -> bool {
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).is_ok()
        && clone_tree(Path::new("/dev/null")).is_ok_and(|tree| set_read_only(tree, true).is_ok())
}

/// Mounts a `/proc` of the own PID namespace. Refused where parts of `/proc` are hidden, as in containers.
pub(in super::super) fn mount_own_proc() -> io::Result<()> {
    // Mounts made here must not appear outside.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?)
}

/// Makes the parts of the own `/proc` read-only with which root controls the kernel: without any capability, root still
/// owns these files. Other users cannot write them.
pub(super) fn cover_kernel_controls() -> Result<(), SandboxError> {
    if !geteuid().is_root() {
        return Ok(());
    }
    for path in KERNEL_CONTROLS.map(Path::new).into_iter().filter(|path| path.exists()) {
        let tree = clone_tree(path)?;
        set_read_only(&tree, true).map_err(|error| step("make read-only", path, error))?;
        attach(&tree, path)?;
    }
    Ok(())
}

#[derive(Default)]
struct FileSystemView {
    /// Clones of what stays visible, with their places.
    trees: Vec<(PathBuf, OwnedFd)>,
    devices: Vec<(&'static str, OwnedFd)>,
    covers: Vec<PathBuf>,
}

impl FileSystemView {
    fn clone_place(&mut self, path: &Path, access: &PlaceAccess) -> Result<(), SandboxError> {
        let tree = match access {
            PlaceAccess::Hidden | PlaceAccess::Private => return Ok(()),
            PlaceAccess::ReadOnly | PlaceAccess::ReadWrite => clone_tree(path)?,
            PlaceAccess::Shown => match clone_tree(path) {
                Ok(tree) => tree,
                Err(_) => return Ok(()),
            },
            PlaceAccess::Replaced(source) => clone_tree(source)?,
        };
        if matches!(access, PlaceAccess::ReadOnly | PlaceAccess::Shown) {
            set_read_only(&tree, true).map_err(|error| step("make read-only", path, error))?;
        }
        self.trees.push((path.to_owned(), tree));
        Ok(())
    }

    fn clone_devices(&mut self, is_off: bool) -> Result<(), SandboxError> {
        let further = if is_off { DEVICES_WHEN_OFF.as_slice() } else { &[] };
        for name in BASIC_DEVICES.iter().chain(further) {
            let path = Path::new("/dev").join(name);
            if path.exists() {
                self.devices.push((name, clone_tree(&path)?));
            }
        }
        Ok(())
    }

    /// Covers `/dev` with the devices of the command, terminals and shared memory of its own.
    fn attach_devices(&self) -> Result<(), SandboxError> {
        let dev = Path::new("/dev");
        let setup = |error: io::Error| step("set up", dev, error);
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        mount_tmpfs(dev, flags, "mode=0755,size=64k").map_err(setup)?;
        for (name, tree) in &self.devices {
            let path = dev.join(name);
            create_mount_point(&path, tree).map_err(setup)?;
            attach(tree, &path)?;
        }
        for name in ["pts", "shm"] {
            fs::create_dir(dev.join(name)).map_err(setup)?;
        }
        let terminals = c"newinstance,ptmxmode=0666,mode=0620";
        mount("devpts", "/dev/pts", "devpts", flags, Some(terminals)).map_err(|error| setup(error.into()))?;
        mount_tmpfs(&dev.join("shm"), flags | MountFlags::NODEV, "mode=1777").map_err(setup)?;
        for (name, target) in [
            ("ptmx", "pts/ptmx"),
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
        ] {
            symlink(target, dev.join(name)).map_err(setup)?;
        }
        fs::write(COVER_FILE, "").map_err(setup)?;
        fs::set_permissions(COVER_FILE, fs::Permissions::from_mode(0o000)).map_err(setup)?;
        set_read_only(open_path(dev).map_err(setup)?, false).map_err(setup)
    }

    fn attach_place(&mut self, path: &Path, access: &PlaceAccess) -> Result<(), SandboxError> {
        let cover = |error| step("cover", path, error);
        match access {
            PlaceAccess::Hidden if path.is_dir() => {
                mount_tmpfs(path, MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, COVER_OPTIONS)
                    .map_err(cover)?;
                self.covers.push(path.to_owned());
            }
            // Not there any more, or below a cover.
            PlaceAccess::Hidden if !path.exists() => {}
            PlaceAccess::Hidden => mount_bind(COVER_FILE, path).map_err(|error| cover(error.into()))?,
            PlaceAccess::Private => {
                mount_tmpfs(path, MountFlags::NOSUID | MountFlags::NODEV, "mode=1777").map_err(cover)?;
            }
            PlaceAccess::Shown => {
                if let Some((_, tree)) = self.trees.iter().find(|(place, _)| place == path)
                    && create_mount_point(path, tree).is_ok()
                {
                    attach(tree, path)?;
                }
            }
            PlaceAccess::ReadOnly | PlaceAccess::ReadWrite | PlaceAccess::Replaced(_) => {
                let Some((_, tree)) = self.trees.iter().find(|(place, _)| place == path) else { return Ok(()) };
                create_mount_point(path, tree).map_err(|error| step("open", path, error))?;
                attach(tree, path)?;
            }
        }
        Ok(())
    }

    /// Makes the covers read-only, once everything inside of them has its place.
    fn close_covers(&self) -> Result<(), SandboxError> {
        for path in &self.covers {
            let closed = open_path(path).and_then(|cover| set_read_only(cover, false));
            closed.map_err(|error| step("cover", path, error))?;
        }
        Ok(())
    }
}

fn make_read_only(path: &str) -> Result<(), SandboxError> {
    let path = Path::new(path);
    open_path(path).and_then(|mount| set_read_only(mount, true)).map_err(|error| step("make read-only", path, error))
}

/// `/sys`, with which root controls the kernel. Where it is no mount point, as in some containers, nothing of the kernel is
/// there (mount_setattr(2), EINVAL).
fn make_kernel_files_read_only() -> Result<(), SandboxError> {
    let path = Path::new("/sys");
    match open_path(path).and_then(|mount| set_read_only(mount, true)) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => Ok(()),
        done => done.map_err(|error| step("make read-only", path, error)),
    }
}

fn open_path(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Clones the mount at this path with all mounts below it. The clone has no place yet.
fn clone_tree(path: &Path) -> Result<OwnedFd, SandboxError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags).map_err(|error| step("open", path, error))
}

fn attach(tree: &OwnedFd, path: &Path) -> Result<(), SandboxError> {
    move_mount(tree.as_fd(), c"", CWD, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|error| step("mount", path, error))
}

fn mount_tmpfs(path: &Path, flags: MountFlags, options: &str) -> io::Result<()> {
    let options = std::ffi::CString::new(options)?;
    Ok(mount("tmpfs", path, "tmpfs", flags, Some(options.as_c_str()))?)
}

/// Creates what a mount needs below a cover: the directories above it, and a directory or a file for itself.
fn create_mount_point(path: &Path, tree: &OwnedFd) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(tree)?.st_mode);
    if kind == rustix::fs::FileType::Directory { fs::create_dir(path) } else { fs::write(path, "") }
}

fn step(action: &str, path: &Path, error: impl Into<io::Error>) -> SandboxError {
    SandboxError::new(format!("{action} {}", path.display()), error)
}
