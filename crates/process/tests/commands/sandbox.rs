//! Tests of the sandbox with real commands, held by namespaces and by Landlock alone.
//!
//! Each case says for a mode what a script must be able to do. Where the system permits no namespaces, the cases of
//! namespaces check the error and end.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::sync::Arc;

use quell_process::{CommandSpec, Isolate, ProcessEnd, SandboxNetwork, SandboxSpec, SessionNetwork, SpawnError};
use quell_protocol::sandbox::{ResourceLimits, SandboxFacts, SandboxLayer, SandboxMode};
use quell_scope::StopLevel;
use rstest::rstest;

use crate::fixture::{CommandFixture, WARDEN_BINARY};

/// A daemon's files, an agent's files, and files of a person, below one directory.
struct SandboxFixture {
    commands: CommandFixture,
    dir: tempfile::TempDir,
}

impl SandboxFixture {
    async fn new(isolate: Isolate) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["data", "work/main", "work/other", "agent-home", "tmp", "person/.ssh", "person/etc", "person/desk"]
        {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        for name in ["data/token", "person/.ssh/id", "person/etc/quell.toml", "person/notes", "work/other/file"] {
            fs::write(dir.path().join(name), format!("content of {name}\n")).unwrap();
        }
        Self { commands: CommandFixture::with_isolation(isolate).await, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn sandbox(&self, mode: SandboxMode) -> SandboxSpec {
        SandboxSpec {
            protected: vec![self.path("data"), self.path("person/etc/quell.toml")],
            hidden: vec![self.path("work"), self.path("person/.ssh")],
            // A checkout in /tmp is hidden.
            readable: vec![self.path("person"), WARDEN_BINARY.into()],
            writable: vec![self.path("work/main")],
            home: Some(self.path("agent-home")),
            temporary: Some(self.path("tmp")),
            ..SandboxSpec::new(mode)
        }
    }

    /// A script in the workdir; `$D` is the directory of this fixture, `$PROBE` tries a system call.
    fn spec(&self, sandbox: SandboxSpec, script: &str) -> CommandSpec {
        let mut spec =
            CommandSpec { cwd: self.path("work/main"), sandbox: Some(Arc::new(sandbox)), ..self.commands.spec(script) };
        spec.env.push(("D".into(), self.dir.path().into()));
        spec.env.push(("PROBE".into(), format!("{WARDEN_BINARY} probe").into()));
        spec.env.push(("HOME".into(), self.path("agent-home").into()));
        spec
    }

    async fn run(&self, sandbox: SandboxSpec, script: &str) -> Result<ProcessEnd, SpawnError> {
        self.commands.run_spec(&self.spec(sandbox, script)).await
    }

    /// Runs a script that must succeed, and returns what it printed.
    async fn output(&self, sandbox: SandboxSpec, script: &str) -> String {
        let end = self.run(sandbox, script).await.unwrap();
        assert_eq!(end.code, Some(0), "{script}: {}", end.output.text());
        end.output.text()
    }

    /// Whether a script succeeds.
    async fn permits(&self, mode: SandboxMode, script: &str) -> bool {
        let end = self.run(self.sandbox(mode), script).await.unwrap();
        end.code == Some(0)
    }
}

/// Whether the system permits namespaces; says so if not.
async fn permits_namespaces(isolate: Isolate) -> bool {
    let commands = CommandFixture::with_isolation(isolate).await;
    let is_permitted = commands.run_spec(&commands.spec("true")).await.is_ok();
    if !is_permitted {
        eprintln!("skipped: namespaces are not permitted");
    }
    is_permitted
}

const OFF: &[SandboxMode] = &[SandboxMode::Off];
const NOT_READ_ONLY: &[SandboxMode] = &[SandboxMode::Workspace, SandboxMode::Off];
const ALL: &[SandboxMode] = &SandboxMode::ALL;
const NONE: &[SandboxMode] = &[];

/// Asserts in which modes a script succeeds.
async fn assert_permitted_in(isolate: Isolate, modes: &[SandboxMode], script: &str) {
    if isolate == Isolate::Pid && !permits_namespaces(isolate).await {
        return;
    }
    let fixture = SandboxFixture::new(isolate).await;
    for mode in SandboxMode::ALL {
        let permitted = fixture.permits(mode, script).await;
        assert_eq!(permitted, modes.contains(&mode), "{mode:?}: {script}");
    }
}

#[rstest]
#[case::token("cat $D/data/token", NONE)]
#[case::list_of_data("cat $D/data/*", NONE)]
#[case::through_proc_root("cat /proc/self/root$D/data/token", NONE)]
#[case::through_cwd("cat ../../data/token", NONE)]
#[case::by_symlink("ln -sf $D/data/token l; cat l", NONE)]
#[case::by_hard_link("ln $D/data/token /tmp/h-${D##*/} && grep content /tmp/h-${D##*/}", NONE)]
#[case::configuration("grep content $D/person/etc/quell.toml", NONE)]
#[case::write_configuration("echo x >> $D/person/etc/quell.toml && false || grep -q x $D/person/etc/quell.toml", NONE)]
#[case::replace_configuration("mv $D/person/etc/quell.toml /tmp/x-${D##*/}", NONE)]
#[case::create_in_data("echo x > $D/data/new", NONE)]
#[case::raw_disk("for d in /dev/vd? /dev/sd? /dev/nvme?n? /dev/mem; do head -c1 $d && exit 0; done; false", NONE)]
#[case::read_workdir("ls .", ALL)]
#[case::read_notes("grep content $D/person/notes", ALL)]
#[case::read_keys_of_a_person("grep content $D/person/.ssh/id", OFF)]
#[case::read_other_agent("grep content $D/work/other/file", OFF)]
#[case::write_workdir("echo x > file && mkdir -p d && mv file d/", NOT_READ_ONLY)]
#[case::write_outside("echo x > $D/person/desk/new", OFF)]
#[case::rename_outside("echo x > f; mv f $D/person/desk/", OFF)]
#[case::write_home("echo x > ~/file", ALL)]
#[case::write_etc("touch /etc/quell-${D##*/} && rm /etc/quell-${D##*/}", if is_root() { OFF } else { NONE })]
#[case::temporary_files("f=$(mktemp -p ${TMPDIR:-.}) && echo x > $f && test -s $f", ALL)]
#[case::null_device("echo x > /dev/null && head -c4 /dev/urandom > /dev/null", ALL)]
#[case::terminal("exec 3<>/dev/ptmx", ALL)]
#[case::shared_memory("echo x > /dev/shm/quell-${D##*/} && rm /dev/shm/quell-${D##*/}", ALL)]
#[tokio::test]
async fn files_and_modes(
    #[case] script: &str,
    #[case] modes: &[SandboxMode],
    #[values(Isolate::Pid, Isolate::None)] isolate: Isolate,
) {
    assert_permitted_in(isolate, modes, script).await;
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The calls that would change the machine or leave the sandbox. What is not permitted to anybody fails in the mode
/// `off`, too; so only the other modes are asserted.
#[rstest]
#[tokio::test]
async fn system_calls_that_leave_the_sandbox_are_refused(
    #[values(SandboxMode::ReadOnly, SandboxMode::Workspace)] mode: SandboxMode,
    #[values(Isolate::Pid, Isolate::None)] isolate: Isolate,
    #[values(
        "unshare-user",
        "unshare-mount",
        "unshare-time",
        "clone-user",
        "setns",
        "mount /tmp",
        "umount /tmp",
        "umount $D/data",
        "open-tree /",
        "fsopen",
        "pivot-root /tmp",
        "chroot /tmp",
        "bpf",
        "keyctl",
        "kexec",
        "module",
        "perf",
        "userfaultfd",
        "open-by-handle",
        "reboot",
        "set-hostname",
        "set-user",
        "make-device ./null",
        "vsock",
        "raw",
        "packet",
        "push-input",
        "set-user-id ~/program",
        "set-user-id-unnamed",
        "chmod-user ~/file",
        "chmod-group ~/file"
    )]
    call: &str,
) {
    if !permits_namespaces(isolate).await {
        return;
    }
    let fixture = SandboxFixture::new(isolate).await;
    let end = fixture.run(fixture.sandbox(mode), &format!("cd; touch ~/file; $PROBE {call}")).await.unwrap();
    let text = end.output.text();
    assert_eq!(end.code, Some(1), "{text}");
    let is_refused = ["not permitted", "denied", "Read-only"].iter().any(|word| text.contains(word));
    // An ordinary user's namespace has one user, so the kernel calls every other one an invalid argument.
    let is_unknown_user = call == "set-user" && !is_root() && text.contains("Invalid argument");
    assert!(is_refused || is_unknown_user, "{text}");
}

#[rstest]
#[tokio::test]
async fn calls_with_a_fall_back_are_absent(#[values("clone3", "io-uring", "openat2", "x32")] call: &str) {
    let fixture = SandboxFixture::new(Isolate::None).await;
    let end = fixture.run(fixture.sandbox(SandboxMode::Workspace), &format!("$PROBE {call}")).await.unwrap();
    assert!(end.output.text().contains("not implemented"), "{}", end.output.text());
}

#[rstest]
#[tokio::test]
async fn usual_calls_work_in_every_mode(
    #[values(SandboxMode::ReadOnly, SandboxMode::Workspace, SandboxMode::Off)] mode: SandboxMode,
    #[values(Isolate::Pid, Isolate::None)] isolate: Isolate,
) {
    if !permits_namespaces(isolate).await {
        return;
    }
    let fixture = SandboxFixture::new(isolate).await;
    let calls = ["thread", "unshare-files", "loopback", "own-abstract quell-test-own", "signal 0"];
    for call in calls.into_iter().chain(["create-plain ~/plain", "chmod-plain ~/plain"]) {
        fixture.output(fixture.sandbox(mode), &format!("$PROBE {call}")).await;
    }
}

#[rstest]
#[tokio::test]
async fn chromium_may_create_namespaces_if_the_agent_may(#[values(Isolate::Pid, Isolate::None)] isolate: Isolate) {
    if !permits_namespaces(Isolate::Pid).await {
        return;
    }
    let fixture = SandboxFixture::new(isolate).await;
    let sandbox = SandboxSpec { nested_namespaces: true, ..fixture.sandbox(SandboxMode::Workspace) };
    fixture.output(sandbox.clone(), "$PROBE unshare-user && $PROBE clone-user").await;
    let end = fixture.run(sandbox, "unshare -Urm umount $D/data").await.unwrap();
    assert_ne!(end.code, Some(0), "a cover was taken away: {}", end.output.text());
}

#[rstest]
#[tokio::test]
async fn no_process_outside_can_be_reached(
    #[values(SandboxMode::ReadOnly, SandboxMode::Workspace)] mode: SandboxMode,
    #[values(Isolate::Pid, Isolate::None)] isolate: Isolate,
) {
    if !permits_namespaces(isolate).await {
        return;
    }
    let fixture = SandboxFixture::new(isolate).await;
    let daemon = std::process::id();
    for script in [
        format!("$PROBE trace {daemon}"),
        format!("$PROBE signal {daemon}"),
        format!("cat /proc/{daemon}/environ"),
        format!("ls -l /proc/{daemon}/fd/0"),
    ] {
        let end = fixture.run(fixture.sandbox(mode), &script).await.unwrap();
        assert_ne!(end.code, Some(0), "{script}: {}", end.output.text());
    }
}

#[rstest]
#[tokio::test]
async fn without_a_network_nothing_outside_is_reached(
    #[values(SandboxMode::ReadOnly, SandboxMode::Workspace, SandboxMode::Off)] mode: SandboxMode,
    #[values(Isolate::Pid, Isolate::None)] isolate: Isolate,
) {
    if !permits_namespaces(isolate).await {
        return;
    }
    let fixture = SandboxFixture::new(isolate).await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    datagrams.set_nonblocking(true).unwrap();
    let reach = format!("$PROBE tcp {address}");
    let send = format!("$PROBE udp {}", datagrams.local_addr().unwrap());
    fixture.output(fixture.sandbox(mode), &format!("{reach} && {send}")).await;
    assert_eq!(datagrams.recv(&mut [0; 8]).unwrap(), 1, "with a network it arrives");
    let sandbox = SandboxSpec { network: SandboxNetwork::Closed, ..fixture.sandbox(mode) };
    let end = fixture.run(sandbox.clone(), &format!("{send}; {reach}")).await.unwrap();
    assert_ne!(end.code, Some(0), "{}", end.output.text());
    assert!(end.sandbox.unwrap().layers.contains(&SandboxLayer::Network));
    assert_eq!(datagrams.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    if isolate == Isolate::Pid {
        fixture.output(sandbox, "$PROBE loopback").await;
    }
}

#[tokio::test]
async fn commands_share_a_network_as_long_as_one_of_them_runs() {
    if !permits_namespaces(Isolate::Pid).await {
        return;
    }
    let fixture = SandboxFixture::new(Isolate::Pid).await;
    let sandbox = SandboxSpec { network: SandboxNetwork::Closed, ..fixture.sandbox(SandboxMode::Workspace) };
    let alone = fixture.output(sandbox.clone(), "readlink /proc/self/ns/net; echo ready").await;
    let network = Arc::new(SessionNetwork::default());
    let gone = Arc::downgrade(&network);
    let spec =
        |script| CommandSpec { session_network: Some(Arc::clone(&network)), ..fixture.spec(sandbox.clone(), script) };
    // Started at once, so that only one of them may create it.
    let mut running: Vec<_> = (0..8)
        .map(|_| fixture.commands.start_spec(spec("readlink /proc/self/ns/net; echo ready; exec sleep 1000")))
        .collect();
    let mut names = BTreeSet::new();
    for started in &mut running {
        names.insert(started.wait_for_output("ready").await);
    }
    assert_eq!(names.len(), 1, "{names:?}");
    assert!(!names.contains(&alone), "{alone}");
    drop(network);
    fixture.commands.scope.stop(StopLevel::Forced);
    for started in running {
        let end = started.handle.await.unwrap().unwrap();
        assert_eq!(end.leftovers, Vec::<String>::new());
    }
    assert!(gone.upgrade().is_none(), "it ends with the last command");
}

#[rstest]
#[tokio::test]
async fn sockets_of_services_are_out_of_reach(
    #[values(SandboxMode::ReadOnly, SandboxMode::Workspace)] mode: SandboxMode,
    #[values(Isolate::Pid, Isolate::None)] isolate: Isolate,
) {
    if !permits_namespaces(isolate).await {
        return;
    }
    let fixture = SandboxFixture::new(isolate).await;
    let name = format!("quell-test-{}", std::process::id());
    let _abstract_listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let _listener = UnixListener::bind(fixture.path("service.sock")).unwrap();
    fixture.output(fixture.sandbox(SandboxMode::Off), &format!("$PROBE abstract {name}")).await;
    let end = fixture.run(fixture.sandbox(mode), &format!("$PROBE abstract {name}")).await.unwrap();
    assert_ne!(end.code, Some(0), "{}", end.output.text());
    if isolate == Isolate::Pid {
        // Landlock of ABI 7 alone does not stop it.
        let end = fixture.run(fixture.sandbox(mode), "$PROBE unix $D/service.sock").await.unwrap();
        assert_ne!(end.code, Some(0), "a socket in /tmp");
    }
}

#[rstest]
#[case::all(SandboxMode::Workspace, Isolate::Pid)]
#[case::off(SandboxMode::Off, Isolate::Pid)]
#[case::landlock_alone(SandboxMode::Workspace, Isolate::None)]
#[tokio::test]
async fn the_facts_are_those_of_proc(#[case] mode: SandboxMode, #[case] isolate: Isolate) {
    if !permits_namespaces(isolate).await {
        return;
    }
    let fixture = SandboxFixture::new(isolate).await;
    let script = "cat /proc/self/status; readlink /proc/self/ns/mnt /proc/self/ns/pid";
    let end = fixture.run(fixture.sandbox(mode), script).await.unwrap();
    let text = end.output.text();
    let facts: SandboxFacts = end.sandbox.unwrap();
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned();
    let has = |layer| facts.layers.contains(&layer);
    assert_eq!(field("Seccomp:") == "2", has(SandboxLayer::SystemCalls), "{text}");
    assert_eq!(field("NoNewPrivs:") == "1", mode != SandboxMode::Off || isolate == Isolate::None, "{text}");
    if mode != SandboxMode::Off {
        let none = "0".repeat(16);
        assert_eq!(field("CapEff:"), none, "{text}");
        // Without a namespace an ordinary user may not give up what it could gain; `no_new_privs` keeps it from that.
        assert_eq!(field("CapBnd:") == none, is_root() || isolate == Isolate::Pid, "{text}");
    }
    for (namespace, layer) in [("mnt", SandboxLayer::Mounts), ("pid", SandboxLayer::Processes)] {
        let own = fs::read_link(format!("/proc/self/ns/{namespace}")).unwrap();
        assert_eq!(!text.contains(own.to_str().unwrap()), has(layer), "{text}");
    }
    let missing: Vec<SandboxLayer> = facts.missing.iter().map(|missing| missing.layer).collect();
    let expected = [SandboxLayer::Mounts, SandboxLayer::Processes, SandboxLayer::Ipc];
    assert_eq!(missing, if isolate == Isolate::None { &expected[..] } else { &[] }, "{facts:?}");
}

/// The least number of processes that a namespace can be limited to.
const FEW_PROCESSES: u32 = ResourceLimits::MIN_PROCESSES;

#[tokio::test]
async fn a_command_has_no_more_processes_than_its_limit() {
    if !permits_namespaces(Isolate::Pid).await {
        return;
    }
    let fixture = SandboxFixture::new(Isolate::Pid).await;
    let of_the_system = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
    let script = format!("i=0; while [ $i -lt {} ]; do sleep 300 & i=$((i+1)); done; echo all", FEW_PROCESSES + 100);
    for (limit, starts_all) in [(None, true), (Some(FEW_PROCESSES), false)] {
        let limits = ResourceLimits { processes: limit, memory_bytes: None };
        let end =
            fixture.run(SandboxSpec { limits, ..fixture.sandbox(SandboxMode::Workspace) }, &script).await.unwrap();
        let facts = end.sandbox.as_ref().unwrap();
        if facts.missing.iter().any(|missing| missing.layer == SandboxLayer::Limits) {
            eprintln!("skipped: {facts:?}");
            return;
        }
        assert_eq!(facts.layers.contains(&SandboxLayer::Limits), limit.is_some());
        assert_eq!(end.output.text().ends_with("all\n"), starts_all, "{}", end.output.text());
    }
    assert_eq!(fs::read_to_string("/proc/sys/kernel/pid_max").unwrap(), of_the_system);
}

#[rstest]
#[tokio::test]
async fn a_process_has_no_more_memory_than_its_limit(#[values(Isolate::Pid, Isolate::None)] isolate: Isolate) {
    if !permits_namespaces(isolate).await {
        return;
    }
    let fixture = SandboxFixture::new(isolate).await;
    // `tail` keeps a line without an end in its memory.
    let script = "head -c 200000000 /dev/zero | tail | wc -c";
    for (limit, is_kept) in [(None, true), (Some(64 << 20), false)] {
        let limits = ResourceLimits { processes: None, memory_bytes: limit };
        let end = fixture.run(SandboxSpec { limits, ..fixture.sandbox(SandboxMode::Workspace) }, script).await.unwrap();
        assert_eq!(end.output.text().contains("200000000"), is_kept, "{}", end.output.text());
    }
}

#[tokio::test]
async fn a_required_layer_that_is_missing_refuses_the_command() {
    let fixture = SandboxFixture::new(Isolate::None).await;
    let sandbox = SandboxSpec { is_required: true, ..fixture.sandbox(SandboxMode::Workspace) };
    let error = fixture.run(sandbox, "touch started").await.unwrap_err();
    assert!(error.to_string().contains("a mount namespace is required and missing"), "{error}");
    assert!(!fixture.path("work/main/started").exists());
}

#[tokio::test]
async fn this_process_is_bound_by_nothing() {
    let fixture = SandboxFixture::new(Isolate::Pid).await;
    let before = fs::read_to_string("/proc/thread-self/status").unwrap();
    let _ = fixture.run(fixture.sandbox(SandboxMode::ReadOnly), "true").await;
    fs::write(fixture.path("data/token"), "new").unwrap();
    for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap();
        for name in ["NoNewPrivs:", "Seccomp:", "CapEff:"] {
            let line = |text: &str| text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
            assert_eq!(line(&status), line(&before), "{name}");
        }
    }
}

#[tokio::test]
async fn nothing_of_a_sandbox_is_left_on_the_disk() {
    if !permits_namespaces(Isolate::Pid).await {
        return;
    }
    let fixture = SandboxFixture::new(Isolate::Pid).await;
    fixture.output(fixture.sandbox(SandboxMode::Workspace), "echo x > /tmp/a; echo y > /var/tmp/b").await;
    let content = |name: &str| fs::read_to_string(fixture.path("tmp").join(name)).unwrap();
    assert_eq!((content("a"), content("b")), ("x\n".into(), "y\n".into()), "the given directory is both");
    assert!(fs::read_dir(fixture.path("work/main")).unwrap().next().is_none());
}
