//! The filter of system calls: what no command of an agent needs, and what would open a way around the other layers.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use super::{OwnNamespaces, SandboxError, SandboxNetwork, SandboxSpec};

/// Calls that change the machine, its mounts or the kernel, or that open files and memory past the other layers.
const REFUSED_CALLS: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
];

const IO_URING_CALLS: [libc::c_long; 3] =
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// The bits that make a program run with the rights of its owner or group.
const SET_ID_BITS: [u64; 2] = [0o4000, 0o2000];

/// Calls that give a file a mode, with the number of that argument.
const MODE_CALLS: &[(libc::c_long, u8)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (libc::SYS_fchmodat2, 2),
    (libc::SYS_mknodat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
];

/// Calls that create a file with a mode if one of [`CREATE_FLAGS`] is in the argument before it.
const CREATE_CALLS: &[(libc::c_long, u8)] = &[
    (libc::SYS_openat, 3),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 2),
];

/// `O_CREAT`, and `__O_TMPFILE` without `O_DIRECTORY`, which is part of `O_TMPFILE`.
const CREATE_FLAGS: [libc::c_int; 2] = [libc::O_CREAT, libc::O_TMPFILE & !libc::O_DIRECTORY];

/// The flags with which `clone` and `unshare` create namespaces.
const NAMESPACE_FLAGS: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];
/// `CLONE_NEWTIME` of `linux/sched.h`, which only `unshare` takes: in `clone` this bit is part of the signal.
const CLONE_NEWTIME: libc::c_int = 0x80;

/// Sends characters into a terminal as if they were typed (`TIOCSTI`), and pastes into a console (`TIOCLINUX`).
const REFUSED_TERMINAL_REQUESTS: [u64; 2] = [libc::TIOCSTI, 0x541C];

/// Protocol number of MPTCP, whose connections the TCP rules of Landlock do not see.
const IPPROTO_MPTCP: u64 = 262;

/// The filters in the order of their installation. Each has one action, as the kernel applies the strictest answer of
/// all. In the mode `off` there is only that of the network, where no namespace closes it.
pub(super) fn programs(spec: &SandboxSpec, namespaces: OwnNamespaces) -> Result<Vec<BpfProgram>, SandboxError> {
    check_permitted()?;
    let build = || -> Result<Vec<BpfProgram>, seccompiler::Error> {
        let sockets = socket_rules(spec, namespaces.network)?;
        if spec.is_off() {
            return match sockets.is_empty() {
                true => Ok(Vec::new()),
                false => Ok(vec![compile(sockets, libc::EPERM)?, compile(io_uring_rules(), libc::ENOSYS)?]),
            };
        }
        let mut refused: FilterRules = refused_rules(spec)?.into_iter().chain(sockets).collect();
        // Limits of another process, such as the daemon, its warden or the first process of the namespace: of some the
        // kernel ends it. Landlock has no rule for them. Without new limits (argument 2) the call only reads.
        let of_another = vec![argument(0, SeccompCmpOp::Ne, 0)?, argument(2, SeccompCmpOp::Ne, 0)?];
        refused.insert(libc::SYS_prlimit64, vec![SeccompRule::new(of_another)?]);
        Ok(vec![compile(refused, libc::EPERM)?, compile(absent_rules(spec), libc::ENOSYS)?])
    };
    let programs =
        build().map_err(|error| SandboxError::new("compile the filter of system calls", io::Error::other(error)))?;
    Ok(programs.into_iter().map(refuse_other_numbers).collect())
}

/// Whether this process may install filters. The command's own process could only pass the number of the error on.
#[expect(unsafe_code, reason = "no crate asks without installing a filter")]
fn check_permitted() -> Result<(), SandboxError> {
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the call reads the action and changes nothing.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    match answer {
        0 => Ok(()),
        _ => Err(SandboxError::new("use the system call seccomp", io::Error::last_os_error())),
    }
}

type FilterRules = BTreeMap<i64, Vec<SeccompRule>>;

fn refused_rules(spec: &SandboxSpec) -> Result<FilterRules, seccompiler::Error> {
    let mut rules: FilterRules = REFUSED_CALLS.iter().map(|call| (*call, Vec::new())).collect();
    if !spec.nested_namespaces {
        rules.insert(libc::SYS_clone, flag_rules(&NAMESPACE_FLAGS)?);
        let mut unshare = flag_rules(&NAMESPACE_FLAGS)?;
        unshare.extend(flag_rules(&[CLONE_NEWTIME])?);
        rules.insert(libc::SYS_unshare, unshare);
    }
    rules.extend(set_id_rules()?);
    let requests = REFUSED_TERMINAL_REQUESTS.map(|request| rule(argument(1, SeccompCmpOp::Eq, request)?));
    rules.insert(libc::SYS_ioctl, requests.into_iter().collect::<Result<_, _>>()?);
    Ok(rules)
}

