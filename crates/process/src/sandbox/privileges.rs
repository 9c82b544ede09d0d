//! The capabilities of a command.

use std::io;

use rustix::fs::{FileType, Gid, Uid};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

/// What root keeps in the mode `off`: enough to install packages and to change owners. None of them reaches devices,
/// raw memory, mounts, kernel modules, or files by handle, by which root could open what is protected; none reads the
/// traffic of others, where tokens and keys pass (`NET_RAW` would, on the loopback interface). It is the usual set of
/// containers without `MKNOD` and `NET_RAW`.
const KEPT_WHEN_OFF: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::AUDIT_WRITE);

/// Drops the capabilities of the calling process for ever; in the mode `off` all but the kept ones. A process without
/// capabilities has nothing to drop. With `user` it becomes that user, with no other group, and keeps none.
pub(super) fn drop_privileges(keep_some: bool, user: Option<u32>) -> io::Result<()> {
    let before = capabilities(None)?;
    if before.permitted.is_empty() {
        return if user.is_none() { Ok(()) } else { Err(Errno::PERM.into()) };
    }
    let kept = if keep_some { KEPT_WHEN_OFF.intersection(before.permitted) } else { CapabilitySet::empty() };
    clear_ambient_capability_set()?;
    for bit in 0..u64::BITS {
        let Some(capability) = CapabilitySet::from_bits(1 << bit) else { continue };
        if kept.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // Newer than this kernel.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if !keep_some {
        // Else `exec` as user 0 would bring capabilities back within the bounding set.
        let bits = CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::NO_SETUID_FIXUP
            | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
            | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
        set_capabilities_secure_bits(bits)?;
    }
    if let Some(id) = user {
        become_user(id)?;
    }
    let kept = if user.is_some() { CapabilitySet::empty() } else { kept };
    Ok(set_capabilities(
        None,
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
    )?)
}

/// Whether this process has the capabilities that [`drop_privileges`] needs for another user.
pub(super) fn may_become_another_user() -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::CHOWN;
    capabilities(None).is_ok_and(|own| own.effective.contains(needed))
}

/// Changes all ids of the calling process, which has one thread. Its pipes go to that user, too: programs open
/// `/dev/stderr` again.
fn become_user(id: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
    for stream in [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()] {
        // Never a device: that of everybody.
        if FileType::from_raw_mode(rustix::fs::fstat(stream)?.st_mode) == FileType::Fifo {
            rustix::fs::fchown(stream, Some(user), Some(group))?;
        }
    }
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    Ok(set_thread_res_uid(user, user, user)?)
}
