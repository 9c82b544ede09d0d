//! A malicious model on the real binary: what the sandbox of its commands holds back, in every mode, as root and as an
//! ordinary user, with namespaces and with Landlock alone.

mod escalation;
mod escapes;
mod network;
mod usability;

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use quell_protocol::SandboxMode;
use quell_testkit::kernel::RefusedCalls;
use quell_testkit::skip::{announce_skip, lacks_root};

use crate::prelude::*;
use crate::test_engine::shell_call;
use escapes::{ESCAPES, Escape, Expectation, KernelSupport};

const ORDINARY_USER: u32 = 65534;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SandboxUser {
    Root,
    Ordinary,
    /// A daemon of root, whose malicious agent has a user of its own (`run_as`).
    RootWithAgentUser,
}

/// The user of commands with `run_as`, which the system does not know.
const AGENT_USER: u32 = 20_001;

/// A daemon with the agents `main`, which is malicious, and `other`, and the home directory of a person.
struct SandboxDaemon {
    model: ScriptedModel,
    daemon: TestDaemon,
    quell: PathBuf,
    _process_lock: ProcessLock,
}

impl SandboxDaemon {
    /// `None` when this user cannot be tried here. `agent` continues the section of `main`.
    async fn start(user: SandboxUser, agent: &str) -> Option<Self> {
        Self::start_on(KernelSupport::Everything, user, agent).await
    }

