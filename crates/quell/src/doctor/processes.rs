//! Start a command with a hidden child and check that a stop ends both; report isolation.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_engine::agent::open_places;
use quell_kernel::StopTimeouts;
use quell_process::{CommandSpec, Isolate, OutputSink, SandboxSpec, SpawnError, Wardens};
use quell_protocol::ToolOutputStream;
use quell_protocol::receipt::Containment;
use quell_protocol::sandbox::{SandboxFacts, SandboxMode};
use quell_scope::clock::Clock;
use quell_scope::{PointProbe, Scope};

use super::finding::DoctorFinding;
use super::{CheckInput, ConfiguredInput};
use crate::runtime::block_on;

/// Starts a child, in its own session where `setsid` is installed, prints its pid and waits for it.
const HIDDEN_CHILD: &str = "\
if command -v setsid >/dev/null 2>&1; then setsid sleep 300 & else sleep 300 & fi
echo $!
wait";

/// No check may hang: after this time the command is ended.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a command with a child that left its session, stops it, and checks that the child is gone.
pub(super) fn check_wardens(input: &CheckInput) -> Vec<DoctorFinding> {
    let times = input.loaded.as_ref().map_or_else(|_| StopTimeouts::default(), |loaded| loaded.stop_times());
    let probe = CommandProbe { input, times };
    vec![match block_on(&input.runtime, probe.time_hidden_child_stop()) {
        Ok(took) => {
            DoctorFinding::ok(format!("a command and the child it hid in another session were ended in {took} ms"))
        }
        Err(problem) => DoctorFinding::fail(
            problem,
            "run `quell demo` to see more; a sandbox that forbids /proc, ptrace scopes or prctl may be the reason",
        ),
    }]
}

/// Reports what contains the commands of agents: a PID namespace, a cgroup, or the search of a warden.
pub(super) fn isolation(input: &ConfiguredInput<'_>) -> Vec<DoctorFinding> {
    let probe = CommandProbe { input: input.base, times: input.loaded.stop_times() };
    let containment = match block_on(&input.base.runtime, probe.probe_containment()) {
        Ok(held_by) => held_by,
        Err(problem) => return vec![DoctorFinding::fail(problem, "run `quell demo` to see more")],
    };
    let agents = input.loaded.config.agents.iter().filter(|(_, agent)| agent.isolate == Isolate::Pid);
    let names: Vec<&str> = agents.map(|(id, _)| id.as_str()).collect();
    vec![match containment {
        ContainmentFinding::Namespace { own_proc: true } => {
            DoctorFinding::ok("commands get a PID namespace with a /proc of its own: a stop ends all of one at once")
        }
        ContainmentFinding::Namespace { own_proc: false } => DoctorFinding::warn(
            "commands get a PID namespace, and a stop ends all of one at once; they see the processes outside in /proc, \
             because parts of /proc are hidden here, as containers and services do",
            "nothing has to be done for stops; a host without hidden parts of /proc lets commands see their own processes alone",
        ),
        ContainmentFinding::Other { words, why } if names.is_empty() => DoctorFinding::warn(
            format!("the system permits no PID namespace ({why}); commands are held by {words}"),
            REMEDY,
        ),
        ContainmentFinding::Other { words: _, why } => DoctorFinding::fail(
            format!("the system permits no PID namespace ({why}); asked for by {}", names.join(", ")),
            REMEDY,
        ),
    }]
}

/// Reports which layers of the sandbox the system permits, and what commands can read below the home directory.
pub(super) fn sandbox(input: &ConfiguredInput<'_>) -> Vec<DoctorFinding> {
    let mut findings = sandbox_layers(input);
    let home = input.base.environment.iter().find(|(name, _)| name == "HOME").map(|(_, home)| PathBuf::from(home));
    if let Some(home) = home {
        let open: Vec<String> = open_places(&home).iter().map(|path| path.display().to_string()).collect();
        let open = if open.is_empty() { "nothing".to_owned() } else { open.join(", ") };
        findings.push(DoctorFinding::ok(format!(
            "of what begins with a dot in {}, commands can read: {open}; `readable` opens more",
            home.display()
        )));
    }
    findings
}

fn sandbox_layers(input: &ConfiguredInput<'_>) -> Vec<DoctorFinding> {
    let probe = CommandProbe { input: input.base, times: input.loaded.stop_times() };
    let facts = match block_on(&input.base.runtime, probe.probe_sandbox()) {
        Ok(facts) => facts,
        Err(problem) => return vec![DoctorFinding::fail(problem, FILTER_REMEDY)],
    };
    let layers: Vec<&str> = facts.layers.iter().map(|layer| layer.description()).collect();
    let layers = layers.join(", ");
    if facts.missing.is_empty() {
        return vec![DoctorFinding::ok(format!("commands are held back by {layers}"))];
    }
    let missing: Vec<String> =
        facts.missing.iter().map(|missing| format!("{} ({})", missing.layer.description(), missing.reason)).collect();
    let missing = missing.join(", ");
    let agents = input.loaded.config.agents.iter().filter(|(_, agent)| agent.sandbox_require);
    let names: Vec<&str> = agents.map(|(id, _)| id.as_str()).collect();
    vec![match names.is_empty() {
        true => DoctorFinding::warn(
            format!("the sandbox of commands lacks {missing}; they are held back by {layers}"),
            REMEDY,
        ),
        false => DoctorFinding::fail(
            format!("the sandbox of commands lacks {missing}; required by {}", names.join(", ")),
            REMEDY,
        ),
    }]
}

