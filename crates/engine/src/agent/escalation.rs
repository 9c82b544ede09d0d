//! Read whether a call asks to run outside of the sandbox, on what it then acts, and what it may reach.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_kernel::escalation::{AgentFiles, CallPlace, EscalationRight, describe_escalation, split_escalation};
use quell_kernel::network_access::NetworkAccess;
use quell_kernel::turn::{CallResult, ToolCall};
use quell_process::{SandboxNetwork, SandboxSpec};
use quell_protocol::CallEnd;
use quell_protocol::approval::{Escalation, subject_field};
use quell_protocol::sandbox::SandboxMode;
use quell_scope::{Cancelled, Point};
use quell_tools::real_target;
use serde_json::Value;

use super::tools::is_sandboxed_tool;
use super::{Agent, AgentLoop, Limits};

/// How many words of a command are looked at for names of files.
const MAX_COMMAND_WORDS: usize = 200;

/// A call as it is executed.
#[derive(Debug)]
pub(super) struct PlannedCall {
    /// The call without its request to run outside of the sandbox. If it has one, its path is without symbolic links: a
    /// person sees what it acts on, and it follows no link that the agent makes afterwards.
    pub(super) call: ToolCall,
    /// What people are shown, if it asks to run outside.
    pub(super) escalation: Option<Escalation>,
}

impl PlannedCall {
    pub(super) fn place(&self) -> CallPlace {
        if self.escalation.is_some() { CallPlace::OutsideOfSandbox } else { CallPlace::Usual }
    }
}

impl Agent {
    pub(super) fn escalation_right(&self, limits: &Limits) -> EscalationRight {
        EscalationRight::of(&self.sandbox, limits.approval_timeout_s)
    }
}

impl AgentLoop<'_> {
    /// Takes the request to run outside of the sandbox out of a call. The inner error is the result of a wrong request.
    ///
    /// # Cancel safety
    /// Safe: it only looks at files.
    pub(super) async fn plan_call(&self, call: &ToolCall) -> Result<Result<PlannedCall, CallResult>, Cancelled> {
        if !is_sandboxed_tool(&call.tool) {
            return Ok(Ok(PlannedCall { call: call.clone(), escalation: None }));
        }
        let refused = |problem: &dyn std::fmt::Display| {
            Ok(Err(CallResult::new(CallEnd::Error, format!("{problem}. Nothing was done."))))
        };
        let split = match split_escalation(&call.arguments) {
            Ok(split) => split,
            Err(problem) => return refused(&problem),
        };
        let mut call = ToolCall { arguments: split.arguments, ..call.clone() };
        let right = self.agent.escalation_right(&self.services.limits);
        let Some(reason) = split.reason.filter(|_| right != EscalationRight::NotSandboxed) else {
            return Ok(Ok(PlannedCall { call, escalation: None }));
        };
        if right != EscalationRight::MayAsk {
            // Refused unasked, so nobody needs to know what it acts on.
            let (sandbox, workdir) = (&self.agent.sandbox, &self.agent.workdir);
            let escalation = Some(describe_escalation(sandbox, workdir, reason, &AgentFiles::default()));
            return Ok(Ok(PlannedCall { call, escalation }));
        }
        let (sandbox, workdir) = (self.agent.sandbox.clone(), self.agent.workdir.clone());
        let (tool, arguments) = (call.tool.clone(), call.arguments.clone());
        let home = self.services.sandbox_site.home_of(&self.agent.id);
        let look = move |stop: &AtomicBool| {
            let places = changeable_places(sandbox.mode, &workdir, &sandbox.writable, home);
            Target::of(&tool, &arguments, &workdir, &places, stop)
        };
        match self.scope.blocking(Point::Blocking, "look at what the call acts on", look).await? {
            Ok(target) => {
                if let Some((field, path)) = target.path {
                    call.arguments[field] = Value::String(path.to_string_lossy().into_owned());
                }
                let (sandbox, workdir) = (&self.agent.sandbox, &self.agent.workdir);
                let escalation = Some(describe_escalation(sandbox, workdir, reason, &target.agent_files));
                Ok(Ok(PlannedCall { call, escalation }))
            }
            Err(problem) => refused(&problem),
        }
    }

    /// What the commands and file tools of a call may reach.
    pub(super) fn sandbox_of(&self, planned: &PlannedCall) -> Arc<SandboxSpec> {
        let session = &self.writer.run().session;
        let usual = self.sandbox.get_or_init(|| self.services.sandbox(self.agent, session));
        match planned.place() {
            CallPlace::Usual => Arc::clone(usual),
            // The mode `off` still hides what is protected.
            CallPlace::OutsideOfSandbox => {
                Arc::new(SandboxSpec { network: SandboxNetwork::Daemon, ..usual.with_mode(SandboxMode::Off) })
            }
        }
    }

    /// The servers that a call may reach.
    pub(super) fn network_of(&self, planned: &PlannedCall) -> &NetworkAccess {
        match planned.place() {
            CallPlace::Usual => &self.agent.sandbox.network,
            CallPlace::OutsideOfSandbox => &NetworkAccess::On,
        }
    }
}