    /// As [`Self::start`], with a kernel that offers no more than `kernel`, apart from namespaces.
    async fn start_on(kernel: KernelSupport, user: SandboxUser, agent: &str) -> Option<Self> {
        let process_lock = ProcessLock::shared().await;
        let model = ScriptedModel::start().await;
        let home = DaemonHome::new("");
        let agent_user = match user {
            SandboxUser::RootWithAgentUser => format!("run_as = {AGENT_USER}\n"),
            SandboxUser::Root | SandboxUser::Ordinary => String::new(),
        };
        if user == SandboxUser::RootWithAgentUser {
            // The directories above a workdir must be open to its user.
            std::fs::set_permissions(home.root_dir(), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let key = home.root_dir().join("key");
        let config = format!(
            "{}[providers.keyed]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\napi_key_file = {key:?}\n\
             [providers.named]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\napi_key_env = \"KEY_OF_THE_TEST\"\n\
             [agents.main]\nmodel = \"scripted/m\"\n{agent_user}{agent}[agents.other]\nmodel = \"scripted/m\"\n",
            provider_toml(&model)
        );
        std::fs::write(home.config_file(), config).unwrap();
        std::fs::write(&key, "secret-key-in-a-file").unwrap();
        let person = home.root_dir().join("person");
        for name in ["desk", ".ssh", ".aws", ".mozilla"] {
            std::fs::create_dir_all(person.join(name)).unwrap();
        }
        for name in [".ssh/id", ".aws/credentials", ".mozilla/cookies", ".bash_history", ".npmrc"] {
            std::fs::write(person.join(name), "private").unwrap();
        }
        std::fs::write(person.join(".gitconfig"), "[user]\n\tname = Person\n").unwrap();
        for name in ["notes", "desk/old", ".bashrc"] {
            std::fs::write(person.join(name), "notes").unwrap();
        }
        let home = home.with_env("HOME", person.to_str().unwrap()).with_env("KEY_OF_THE_TEST", "secret-key");
        let quell = home.copy_executable(quell_exe());
        let started = match kernel.refused_calls() {
            None => quell.clone(),
            Some(refused) => with_refused_calls(refused, home.root_dir(), &quell),
        };
        let started = with_inheritance(home.root_dir(), &started);
        let becomes_ordinary = user == SandboxUser::Ordinary && rustix::process::geteuid().is_root();
        let home = match user {
            SandboxUser::Root | SandboxUser::RootWithAgentUser if lacks_root() => return None,
            SandboxUser::Ordinary if becomes_ordinary => {
                give_to_user(home.root_dir(), ORDINARY_USER);
                home.owned_by_user(ORDINARY_USER)
            }
            SandboxUser::Root | SandboxUser::RootWithAgentUser | SandboxUser::Ordinary => home,
        };
        let daemon = home.start(&started).await;
        let other = daemon.home().work_dir().join("other/file");
        std::fs::write(&other, "private").unwrap();
        if becomes_ordinary {
            give_to_user(&other, ORDINARY_USER);
        }
        Some(Self { model, daemon, quell, _process_lock: process_lock })
    }

    /// The admin token.
    fn token(&self) -> String {
        let token = std::fs::read_to_string(self.daemon.home().data_dir().join("token")).unwrap();
        token.trim().to_owned()
    }

    /// The lines that set the variables of the scripts.
    fn variables(&self) -> String {
        let home = self.daemon.home();
        let root = home.root_dir();
        let paths = [
            ("DATA", home.data_dir()),
            ("CONFIG", home.config_file()),
            ("KEY", root.join("key")),
            ("OTHER", home.work_dir().join("other")),
            ("PERSON", root.join("person")),
            ("QUELL", self.quell.clone()),
        ];
        let paths: String = paths.iter().map(|(name, path)| format!("{name}='{}'\n", path.display())).collect();
        format!("{paths}DAEMON={}\nURL='{}'\n", self.daemon.pid(), self.daemon.url())
    }

    /// Runs a command of the malicious model to the end of its run; returns what the model was told, and the run.
    async fn run_command(&self, session: &str, command: &str) -> (String, Value) {
        self.model.script(shell_call(command)).script(ScriptedResponse::text("seen"));
        let run = self.daemon.api().send_message(session, "go").await;
        let view = self.daemon.api().wait_ended(&run).await;
        assert_eq!(view["verdict"]["kind"], "completed", "{command}: {view:#}");
        assert_eq!(view["receipt"]["leftovers"], json!([]), "{command}: {view:#}");
        let requests = self.model.recorded_requests();
        let told = requests.last().unwrap().messages().last().unwrap()["content"].as_str().unwrap().to_owned();
        (told, view)
    }

    /// Tries an escape; says how it differs from what the table says beforehand.
    async fn try_escape(&self, escape: &Escape, mode: SandboxMode, kernel: KernelSupport) -> Option<String> {
        let expected = escape.expected(mode, kernel)?;
        let command = format!("{}{}", self.variables(), escape.script);
        let (told, _) = self.run_command(escape.name, &command).await;
        let has_escaped = told.contains("ESCAPED");
        let is_expected = match expected {
            Expectation::Held => !has_escaped,
            Expectation::Open => has_escaped,
            Expectation::AsUser => true,
        };
        (!is_expected).then(|| format!("{}: {told}", escape.name))
    }
}

/// A program that runs another one with an open descriptor, and with signals ignored as by `nohup`.
fn with_inheritance(directory: &Path, program: &Path) -> PathBuf {
    let script = format!("trap '' HUP USR1 USR2 ALRM PROF\nexec 9</etc/passwd\nexec '{}' \"$@\"", program.display());
    write_shell_program(directory.join("with-inheritance"), &script)
}

/// A program that runs `quell` with these system calls refused.
fn with_refused_calls(refused: RefusedCalls, directory: &Path, quell: &Path) -> PathBuf {
    let filter = directory.join("filter");
    std::fs::copy(std::env::current_exe().unwrap(), &filter).unwrap();
    let script = format!(
        "{REFUSED_VARIABLE}={} {PROGRAM_VARIABLE}='{}' {ARGUMENTS_VARIABLE}=\"$*\" \
         exec '{}' --exact sandbox::runs_with_refused_calls --ignored",
        refused.name(),
        quell.display(),
        filter.display()
    );
    write_shell_program(directory.join("with-refused-calls"), &script)
}

const REFUSED_VARIABLE: &str = "QUELL_TEST_REFUSED_CALLS";
const PROGRAM_VARIABLE: &str = "QUELL_TEST_PROGRAM";
const ARGUMENTS_VARIABLE: &str = "QUELL_TEST_ARGUMENTS";

#[test]
#[ignore = "full: does nothing unless the tests below start it as a process"]
fn runs_with_refused_calls() {
    let Some(program) = std::env::var_os(PROGRAM_VARIABLE) else { return };
    let arguments = std::env::var(ARGUMENTS_VARIABLE).unwrap();
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    let refused = std::env::var(REFUSED_VARIABLE).ok().and_then(|name| RefusedCalls::parse(&name)).unwrap();
    panic!("{}", quell_testkit::kernel::exec_with_refused_calls(refused, &program, &arguments));
}

fn give_to_user(path: &Path, user: u32) {
    chown(path, Some(user), Some(user)).unwrap();
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap().flatten() {
            give_to_user(&entry.path(), user);
        }
    }
}

fn process_row(run: &Value) -> &Value {
    let rows = run["receipt"]["resources"].as_array().unwrap();
    rows.iter().find(|row| row["kind"] == "process").unwrap_or_else(|| panic!("no process: {run:#}"))
}

/// The default mode, with everything that this kernel has.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_escapes_by_default_but_what_the_table_says(
    #[values(SandboxUser::Root, SandboxUser::Ordinary)] user: SandboxUser,
) {
    assert_table(user, SandboxMode::Workspace, KernelSupport::Everything).await;
}