/// No set-user-id and set-group-id files: outside of the sandbox another user could run them.
fn set_id_rules() -> Result<FilterRules, seccompiler::Error> {
    let has_bit = |index, bit| argument(index, SeccompCmpOp::MaskedEq(bit), bit);
    let mut rules = FilterRules::new();
    for bit in SET_ID_BITS {
        for (call, mode) in MODE_CALLS {
            rules.entry(*call).or_default().push(rule(has_bit(*mode, bit)?)?);
        }
        for (call, mode) in CREATE_CALLS {
            for flag in CREATE_FLAGS.map(|flag| u64::from(flag.unsigned_abs())) {
                let creates = SeccompRule::new(vec![has_bit(mode - 1, flag)?, has_bit(*mode, bit)?])?;
                rules.entry(*call).or_default().push(creates);
            }
        }
    }
    Ok(rules)
}

/// The rules for `socket`: no talk with the host of a virtual machine. A closed network without a namespace permits only
/// Unix sockets: some of the other families (SMC, RxRPC) use the internet as well.
fn socket_rules(spec: &SandboxSpec, has_own_network: bool) -> Result<FilterRules, seccompiler::Error> {
    let is_closed = spec.network != SandboxNetwork::Daemon;
    let mut sockets = Vec::new();
    if is_closed && !has_own_network {
        sockets.push(rule(argument(0, SeccompCmpOp::Ne, u64::from(libc::AF_UNIX.unsigned_abs()))?)?);
    } else if is_closed || !spec.is_off() {
        sockets.push(rule(argument(0, SeccompCmpOp::Eq, u64::from(libc::AF_VSOCK.unsigned_abs()))?)?);
    }
    if spec.network != SandboxNetwork::Daemon && !spec.is_off() {
        sockets.push(rule(argument(2, SeccompCmpOp::Eq, IPPROTO_MPTCP)?)?);
    }
    Ok(if sockets.is_empty() { FilterRules::new() } else { FilterRules::from([(libc::SYS_socket, sockets)]) })
}

/// io_uring makes sockets and opens files without the calls that are filtered.
fn io_uring_rules() -> FilterRules {
    IO_URING_CALLS.iter().map(|call| (*call, Vec::new())).collect()
}

/// The mode in which `openat2` creates a file is in memory, which a filter cannot read.
fn absent_rules(spec: &SandboxSpec) -> FilterRules {
    let mut rules = io_uring_rules();
    rules.insert(libc::SYS_openat2, Vec::new());
    if !spec.nested_namespaces {
        // Its flags are in memory, which a filter cannot read. Callers fall back to `clone`.
        rules.insert(libc::SYS_clone3, Vec::new());
    }
    rules
}

/// One rule for each flag in the first argument.
fn flag_rules(flags: &[libc::c_int]) -> Result<Vec<SeccompRule>, seccompiler::Error> {
    let bits = flags.iter().map(|flag| u64::from(flag.unsigned_abs()));
    bits.map(|bit| rule(argument(0, SeccompCmpOp::MaskedEq(bit), bit)?)).collect()
}

fn argument(index: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, seccompiler::Error> {
    Ok(SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)?)
}

fn rule(condition: SeccompCondition) -> Result<SeccompRule, seccompiler::Error> {
    Ok(SeccompRule::new(vec![condition])?)
}

/// Compiles the rules with one answer: this error number. Another architecture ends the process.
fn compile(rules: FilterRules, errno: libc::c_int) -> Result<BpfProgram, seccompiler::Error> {
    let refuse = SeccompAction::Errno(errno.unsigned_abs());
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture)?.try_into()?)
}

/// Puts a check before the program: numbers of the x32 ABI, which has the architecture of x86-64 and its own numbers,
/// get the error of a missing call.
#[cfg(target_arch = "x86_64")]
fn refuse_other_numbers(program: BpfProgram) -> BpfProgram {
    use seccompiler::sock_filter;

    /// `__X32_SYSCALL_BIT` of `asm/unistd.h`.
    const X32_BIT: u32 = 0x4000_0000;
    let code = |bits: u32| u16::try_from(bits).unwrap_or_default();
    let check = [
        // The number of the call is the first field of `seccomp_data`.
        sock_filter { code: code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), jt: 0, jf: 0, k: 0 },
        sock_filter { code: code(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K), jt: 0, jf: 1, k: X32_BIT },
        sock_filter {
            code: code(libc::BPF_RET | libc::BPF_K),
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs(),
        },
    ];
    check.into_iter().chain(program).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn refuse_other_numbers(program: BpfProgram) -> BpfProgram {
    program
}
