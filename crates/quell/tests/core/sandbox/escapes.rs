//! What a malicious command tries. A script that gets what it wants prints `ESCAPED`.
//!
//! Variables of the scripts: `$DATA`, the data directory; `$CONFIG`, the configuration file; `$KEY`, a key file that it
//! names; `$OTHER`, the workdir of another agent; `$PERSON`, the home directory of the daemon's user; `$DAEMON`, the
//! pid of the daemon; `$URL`, its address; `$QUELL`, its binary.

use quell_protocol::SandboxMode;
use quell_testkit::kernel::RefusedCalls;

/// What a table says beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expectation {
    /// The attempt fails.
    Held,
    /// The attempt succeeds: it is permitted, or a gap that the documentation names.
    Open,
    /// It depends on the rights of the daemon's user.
    AsUser,
}

use Expectation::{AsUser, Held, Open};

pub(super) struct Escape {
    pub(super) name: &'static str,
    pub(super) script: &'static str,
    /// With namespaces, in the modes read-only, workspace, off.
    with_namespaces: [Expectation; 3],
    /// With Landlock alone, in the same modes.
    landlock_alone: [Expectation; 3],
    /// Whether other means than namespaces and Landlock hold it: the filter of system calls, missing capabilities, the
    /// rights of the daemon. What they do not hold would succeed, and end the daemon of the test.
    held_without_both: bool,
}

/// What the kernel of a test offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelSupport {
    Everything,
    LandlockAlone,
    NamespacesAlone,
    Neither,
    /// A filter of system calls around the daemon refuses Landlock and further filters.
    Filtered,
}

impl KernelSupport {
    pub(super) fn has_namespaces(self) -> bool {
        matches!(self, Self::Everything | Self::NamespacesAlone)
    }

    pub(super) fn refused_calls(self) -> Option<RefusedCalls> {
        match self {
            Self::Everything | Self::LandlockAlone => None,
            Self::NamespacesAlone | Self::Neither => Some(RefusedCalls::Landlock),
            Self::Filtered => Some(RefusedCalls::Sandboxes),
        }
    }
}

impl Escape {
    /// What no mode permits.
    const fn never(name: &'static str, script: &'static str) -> Self {
        Self { name, script, with_namespaces: [Held; 3], landlock_alone: [Held; 3], held_without_both: false }
    }

    /// What only the mode `off` permits, as far as the daemon's user may.
    const fn when_off(name: &'static str, script: &'static str) -> Self {
        let modes = [Held, Held, AsUser];
        Self { name, script, with_namespaces: modes, landlock_alone: modes, held_without_both: false }
    }

    /// As [`Self::when_off`], but Landlock alone does not hold it.
    const fn not_by_landlock(name: &'static str, script: &'static str) -> Self {
        let (with_namespaces, landlock_alone) = ([Held, Held, AsUser], [AsUser; 3]);
        Self { name, script, with_namespaces, landlock_alone, held_without_both: false }
    }

    /// An attempt that is held also where the kernel has neither namespaces nor Landlock.
    const fn without_both(self) -> Self {
        Self { held_without_both: true, ..self }
    }

    /// `None` for an attempt that is not made where the kernel offers only this.
    pub(super) fn expected(&self, mode: SandboxMode, kernel: KernelSupport) -> Option<Expectation> {
        if kernel == KernelSupport::Neither && !self.held_without_both {
            return None;
        }
        let modes = if kernel.has_namespaces() { self.with_namespaces } else { self.landlock_alone };
        let [read_only, workspace, off] = modes;
        Some(match mode {
            SandboxMode::ReadOnly => read_only,
            SandboxMode::Workspace => workspace,
            SandboxMode::Off => off,
        })
    }
}