#[rstest]
#[case::read_only(SandboxMode::ReadOnly, KernelSupport::Everything)]
#[case::off(SandboxMode::Off, KernelSupport::Everything)]
#[case::read_only_landlock(SandboxMode::ReadOnly, KernelSupport::LandlockAlone)]
#[case::workspace_landlock(SandboxMode::Workspace, KernelSupport::LandlockAlone)]
#[case::off_landlock(SandboxMode::Off, KernelSupport::LandlockAlone)]
#[ignore = "full: more modes, and kernels that support less"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_escapes_in_other_modes_but_what_the_table_says(
    #[case] mode: SandboxMode,
    #[case] kernel: KernelSupport,
    #[values(SandboxUser::Root, SandboxUser::Ordinary)] user: SandboxUser,
) {
    assert_table(user, mode, kernel).await;
}

#[rstest]
#[ignore = "full: a user of its own for each agent"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_user_for_the_agent_nothing_escapes_but_what_the_table_says(
    #[values(SandboxMode::ReadOnly, SandboxMode::Workspace, SandboxMode::Off)] mode: SandboxMode,
) {
    assert_table(SandboxUser::RootWithAgentUser, mode, KernelSupport::Everything).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_run_as_the_user_of_their_agent(
    #[values(SandboxMode::Workspace, SandboxMode::Off)] mode: SandboxMode,
) {
    let agent = format!("sandbox = \"{}\"\ndelegates = [\"other\"]\n", mode.as_str());
    let Some(test) = SandboxDaemon::start(SandboxUser::RootWithAgentUser, &agent).await else { return };
    let script = "id -u; id -g; id -G; echo said > /dev/stderr; grep CapBnd /proc/self/status; touch own; \
                  echo \"$USER $LOGNAME\"; cd ~ && touch in-home && pwd";
    let (told, run) = test.run_command("s", script).await;
    let facts = &process_row(&run)["sandbox"];
    if facts["missing"].to_string().contains("mounts") {
        announce_skip("the system permits no namespaces");
        return;
    }
    assert_eq!(facts["user"], AGENT_USER, "{facts:#}");
    let ids = told.lines().filter(|line| *line == AGENT_USER.to_string()).count();
    assert!(ids == 3 && told.contains("said\n"), "{told}");
    assert_eq!(told.contains("CapBnd:\t0000000000000000"), mode == SandboxMode::Workspace, "{told}");
    assert!(told.contains(&format!("{AGENT_USER} {AGENT_USER}\n")) && told.contains("/.home/main\n"), "{told}");
    // Root's settings of Git, which this user could not read, do not get in the way.
    let (told, _) =
        test.run_command("s", "git init -q repository && git -C repository status --short && echo GIT").await;
    assert!(told.contains("GIT"), "{told}");
    // What the file tools make is the agent's, too: its commands can change it.
    let write = json!({"path": "deep/file", "content": "made by a tool\n"});
    test.model
        .script(ScriptedResponse::tool_call("c1", "write_file", &write))
        .script(ScriptedResponse::text("written"));
    let run = test.daemon.api().send_message("s", "go").await;
    test.daemon.api().wait_ended(&run).await;
    let own_places = if mode == SandboxMode::Off { "" } else { "touch /tmp/kept && " };
    let change = format!("echo more >> deep/file && touch deep/other && cat deep/file; {own_places}echo DONE");
    let (told, _) = test.run_command("s", &change).await;
    assert!(told.contains("made by a tool\nmore\n") && told.contains("DONE"), "{told}");
    let workdir = test.daemon.home().work_dir().join("main");
    for name in [".", "own", "deep", "deep/file", "deep/other"] {
        assert_eq!(std::fs::metadata(workdir.join(name)).unwrap().uid(), AGENT_USER, "{name}");
    }
    // The file tools work as the daemon: they do not leave the workdir, whatever the mode.
    let private = test.daemon.home().work_dir().join("other/file");
    for call in [
        ("read_file", json!({"path": private})),
        ("write_file", json!({"path": "/etc/quell-run-as", "content": "x"})),
        ("write_file", json!({"path": "../other/new", "content": "x"})),
    ] {
        test.model.script(ScriptedResponse::tool_call("c2", call.0, &call.1)).script(ScriptedResponse::text("seen"));
        let run = test.daemon.api().send_message("files", "go").await;
        test.daemon.api().wait_ended(&run).await;
        let told = test.model.recorded_requests().last().unwrap().messages().last().unwrap()["content"].to_string();
        assert!(told.contains("outside") && !told.contains("private"), "{call:?}: {told}");
    }
    assert!(!Path::new("/etc/quell-run-as").exists());
    // An agent that would run as root is not called.
    let spawn = json!({"agent": "other", "prompt": "go"});
    test.model.script(ScriptedResponse::tool_call("c3", "spawn_agent", &spawn)).script(ScriptedResponse::text("seen"));
    let run = test.daemon.api().send_message("delegation", "go").await;
    test.daemon.api().wait_ended(&run).await;
    let told = test.model.recorded_requests().last().unwrap().messages().last().unwrap()["content"].to_string();
    assert!(told.contains("has no user of its own"), "{told}");
    // A stop ends what another user started.
    test.model.script(shell_call("setsid sleep 1000 & touch begun; sleep 1000"));
    let run = test.daemon.api().send_message("s", "go").await;
    let begun = workdir.join("begun");
    poll_until("the command", async || begun.exists().then_some(())).await;
    let view = test.daemon.api().stop_run(&run).await;
    assert_eq!(view["receipt"]["leftovers"], json!([]), "{view:#}");
}

#[rstest]
#[ignore = "full: kernels that support less"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_landlock_nothing_escapes_but_what_the_table_says(
    #[values(SandboxUser::Root, SandboxUser::Ordinary)] user: SandboxUser,
    #[values(KernelSupport::NamespacesAlone, KernelSupport::Neither)] kernel: KernelSupport,
) {
    assert_table(user, SandboxMode::Workspace, kernel).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_ignores_no_signal_that_its_daemon_was_started_with_ignored(#[values("auto", "none")] isolate: &str) {
    let agent = format!("isolate = \"{isolate}\"\n");
    let test = SandboxDaemon::start(SandboxUser::Ordinary, &agent).await.unwrap();
    let script = "for name in HUP USR1 USR2 ALRM PROF; do sh -c \"kill -$name \\$\\$; echo ignored\"; done; echo works";
    let (told, _) = test.run_command("s", script).await;
    assert!(told.contains("works") && !told.contains("ignored"), "{told}");
}

/// Tries every escape of the table.
async fn assert_table(user: SandboxUser, mode: SandboxMode, kernel: KernelSupport) {
    let isolate = if kernel.has_namespaces() { "auto" } else { "none" };
    // The home directory of the person and the binary lie in /tmp, which is hidden.
    let readable = if mode == SandboxMode::Off { "" } else { "readable = [\"~/\", \"~/../quell\"]\n" };
    let agent = format!("sandbox = \"{}\"\nisolate = \"{isolate}\"\n{readable}", mode.as_str());
    let Some(test) = SandboxDaemon::start_on(kernel, user, &agent).await else { return };
    let (_, run) = test.run_command("facts", "true").await;
    let facts = &process_row(&run)["sandbox"];
    assert_eq!(facts["mode"], mode.as_str(), "{facts:#}");
    let missing: Vec<&str> =
        facts["missing"].as_array().into_iter().flatten().filter_map(|missing| missing["layer"].as_str()).collect();
    if kernel.has_namespaces() && missing.contains(&"mounts") {
        announce_skip("the system permits no namespaces");
        return;
    }
    assert_eq!(missing.contains(&"landlock"), kernel.refused_calls().is_some(), "{facts:#}");
    assert_eq!(missing.contains(&"mounts"), !kernel.has_namespaces(), "{facts:#}");
    let own_files = [test.daemon.home().config_file(), test.daemon.home().root_dir().join("key")];
    let before = own_files.clone().map(|file| std::fs::read(file).unwrap());
    let marker = tempfile::Builder::new().prefix("quell-escape-marker").tempfile().unwrap();
    let mut differences = Vec::new();
    for escape in ESCAPES {
        differences.extend(test.try_escape(escape, mode, kernel).await);
    }
    drop(marker);
    assert_eq!(own_files.map(|file| std::fs::read(file).unwrap()), before, "Quell's own files were changed");
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
    test.model.assert_histories_valid();
    assert!(test.daemon.stop().await.success(), "{}", test.daemon.output());
}

/// Each refusal says by which rule, and how a person may permit it.
#[rstest]
#[case::write("touch /etc/x", "workspace", "`writable = [")]
#[case::hidden("ls /run/", "workspace", "")]
#[case::read_only("touch here", "read-only", "`writable = [")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_command_is_told_the_rule_and_the_remedy(
    #[case] command: &str,
    #[case] mode: &str,
    #[case] remedy: &str,
) {
    let Some(test) = SandboxDaemon::start(SandboxUser::Ordinary, &format!("sandbox = \"{mode}\"\n")).await else {
        return;
    };
    let (told, _) = test.run_command("s", command).await;
    assert!(told.contains(remedy), "{told}");
    assert_eq!(told.contains(&format!("`{mode}`")), !remedy.is_empty(), "{told}");
}