/// Causes of refused namespaces, and how to permit them.
const REMEDY: &str = "\
permit user namespaces: sysctl -w user.max_user_namespaces=10000; on Ubuntu also kernel.apparmor_restrict_unprivileged_userns=0; \
in a container a seccomp profile that allows clone with CLONE_NEWUSER; under systemd Delegate=yes gives each command a cgroup instead";

/// What to do if a step of the sandbox fails that every kernel permits.
const FILTER_REMEDY: &str = "\
if a service manager or a container starts the daemon, its filter of system calls must permit seccomp, landlock_create_ruleset, \
landlock_add_rule and landlock_restrict_self (packaging/quell.service does); `quell demo` shows more";

enum ContainmentFinding {
    Namespace { own_proc: bool },
    Other { words: &'static str, why: String },
}

/// Exits with 0 when /proc shows the shell under the pid that it has for itself.
const OWN_PROC_SCRIPT: &str = "read number rest </proc/self/stat; [ \"$number\" = $$ ]";

/// Starts test commands under wardens.
struct CommandProbe<'a> {
    input: &'a CheckInput,
    times: StopTimeouts,
}

impl CommandProbe<'_> {
    /// Returns the milliseconds from the stop until all processes were gone.
    async fn time_hidden_child_stop(&self) -> Result<u128, String> {
        let wardens = self.start_wardens()?;
        let scope = Scope::new(Clock::start(), PointProbe::default());
        let mut sink = StopAtFirstLine { scope: scope.clone(), text: String::new(), stopped: None };
        let ended = wardens.run(&self.command_spec(HIDDEN_CHILD, Isolate::None), &scope, &mut sink).await;
        scope.close().await;
        let end = ended.map_err(|error| spawn_error_text(&error))?;
        let (Some(stopped), Ok(child)) = (sink.stopped, sink.text.trim().parse::<u32>()) else {
            return Err(format!("a test command did not work: {}", end.output.text()));
        };
        let took = stopped.elapsed().as_millis();
        if !end.leftovers.is_empty() {
            return Err(format!("not everything could be ended: {}", end.leftovers.join(", ")));
        }
        if Path::new("/proc").join(child.to_string()).exists() {
            return Err(format!("a child that left its session outlived its command: pid {child}"));
        }
        Ok(took)
    }

    async fn probe_containment(&self) -> Result<ContainmentFinding, String> {
        let wardens = self.start_wardens()?;
        let scope = Scope::new(Clock::start(), PointProbe::default());
        let tried = wardens.run(&self.command_spec(OWN_PROC_SCRIPT, Isolate::Auto), &scope, &mut DiscardOutput).await;
        let refused = wardens.run(&self.command_spec("true", Isolate::Pid), &scope, &mut DiscardOutput).await.err();
        scope.close().await;
        let end = tried.map_err(|error| spawn_error_text(&error))?;
        match end.held_by {
            Some(Containment::Namespace) => Ok(ContainmentFinding::Namespace { own_proc: end.code == Some(0) }),
            Some(other) => {
                let cause = refused.as_ref().and_then(std::error::Error::source);
                let why = cause.map_or_else(|| "it was refused once".to_owned(), ToString::to_string);
                Ok(ContainmentFinding::Other { words: other.description(), why })
            }
            None => Err("a test command did not start".to_owned()),
        }
    }

    /// What holds back a command in the mode `workspace`.
    async fn probe_sandbox(&self) -> Result<SandboxFacts, String> {
        let wardens = self.start_wardens()?;
        let scope = Scope::new(Clock::start(), PointProbe::default());
        let sandbox = Some(Arc::new(SandboxSpec::new(SandboxMode::Workspace)));
        // The directory for temporary files of the system is not seen in a sandbox.
        let spec = CommandSpec { cwd: PathBuf::from("/"), sandbox, ..self.command_spec("true", Isolate::Auto) };
        let tried = wardens.run(&spec, &scope, &mut DiscardOutput).await;
        scope.close().await;
        let end = tried.map_err(|error| spawn_error_text(&error))?;
        end.sandbox.ok_or_else(|| "a sandboxed test command did not start".to_owned())
    }

    fn start_wardens(&self) -> Result<Wardens, String> {
        Wardens::new(self.input.warden.clone(), self.times)
            .map_err(|error| format!("a warden cannot be started: {error}"))
    }

    fn command_spec(&self, script: &str, isolate: Isolate) -> CommandSpec {
        CommandSpec {
            argv: ["sh", "-c", script].map(|word| OsStr::new(word).to_owned()).to_vec(),
            label: "test of the doctor".to_owned(),
            cwd: PathBuf::from("/"),
            env: self.input.environment.clone(),
            timeout: Some(COMMAND_TIMEOUT),
            output_limit: 4096,
            isolate,
            sandbox: None,
            network: None,
            session_network: None,
        }
    }
}

fn spawn_error_text(error: &SpawnError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

struct DiscardOutput;

impl OutputSink for DiscardOutput {
    fn output(&mut self, _stream: ToolOutputStream, _text: &str) {}
}

/// Stops the command once its first line is complete: its child is running then.
struct StopAtFirstLine {
    scope: Scope,
    text: String,
    stopped: Option<Instant>,
}

impl OutputSink for StopAtFirstLine {
    fn output(&mut self, stream: ToolOutputStream, text: &str) {
        if self.stopped.is_some() || stream != ToolOutputStream::Stdout {
            return;
        }
        self.text.push_str(text);
        if self.text.contains('\n') {
            self.stopped = Some(Instant::now());
            self.scope.cancel();
        }
    }
}