/// What a call outside of the sandbox acts on.
#[derive(Debug, Default, PartialEq, Eq)]
struct Target {
    /// The argument with the path of a file tool, and the path without symbolic links.
    path: Option<(&'static str, PathBuf)>,
    agent_files: AgentFiles,
}

impl Target {
    /// `places` are those that the agent can change.
    ///
    /// # Errors
    /// Those of [`real_target`].
    fn of(
        tool: &str,
        arguments: &Value,
        workdir: &Path,
        places: &[PathBuf],
        stop: &AtomicBool,
    ) -> Result<Self, String> {
        let text = |field: &str| arguments.get(field).and_then(Value::as_str);
        match subject_field(tool) {
            Some("command") => {
                let start = workdir.join(text("cwd").unwrap_or_default());
                let agent_files = agent_files(text("command").unwrap_or_default(), &start, places, stop);
                Ok(Self { path: None, agent_files })
            }
            Some(field) => {
                let path = text(field).map(|path| real_target(workdir, path)).transpose()?;
                Ok(Self { path: path.map(|path| (field, path)), agent_files: AgentFiles::default() })
            }
            None => Ok(Self::default()),
        }
    }
}

/// Where commands of an agent can change files: its home, and in a sandbox that permits it the workdir and more.
fn changeable_places(mode: SandboxMode, workdir: &Path, writable: &[PathBuf], home: PathBuf) -> Vec<PathBuf> {
    match mode {
        SandboxMode::ReadOnly => vec![home],
        SandboxMode::Workspace | SandboxMode::Off => {
            writable.iter().cloned().chain([home, workdir.to_owned()]).collect()
        }
    }
}

/// What of this command lies where the agent can change it. A command can hide what it loads, so this is help, no proof.
fn agent_files(command: &str, start: &Path, places: &[PathBuf], stop: &AtomicBool) -> AgentFiles {
    let places: Vec<PathBuf> = places.iter().filter_map(|place| place.canonicalize().ok()).collect();
    let is_of_agent =
        |path: &Path| path.canonicalize().is_ok_and(|real| places.iter().any(|place| real.starts_with(place)));
    let separates = |c: char| c.is_whitespace() || ";|&()<>'\"`=".contains(c);
    let words = command.split(separates).filter(|word| !word.is_empty()).take(MAX_COMMAND_WORDS);
    let mut named: Vec<String> = Vec::new();
    // A stop waits for one word at most.
    for word in words.take_while(|_| !stop.load(Ordering::Relaxed)) {
        let path = start.join(word);
        if path.is_file() && is_of_agent(&path) && !named.iter().any(|known| known == word) {
            named.push(word.to_owned());
        }
    }
    AgentFiles { start: is_of_agent(start).then(|| start.to_owned()), named }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_is_shown_without_links() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let workdir = root.join("work");
        std::fs::create_dir(&workdir).unwrap();
        symlink("../elsewhere", workdir.join("notes.txt")).unwrap();
        symlink("/", workdir.join("top")).unwrap();
        let target = |path: &str| {
            let target = Target::of("write_file", &json!({"path": path}), &workdir, &[], &AtomicBool::new(false))?;
            Ok::<_, String>(target.path.unwrap().1)
        };
        // A link whose target does not exist is named; the tool follows none.
        assert_eq!(target("notes.txt"), Ok(workdir.join("notes.txt")));
        std::fs::write(root.join("elsewhere"), "").unwrap();
        assert_eq!(target("notes.txt"), Ok(root.join("elsewhere")));
        assert_eq!(target("top/etc/new"), Ok(PathBuf::from("/etc/new")));
        assert_eq!(
            target("new/../top/etc"),
            Err("\"new/../top/etc\" goes up from a directory that does not exist".to_owned())
        );
        assert_eq!(
            Target::of("write_file", &json!({"path": 1}), &workdir, &[], &AtomicBool::new(false)),
            Ok(Target::default())
        );
    }

    #[test]
    fn a_read_only_sandbox_leaves_the_home_alone() {
        let places = |mode| changeable_places(mode, Path::new("/w"), &[PathBuf::from("/more")], "/home".into());
        assert_eq!(places(SandboxMode::ReadOnly), [PathBuf::from("/home")]);
        assert_eq!(places(SandboxMode::Workspace), ["/more", "/home", "/w"].map(PathBuf::from));
    }

    #[test]
    fn files_that_the_agent_can_change_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let workdir = dir.path().join("work");
        std::fs::create_dir(&workdir).unwrap();
        std::fs::write(workdir.join("deploy.sh"), "").unwrap();
        let files = agent_files(
            "sh ./deploy.sh && cat 'deploy.sh' /etc/passwd",
            &workdir,
            std::slice::from_ref(&workdir),
            &AtomicBool::new(false),
        );
        assert_eq!(
            files,
            AgentFiles { start: Some(workdir.clone()), named: vec!["./deploy.sh".into(), "deploy.sh".into()] }
        );
        assert_eq!(
            agent_files("ls /etc/passwd", Path::new("/"), std::slice::from_ref(&workdir), &AtomicBool::new(false)),
            AgentFiles::default()
        );
    }
}