/// What was moved away would be open to the next command, which finds what is protected by its path.
#[rstest]
#[case::data("mv $(dirname $DATA) $(dirname $DATA)-2")]
#[case::configuration("mv $PERSON/.config $PERSON/.c")]
#[case::person("mv $PERSON $PERSON-2")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_above_what_is_protected_stay_where_they_are(
    #[case] script: &str,
    #[values(SandboxUser::Root, SandboxUser::Ordinary)] user: SandboxUser,
    #[values("auto", "none")] isolate: &str,
) {
    let agent = format!("sandbox = \"off\"\nisolate = \"{isolate}\"\n");
    let Some(test) = SandboxDaemon::start(user, &agent).await else { return };
    let (told, _) = test.run_command("s", &format!("{}{script} && echo MOVED", test.variables())).await;
    assert!(!told.contains("MOVED"), "{told}");
}

/// What fills the machine with processes or memory ends with its command, and hurts nothing else.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bombs_stay_within_the_limits_of_their_agent(
    #[values(SandboxUser::Root, SandboxUser::Ordinary)] user: SandboxUser,
) {
    let agent = "isolate = \"pid\"\nmax_processes = 301\nmax_memory_mb = 64\n";
    let Some(test) = SandboxDaemon::start(user, agent).await else { return };
    let (told, run) = test.run_command("memory", "head -c 200000000 /dev/zero | tail | wc -c").await;
    assert!(!told.contains("200000000"), "{told}");
    let facts = &process_row(&run)["sandbox"];
    if !facts["layers"].as_array().unwrap().contains(&json!("limits")) {
        announce_skip("this kernel limits no processes of a namespace");
        return;
    }
    // Each shell starts two more, and none ends by itself.
    let bomb = "export B='sh -c \"$B\" & sh -c \"$B\" & wait'; sh -c \"$B\"; echo exploded";
    test.run_command("processes", bomb).await;
    test.model.script(shell_call(format!("touch begun; {bomb}; sleep 600")));
    let run = test.daemon.api().send_message("stopped", "go").await;
    let begun = test.daemon.home().work_dir().join("main/begun");
    poll_until("the bomb", async || begun.exists().then_some(())).await;
    let view = test.daemon.api().stop_run(&run).await;
    assert_eq!(view["receipt"]["leftovers"], json!([]), "{view:#}");
    let (told, _) = test.run_command("after", "echo fine").await;
    assert!(told.starts_with("fine"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn temporary_files_last_as_long_as_the_session_and_the_home_as_long_as_the_agent() {
    let Some(test) = SandboxDaemon::start(SandboxUser::Ordinary, "").await else { return };
    test.run_command("s", "echo kept > /tmp/file; echo kept > ~/file").await;
    let (told, _) = test.run_command("s", "cat /tmp/file ~/file").await;
    assert!(told.starts_with("kept\nkept\n"), "{told}");
    let (told, _) = test.run_command("t", "ls /tmp; cat ~/f*").await;
    assert!(told.contains("kept\n") && !told.contains("file"), "{told}");
    let temporary = test.daemon.home().data_dir().join("tmp");
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 2);
    test.daemon.api().delete("/api/sessions/s").await.expect_status(204);
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 1, "those of a deleted session are deleted");
}

/// As under a unit of systemd whose filter lacks the calls. The errors name the call and not a wrong cause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_around_the_daemon_is_named() {
    let Some(test) = SandboxDaemon::start_on(KernelSupport::Filtered, SandboxUser::Ordinary, "").await else { return };
    test.model.script(shell_call("true")).script(ScriptedResponse::text("seen"));
    let run = test.daemon.api().send_message("s", "go").await;
    test.daemon.api().wait_ended(&run).await;
    let told = test.model.recorded_requests().last().unwrap().messages().last().unwrap()["content"].to_string();
    assert!(told.contains("use the system call seccomp: Operation not permitted"), "{told}");
}
