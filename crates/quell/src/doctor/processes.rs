//! Whether processes can be started and really ended here: tried, not concluded.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::{Duration, Instant};

use quell_engine::clock::Clock;
use quell_engine::proc::{CommandSpec, Isolate, OutputSink, SpawnError, WardenExe, Wardens};
use quell_engine::scope::{Probe, Scope};
use quell_kernel::StopTimes;
use quell_protocol::ToolOutputStream;
use quell_protocol::receipt::Containment;

use super::finding::Finding;
use super::{Patient, Setup};

/// A child in a session of its own where `setsid` is there, its number, and a parent that waits for it.
const HIDDEN_CHILD: &str = "\
if command -v setsid >/dev/null 2>&1; then setsid sleep 300 & else sleep 300 & fi
echo $!
wait";

/// No check may hang: after this the command is ended.
const LIMIT: Duration = Duration::from_secs(10);

/// Starts a command with a child that left its session, stops it, and looks whether the child is gone.
pub(super) fn wardens(patient: &Patient) -> Vec<Finding> {
    let times = patient.loaded.as_ref().map_or_else(|_| StopTimes::default(), |loaded| loaded.stop_times());
    let bench = Bench { warden: &patient.warden, environment: &patient.environment, times };
    let finding = match patient.runtime.block_on(bench.stop_a_hidden_child()) {
        Ok(took) => Finding::ok(format!("a command and the child it hid in another session were ended in {took} ms")),
        Err(problem) => Finding::fail(
            problem,
            "run `quell demo` to see more; a sandbox that forbids /proc, ptrace scopes or prctl may be the reason",
        ),
    };
    vec![finding]
}

/// What ends the commands of agents: the kernel at once, or the search of a warden.
pub(super) fn isolation(setup: &Setup<'_>) -> Vec<Finding> {
    let bench = Bench { warden: setup.warden, environment: setup.environment, times: setup.loaded.stop_times() };
    let held_by = match setup.runtime.block_on(bench.held_by()) {
        Ok(held_by) => held_by,
        Err(problem) => return vec![Finding::fail(problem, "run `quell demo` to see more")],
    };
    let agents = setup.loaded.config.agents.iter().filter(|(_, agent)| agent.isolate == Isolate::Pid);
    let names: Vec<&str> = agents.map(|(id, _)| id.as_str()).collect();
    let finding = match held_by {
        HeldBy::Namespace { own_proc: true } => {
            Finding::ok("commands get a PID namespace with a /proc of its own: a stop ends all of one at once")
        }
        HeldBy::Namespace { own_proc: false } => Finding::warn(
            "commands get a PID namespace, and a stop ends all of one at once; they see the processes outside in /proc, \
             because parts of /proc are hidden here, as containers and services do",
            "nothing has to be done for stops; a host without hidden parts of /proc lets commands see their own processes alone",
        ),
        HeldBy::Other { words, why } if names.is_empty() => {
            Finding::warn(format!("the system permits no PID namespace ({why}); commands are held by {words}"), REMEDY)
        }
        HeldBy::Other { words: _, why } => Finding::fail(
            format!("the system permits no PID namespace ({why}); asked for by {}", names.join(", ")),
            REMEDY,
        ),
    };
    vec![finding]
}

/// Who forbids namespaces, and how each permits them.
const REMEDY: &str = "\
permit user namespaces: sysctl -w user.max_user_namespaces=10000; on Ubuntu also kernel.apparmor_restrict_unprivileged_userns=0; \
in a container a seccomp profile that allows clone with CLONE_NEWUSER; under systemd Delegate=yes gives each command a cgroup instead";

/// Found by a command that was tried.
enum HeldBy {
    Namespace { own_proc: bool },
    Other { words: &'static str, why: String },
}

/// Ends with 0 when /proc shows the shell under the number that it has for itself.
const LOOKS_AT_PROC: &str = "read number rest </proc/self/stat; [ \"$number\" = $$ ]";

/// What a command needs to run.
struct Bench<'a> {
    warden: &'a WardenExe,
    environment: &'a [(OsString, OsString)],
    times: StopTimes,
}

impl Bench<'_> {
    /// Milliseconds from the stop until everything was gone.
    async fn stop_a_hidden_child(&self) -> Result<u128, String> {
        let wardens = self.wardens()?;
        let scope = Scope::new(Clock::start(), Probe::default());
        let mut sink = StopAtFirstLine { scope: scope.clone(), text: String::new(), stopped: None };
        let ended = wardens.run(&self.command(HIDDEN_CHILD, Isolate::None), &scope, &mut sink).await;
        scope.close().await;
        let end = ended.map_err(|error| describe(&error))?;
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

    async fn held_by(&self) -> Result<HeldBy, String> {
        let wardens = self.wardens()?;
        let scope = Scope::new(Clock::start(), Probe::default());
        let tried = wardens.run(&self.command(LOOKS_AT_PROC, Isolate::Auto), &scope, &mut Silent).await;
        let refused = wardens.run(&self.command("true", Isolate::Pid), &scope, &mut Silent).await.err();
        scope.close().await;
        let end = tried.map_err(|error| describe(&error))?;
        match end.held_by {
            Some(Containment::Namespace) => Ok(HeldBy::Namespace { own_proc: end.code == Some(0) }),
            Some(other) => {
                let cause = refused.as_ref().and_then(std::error::Error::source);
                let why = cause.map_or_else(|| "it was refused once".to_owned(), ToString::to_string);
                Ok(HeldBy::Other { words: other.words(), why })
            }
            None => Err("a test command did not start".to_owned()),
        }
    }

    fn wardens(&self) -> Result<Wardens, String> {
        Wardens::new(self.warden.clone(), self.times).map_err(|error| format!("a warden cannot be started: {error}"))
    }

    fn command(&self, script: &str, isolate: Isolate) -> CommandSpec {
        CommandSpec {
            argv: ["sh", "-c", script].map(|word| OsStr::new(word).to_owned()).to_vec(),
            label: "test of the doctor".to_owned(),
            cwd: std::env::temp_dir(),
            env: self.environment.to_vec(),
            timeout: Some(LIMIT),
            output_limit: 4096,
            isolate,
        }
    }
}

fn describe(error: &SpawnError) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

struct Silent;

impl OutputSink for Silent {
    fn output(&mut self, _stream: ToolOutputStream, _text: &str) {}
}

/// Stops the command once its first line is complete: then its child lives.
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
