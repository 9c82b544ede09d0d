//! System calls that a hostile command would try, each by name. Part of the test's warden executable.

use std::io;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::FromRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// Tries one call. Succeeds if the system permits it.
///
/// # Errors
/// The error of the call, or `InvalidInput` for an unknown name.
pub(crate) fn probe(name: &str, argument: Option<&str>) -> io::Result<()> {
    let argument = argument.unwrap_or_default();
    match name {
        "tcp" => TcpStream::connect(argument).map(drop),
        "udp" => UdpSocket::bind("127.0.0.1:0")?.send_to(b"x", argument).map(drop),
        "loopback" => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            TcpStream::connect(listener.local_addr()?).map(drop)
        }
        "abstract" => UnixStream::connect_addr(&SocketAddr::from_abstract_name(argument)?).map(drop),
        "own-abstract" => {
            let address = SocketAddr::from_abstract_name(argument)?;
            let _listener = UnixListener::bind_addr(&address)?;
            UnixStream::connect_addr(&address).map(drop)
        }
        "unix" => UnixStream::connect(argument).map(drop),
        "mptcp" => socket(libc::AF_INET, libc::SOCK_STREAM, 262),
        "vsock" => socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0),
        "raw" => socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP),
        "packet" => socket(libc::AF_PACKET, libc::SOCK_RAW, 0),
        "thread" => std::thread::spawn(|| ()).join().map_err(|_| io::ErrorKind::Other.into()),
        _ => raw_call(name, argument),
    }
}

#[expect(unsafe_code, reason = "the calls have no safe wrapper, or one that hides the error")]
fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<()> {
    // SAFETY: the call takes numbers only, and the descriptor that it returns is owned by nobody else.
    unsafe {
        let descriptor = result(libc::socket(family, kind, protocol).into())?;
        drop(std::os::fd::OwnedFd::from_raw_fd(i32::try_from(descriptor).map_err(io::Error::other)?));
    }
    Ok(())
}

#[expect(unsafe_code, reason = "the calls have no safe wrapper, or one that hides the error")]
fn raw_call(name: &str, argument: &str) -> io::Result<()> {
    let path = std::ffi::CString::new(argument)?;
    let number: i32 = argument.parse().unwrap_or(0);
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: every pointer is null or a C string that lives until the call returns. What the calls change, they change
    // in this process, which ends right after.
    let returned = unsafe {
        match name {
            "unshare-user" => libc::unshare(libc::CLONE_NEWUSER).into(),
            "unshare-mount" => libc::unshare(libc::CLONE_NEWNS).into(),
            "unshare-time" => libc::unshare(0x80).into(),
            "unshare-files" => libc::unshare(libc::CLONE_FILES).into(),
            "clone-user" => match libc::syscall(libc::SYS_clone, libc::CLONE_NEWUSER | libc::SIGCHLD, 0, 0, 0, 0) {
                0 => libc::_exit(0),
                pid => pid,
            },
            "clone3" => libc::syscall(libc::SYS_clone3, none, 0),
            "setns" => libc::setns(0, 0).into(),
            "mount" => libc::mount(c"none".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), 0, std::ptr::null()).into(),
            "umount" => libc::umount2(path.as_ptr(), libc::MNT_DETACH).into(),
            "open-tree" => libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), 1),
            "fsopen" => libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), 0),
            "pivot-root" => libc::syscall(libc::SYS_pivot_root, path.as_ptr(), path.as_ptr()),
            "chroot" => libc::chroot(path.as_ptr()).into(),
            "bpf" => libc::syscall(libc::SYS_bpf, 0, none, 0),
            "keyctl" => libc::syscall(libc::SYS_keyctl, 0, -3, 1),
            "kexec" => libc::syscall(libc::SYS_kexec_load, 0, 0, none, 0),
            "module" => libc::syscall(libc::SYS_init_module, none, 0, none),
            "perf" => libc::syscall(libc::SYS_perf_event_open, none, 0, -1, -1, 0),
            "userfaultfd" => libc::syscall(libc::SYS_userfaultfd, 1),
            "io-uring" => libc::syscall(libc::SYS_io_uring_setup, 1, none),
            "open-by-handle" => libc::syscall(libc::SYS_open_by_handle_at, libc::AT_FDCWD, none, 0),
            "reboot" => libc::syscall(libc::SYS_reboot, 0, 0, 0, none),
            "set-hostname" => libc::sethostname(none, 0).into(),
            "set-user" => libc::setresuid(1, 1, 1).into(),
            "make-device" => libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 1)).into(),
            "set-user-id" => libc::open(path.as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o4755).into(),
            "set-user-id-unnamed" => libc::open(c".".as_ptr(), libc::O_TMPFILE | libc::O_WRONLY, 0o4755).into(),
            "chmod-user" => libc::chmod(path.as_ptr(), 0o4755).into(),
            "chmod-group" => libc::chmod(path.as_ptr(), 0o2755).into(),
            "chmod-plain" => libc::chmod(path.as_ptr(), 0o755).into(),
            "openat2" => libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, path.as_ptr(), none, 0),
            "create-plain" => libc::open(path.as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o755).into(),
            "signal" => libc::kill(number, 0).into(),
            "trace" => libc::ptrace(libc::PTRACE_ATTACH, number, 0, 0),
            "push-input" => libc::ioctl(0, libc::TIOCSTI, c"x".as_ptr()).into(),
            #[cfg(target_arch = "x86_64")]
            "x32" => libc::syscall(0x4000_0000 | libc::SYS_getpid),
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
    };
    result(returned).map(drop)
}

fn result(returned: i64) -> io::Result<i64> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}
