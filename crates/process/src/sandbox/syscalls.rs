//! Mount calls that rustix does not have.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `MOUNT_ATTR_RDONLY` of `linux/mount.h`.
const MOUNT_ATTR_RDONLY: u64 = 1;

/// `struct mount_attr` of `linux/mount.h`, version 0.
#[repr(C)]
struct MountAttributes {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Makes a mount read-only, and with `recursive` those below it, too. Locked flags of the mounts stay.
#[expect(unsafe_code, reason = "mount_setattr has no safe wrapper in rustix 1.1")]
pub(super) fn set_read_only(mount: impl AsFd, recursive: bool) -> io::Result<()> {
    let attributes = MountAttributes { attr_set: MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, the attributes live until the call returns, and their size is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