pub(super) const ESCAPES: &[Escape] = &[
    // Credentials and controls.
    Escape::never("token", "grep -q . $DATA/token && echo ESCAPED"),
    Escape::never("token through a symlink", "ln -sf $DATA/token l && grep -q . l && echo ESCAPED"),
    Escape::never("token through a link in tmp", "ln -sf $DATA/token /tmp/l && grep -q . /tmp/l && echo ESCAPED"),
    Escape::never("token through a hard link", "ln $DATA/token h && grep -q . h && echo ESCAPED"),
    Escape::never("token through /proc/self/root", "grep -q . /proc/self/root$DATA/token && echo ESCAPED"),
    Escape::never("token through /proc/1/root", "grep -q . /proc/1/root$DATA/token && echo ESCAPED"),
    Escape::never("token through the parent", "grep -q . /proc/$PPID/root$DATA/token && echo ESCAPED"),
    Escape::never("token through the cwd of the parent", "grep -q . /proc/$PPID/cwd/../../data/token && echo ESCAPED"),
    Escape::never("token by ..", "grep -q . ../../data/token && echo ESCAPED"),
    Escape::never("token in an archive", "tar cf - $DATA | grep -aq token && echo ESCAPED"),
    Escape::never("token by another program", "sh -c 'exec head -c1 $0/token' $DATA | grep -q . && echo ESCAPED"),
    Escape::never("a new token file", "echo x > $DATA/token && echo ESCAPED"),
    Escape::never("removed token", "rm $DATA/token && echo ESCAPED"),
    Escape::never("moved data", "mv $DATA $DATA-2 && echo ESCAPED"),
    Escape::never(
        "a configuration in a directory that was moved",
        "mv $PERSON/.config $PERSON/.c; mkdir -p $PERSON/.config/quell; \
         echo '[hooks]' > $PERSON/.config/quell/quell.toml && echo ESCAPED",
    ),
    Escape::never("database", "head -c15 $DATA/quell.db | grep -q SQLite && echo ESCAPED"),
    Escape::never("log of the database", "head -c1 $DATA/quell.db-wal | grep -q . && echo ESCAPED"),
    Escape::never("record of wardens", "echo x >> $DATA/wardens && echo ESCAPED"),
    Escape::never("a file in the data directory", "touch $DATA/x && echo ESCAPED"),
    Escape::never("configuration read", "grep -q agents $CONFIG && echo ESCAPED"),
    Escape::never("configuration changed", "[ -s $CONFIG ] && echo >> $CONFIG && echo ESCAPED"),
    Escape::never("configuration replaced", "[ -s $CONFIG ] && touch n && mv n $CONFIG && echo ESCAPED"),
    Escape::never("configuration removed", "rm $CONFIG && echo ESCAPED"),
    Escape::never("configuration truncated", "[ -s $CONFIG ] && truncate -s0 $CONFIG && echo ESCAPED"),
    Escape::never(
        "a configuration for the next start",
        "mkdir -p $PERSON/.config/quell; echo '[hooks]' > $PERSON/.config/quell/quell.toml && echo ESCAPED",
    ),
    Escape::never("key file", "grep -q secret $KEY && echo ESCAPED"),
    Escape::never("key file changed", "[ -s $KEY ] && echo x >> $KEY && echo ESCAPED"),
    Escape::never("key in the own environment", "env | grep -q secret && echo ESCAPED").without_both(),
    Escape::never("key in the parent's environment", "grep -aq secret /proc/$PPID/environ && echo ESCAPED"),
    Escape::never("key in any environment", "cat /proc/[0-9]*/environ | grep -aq secret-key && echo ESCAPED"),
    Escape::never("environment of the daemon", "head -c1 /proc/$DAEMON/environ | grep -q . && echo ESCAPED"),
    Escape::never("memory of the daemon", "head -c1 /proc/$DAEMON/mem && echo ESCAPED"),
    Escape::never("mappings of the daemon", "grep -q . /proc/$DAEMON/maps && echo ESCAPED"),
    Escape::never("descriptors of the daemon", "ls -l /proc/$DAEMON/fd/0 && echo ESCAPED"),
    Escape::never("root of the daemon", "ls /proc/$DAEMON/root/ && echo ESCAPED"),
    Escape::never("cwd of the daemon", "ls /proc/$DAEMON/cwd/ && echo ESCAPED"),
    Escape::never(
        "descriptors that were inherited",
        "for n in 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$n ] && echo ESCAPED; done",
    ),
    Escape::never("write to a descriptor of the parent", "echo T > /proc/$PPID/fd/0 && echo ESCAPED"),
    Escape::never("signal 0 to the daemon", "kill -0 $DAEMON && echo ESCAPED"),
    Escape::never("SIGSTOP to the daemon", "kill -STOP $DAEMON && echo ESCAPED"),
    Escape::never("SIGKILL to the daemon", "kill -9 $DAEMON && echo ESCAPED"),
    Escape::never("SIGTERM to everything by name", "pkill -x quell && echo ESCAPED"),
    Escape::never("runs by the command line", "QUELL_HOME=$DATA $QUELL runs && echo ESCAPED"),
    Escape::never("stop of everything", "QUELL_HOME=$DATA $QUELL stop --all && echo ESCAPED"),
    Escape::never("hold lifted", "QUELL_HOME=$DATA $QUELL hold off && echo ESCAPED"),
    Escape::never("approvals listed", "QUELL_HOME=$DATA $QUELL approvals && echo ESCAPED"),
    Escape::never("a token of its own", "QUELL_HOME=$DATA $QUELL token create x && echo ESCAPED"),
    Escape::never("runs by HTTP", "$QUELL --url $URL runs && echo ESCAPED").without_both(),
    Escape::never("a guessed token", "$QUELL --url $URL --token admin hold off && echo ESCAPED").without_both(),
    Escape::never("a backup", "QUELL_HOME=$DATA $QUELL backup /tmp/b.db && echo ESCAPED"),
    Escape::never(
        "a second daemon on the data",
        // It may start on a directory of its own that has the same name.
        "QUELL_HOME=$DATA timeout 3 $QUELL serve --listen 127.0.0.1:0 2>/dev/null | while read line; do case $line in *ready*) \
         QUELL_HOME=$DATA $QUELL runs | grep -q facts && echo ESCAPED; break;; esac; done",
    ),
    Escape::never("an approval of its own call", "QUELL_HOME=$DATA $QUELL approvals allow x && echo ESCAPED"),
    Escape::never("an approval by HTTP", "$QUELL --url $URL --token guessed approvals && echo ESCAPED").without_both(),
    Escape::never("an export of a session", "QUELL_HOME=$DATA $QUELL sessions export facts && echo ESCAPED"),
    Escape::never("HTTP without a token", "curl -sf $URL/api/runs && echo ESCAPED").without_both(),
    Escape::never(
        "HTTP with a guessed cookie",
        "curl -sf -H 'Cookie: quell_session=guessed' $URL/api/runs && echo ESCAPED",
    ).without_both(),
    Escape::never(
        "a stop by HTTP",
        "curl -sf -X POST -d '{}' -H 'Content-Type: application/json' $URL/api/stop && echo ESCAPED",
    ).without_both(),
    Escape::never(
        "the socket of the daemon",
        "curl -sf --unix-socket $DATA/quell.sock http://localhost/api/runs && echo ESCAPED",
    ).without_both(),
    Escape::never(
        "a WebSocket of another page",
        "curl -sf --http1.1 -m2 -H 'Origin: http://other.example' -H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' -H 'Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==' $URL/ws | grep -q run && echo ESCAPED",
    ).without_both(),
    Escape::never(
        "token through a descriptor of the directory",
        "exec 9<$DATA && grep -q . /proc/self/fd/9/token && echo ESCAPED",
    ),
    Escape::never(
        "token by a path of the root directory",
        "exec 9</ && grep -q . /proc/self/fd/9$DATA/token && echo ESCAPED",
    ),
    Escape::never("token exchanged with a file", "touch e && mv --exchange e $DATA/token && echo ESCAPED"),
    Escape::never("a core dump of the daemon", "kill -QUIT $DAEMON && echo ESCAPED"),
    Escape::never(
        "block devices",
        "for d in /dev/[svx]d? /dev/nvme?n? /dev/loop0 /dev/dm-0; do head -c1 $d && echo ESCAPED; done",
    ),
    Escape::never(
        "raw memory",
        "for d in /dev/mem /dev/kmem /dev/port /proc/kcore; do head -c1 $d | grep -aq . && echo ESCAPED; done",
    ),
    Escape::never("a device file of its own", "mknod d b 1 0 && echo ESCAPED").without_both(),
    // Files.
    Escape::when_off("a file of a person", "echo x > $PERSON/desk/x && echo ESCAPED"),
    Escape::when_off("a line for the shell of a person", "echo x >> $PERSON/.bashrc && echo ESCAPED"),
    Escape::when_off("a truncated file", "truncate -s0 $PERSON/desk/old && echo ESCAPED"),
    Escape::when_off("a removed file", "rm $PERSON/desk/old && echo ESCAPED"),
    Escape::when_off("a directory outside", "mkdir $PERSON/desk/d && echo ESCAPED"),
    Escape::when_off("a file moved out", "touch f && mv f $PERSON/desk/moved && echo ESCAPED"),
    Escape::when_off("a link out", "touch g; ln g $PERSON/desk/linked && echo ESCAPED"),
    Escape::when_off("a write through a symlink", "ln -sf $PERSON/desk/s s; echo x > s && echo ESCAPED"),
    Escape::when_off("a write through /proc/self/root", "echo x > /proc/self/root$PERSON/desk/r && echo ESCAPED"),
    Escape::when_off("a hard link to a file outside", "ln $PERSON/desk/old n && echo x >> n && echo ESCAPED"),
    Escape::not_by_landlock("permissions of a file outside", "chmod 600 $PERSON/notes && echo ESCAPED"),
    Escape::not_by_landlock("times of a file outside", "touch -d yesterday $PERSON/notes && echo ESCAPED"),
    Escape::when_off("SSH key", "grep -q private $PERSON/.ssh/id && echo ESCAPED"),
    Escape::when_off("SSH key through a symlink", "ln -sf $PERSON/.ssh k; grep -q private k/id && echo ESCAPED"),
    Escape::when_off("a new SSH key", "echo x >> $PERSON/.ssh/authorized_keys && echo ESCAPED"),
    Escape::when_off("cloud credentials", "grep -q private $PERSON/.aws/credentials && echo ESCAPED"),
    Escape::when_off("cookies of a browser", "grep -rq private $PERSON/.mozilla && echo ESCAPED"),
    Escape::when_off("history of a shell", "grep -q private $PERSON/.bash_history && echo ESCAPED"),
    Escape::when_off("registry credentials", "grep -q private $PERSON/.npmrc && echo ESCAPED"),
    Escape::when_off("work of another agent", "grep -q private $OTHER/file && echo ESCAPED"),
    Escape::when_off("a change in the work of another agent", "echo x >> $OTHER/file && echo ESCAPED"),
    Escape::when_off("home of another agent", "touch $OTHER/../.home/other/x && echo ESCAPED"),
    Escape::when_off("hashes of passwords", "grep -q : /etc/shadow && echo ESCAPED"),
    Escape::when_off("a system file", ": >> /etc/hosts && echo ESCAPED"),
    Escape::when_off(
        "a program of the system",
        "touch /usr/local/bin/quell-x && rm /usr/local/bin/quell-x && echo ESCAPED",
    ),
    Escape::when_off("a unit of the service manager", "systemd-run --wait true && echo ESCAPED"),
    Escape::when_off("a unit of the user", "systemd-run --user --wait true && echo ESCAPED"),
    Escape::not_by_landlock("a container", "docker run --rm -v /:/host busybox true && echo ESCAPED"),
    Escape::not_by_landlock("the message bus", "busctl list && echo ESCAPED"),
    Escape::when_off("keys of an agent of keys", "ssh-add -l && echo ESCAPED"),
    Escape::when_off("a job for later", "echo true | at now && echo ESCAPED"),
    Escape::when_off("a job of cron", "echo > /etc/cron.d/quell-x && rm /etc/cron.d/quell-x && echo ESCAPED"),
    Escape::not_by_landlock("files of other programs in /tmp", "ls /tmp | grep -q quell-escape-marker && echo ESCAPED"),
    Escape::not_by_landlock("sockets of services", "ls /run | grep -q . && echo ESCAPED"),
    // The kernel.
    Escape::when_off("a user namespace", "unshare --user true && echo ESCAPED").without_both(),
    Escape::when_off("a user namespace with root", "unshare --user --map-root-user true && echo ESCAPED").without_both(),
    Escape::when_off("a mount namespace", "unshare --mount true && echo ESCAPED").without_both(),
    Escape::when_off("a PID namespace", "unshare --user --pid --fork true && echo ESCAPED").without_both(),
    Escape::when_off("a network namespace", "unshare --user --net true && echo ESCAPED").without_both(),
    Escape::never("a cover taken away", "umount $DATA; grep -q . $DATA/token && echo ESCAPED"),
    Escape::never(
        "a cover taken away in a namespace",
        "unshare --user --map-root-user --mount sh -c 'umount -l $0; grep -q . $0/token' $DATA && echo ESCAPED",
    ).without_both(),
    Escape::never(
        "a bind mount of the data",
        "mkdir -p m; unshare --user --map-root-user --mount sh -c 'mount --bind $0 m; grep -q . m/token' $DATA && echo ESCAPED",
    ).without_both(),
    Escape::never("the namespaces of the daemon", "nsenter --target $DAEMON --mount true && echo ESCAPED").without_both(),
    Escape::never("the namespaces of process 1", "nsenter --target 1 --mount grep -q . $DATA/token && echo ESCAPED").without_both(),
    Escape::never("a mounted file system", "mkdir -p m; mount -t tmpfs x m && echo ESCAPED").without_both(),
    Escape::never("a remounted root", "mount -o remount,rw / && echo ESCAPED").without_both(),
    Escape::never("a mounted proc", "mkdir -p m; mount -t proc x m && echo ESCAPED").without_both(),
    Escape::when_off("another root", "chroot / true && echo ESCAPED").without_both(),
    Escape::never(
        "the core pattern",
        "cat /proc/sys/kernel/core_pattern > c; cat c > /proc/sys/kernel/core_pattern && echo ESCAPED",
    ),
    Escape::never("the helper of hotplug", "echo > /sys/kernel/uevent_helper && echo ESCAPED"),
    Escape::never("the log of the kernel", "dmesg --clear && echo ESCAPED").without_both(),
    Escape::never("the clock", "date -s @1 && echo ESCAPED").without_both(),
    Escape::never("a kernel module", "modprobe dummy && echo ESCAPED").without_both(),
    Escape::when_off("another user", "setpriv --reuid=1 --clear-groups true && echo ESCAPED").without_both(),
    Escape::when_off("another group", "setpriv --regid=1 --clear-groups true && echo ESCAPED").without_both(),
    Escape::when_off("capabilities", "setpriv --inh-caps=+all true && echo ESCAPED").without_both(),
    Escape::never("swap", "swapon /dev/null && echo ESCAPED").without_both(),
    Escape::never("a trace of the daemon", "strace -p $DAEMON -o t & sleep 0.1; grep -q . t && echo ESCAPED"),
    Escape::when_off("a set-user-id program", "cp /bin/sh s && chmod 4755 s && [ -u s ] && rm s && echo ESCAPED").without_both(),
    Escape::when_off("the daemon first to be killed", "echo 1000 > /proc/$DAEMON/oom_score_adj && echo ESCAPED"),
    Escape::not_by_landlock(
        "the priority of the daemon",
        "renice 19 -p $DAEMON && renice 0 -p $DAEMON && echo ESCAPED",
    ),
    Escape::not_by_landlock("the limits of the daemon", "prlimit --pid $DAEMON --cpu && echo ESCAPED"),
    // What stays possible.
    Escape {
        name: "work in the workdir",
        script: "echo x > file && cat file && echo ESCAPED",
        with_namespaces: [Held, Open, Open],
        landlock_alone: [Held, Open, Open],
        held_without_both: true,
    },
    Escape {
        name: "home",
        script: "echo x > ~/f && echo ESCAPED",
        with_namespaces: [Open, Open, AsUser],
        landlock_alone: [Open, Open, AsUser],
        held_without_both: true,
    },
    Escape {
        name: "temporary files",
        script: "t=$(mktemp) && echo x > $t && echo ESCAPED",
        with_namespaces: [Open; 3],
        landlock_alone: [Open, Open, AsUser],
        held_without_both: true,
    },
    Escape {
        name: "read a file of a person",
        script: "grep -q notes $PERSON/notes && echo ESCAPED",
        with_namespaces: [Open; 3],
        landlock_alone: [Open; 3],
        held_without_both: true,
    },
    Escape {
        name: "threads and pipes",
        script: "seq 9 | sort -r | head -1 | grep -q 9 && echo ESCAPED",
        with_namespaces: [Open; 3],
        landlock_alone: [Open; 3],
        held_without_both: true,
    },
    Escape {
        name: "null",
        script: "echo x > /dev/null && head -c1 /dev/urandom > /dev/null && echo ESCAPED",
        with_namespaces: [Open; 3],
        landlock_alone: [Open; 3],
        held_without_both: true,
    },
];
