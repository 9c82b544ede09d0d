//! Decide whether a tool call may start, must wait for a person, or is refused, and read its request to run outside of
//! the sandbox.

use std::path::{Path, PathBuf};

use quell_protocol::approval::Escalation;
use quell_protocol::sandbox::SandboxMode;
use serde_json::Value;

use crate::approval::ApprovalPolicy;
use crate::network_access::NetworkAccess;
use crate::permissions::SandboxRights;

/// The argument by which a call asks to run outside of the sandbox. Its value is the reason.
pub const ESCALATE_ARGUMENT: &str = "escalate";

/// The longest reason, in characters.
pub const MAX_ESCALATION_REASON_CHARS: usize = 1000;

/// The arguments of a call without its request, and the reason of the request.
#[derive(Debug, Clone, PartialEq)]
pub struct SplitArguments {
    pub arguments: Value,
    /// `None` if the call does not ask to run outside of the sandbox.
    pub reason: Option<String>,
}

/// What is wrong with the request of a call. The text is for the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EscalationProblem {
    #[error(
        "`escalate` must be a text: the reason why the call has to run outside of the sandbox, for the person who decides"
    )]
    NoReason,
    #[error("the reason in `escalate` is too long; it may have {MAX_ESCALATION_REASON_CHARS} characters")]
    ReasonTooLong,
}

/// Takes the request to run outside of the sandbox out of the arguments of a call.
///
/// # Errors
/// The request has no reason, or one that is too long. A call with `null` or `false` does not ask.
pub fn split_escalation(arguments: &Value) -> Result<SplitArguments, EscalationProblem> {
    let mut arguments = arguments.clone();
    let given = arguments.as_object_mut().and_then(|fields| fields.remove(ESCALATE_ARGUMENT));
    let reason = match given {
        None | Some(Value::Null | Value::Bool(false)) => None,
        Some(Value::String(reason)) if !reason.trim().is_empty() => Some(reason.trim().to_owned()),
        Some(_) => return Err(EscalationProblem::NoReason),
    };
    if reason.as_ref().is_some_and(|reason| reason.chars().count() > MAX_ESCALATION_REASON_CHARS) {
        return Err(EscalationProblem::ReasonTooLong);
    }
    Ok(SplitArguments { arguments, reason })
}

/// Whether the calls of a run may ask to run outside of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EscalationRight {
    /// There is no sandbox to leave.
    NotSandboxed,
    /// They may ask a person.
    MayAsk,
    /// The configuration of the agent, or of an agent above it, says no.
    Forbidden,
    /// The time limit of approvals is 0: every request would be denied at once.
    NobodyAnswers,
}

impl EscalationRight {
    /// `approval_timeout_s` is the time that people have for an answer.
    #[must_use]
    pub fn of(sandbox: &SandboxRights, approval_timeout_s: u64) -> Self {
        match sandbox {
            SandboxRights { mode: SandboxMode::Off, network: NetworkAccess::On, .. } => Self::NotSandboxed,
            SandboxRights { may_escalate: false, .. } => Self::Forbidden,
            _ if approval_timeout_s == 0 => Self::NobodyAnswers,
            _ => Self::MayAsk,
        }
    }
}

/// How a call asks to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallPlace {
    /// Where all calls of its agent run.
    Usual,
    /// Outside of the sandbox.
    OutsideOfSandbox,
}

/// What happens before a call starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallGate {
    Run,
    /// Only after a person has allowed it, now or by a remembered allowance of the same place.
    Ask,
    DeniedByPolicy,
    EscalationForbidden,
    NobodyAnswers,
}

/// Decides about a call. A call outside of the sandbox always waits for a person: the policy `auto` does not let it run,
/// and `deny` denies it.
#[must_use]
pub fn gate_call(policy: ApprovalPolicy, place: CallPlace, right: EscalationRight) -> CallGate {
    match (policy, place, right) {
        (ApprovalPolicy::Deny, _, _) => CallGate::DeniedByPolicy,
        (ApprovalPolicy::Auto, CallPlace::Usual, _)
        | (ApprovalPolicy::Auto, CallPlace::OutsideOfSandbox, EscalationRight::NotSandboxed) => CallGate::Run,
        (ApprovalPolicy::Ask, CallPlace::Usual, _)
        | (ApprovalPolicy::Ask, CallPlace::OutsideOfSandbox, EscalationRight::NotSandboxed)
        | (ApprovalPolicy::Auto | ApprovalPolicy::Ask, CallPlace::OutsideOfSandbox, EscalationRight::MayAsk) => {
            CallGate::Ask
        }
        (_, CallPlace::OutsideOfSandbox, EscalationRight::Forbidden) => CallGate::EscalationForbidden,
        (_, CallPlace::OutsideOfSandbox, EscalationRight::NobodyAnswers) => CallGate::NobodyAnswers,
    }
}

/// What no approval opens.
const STAYS_CLOSED: &str =
    "Quell's own data, configuration and keys stay out of reach, and a stop ends the call as any other";

/// How many files a person is told of.
const MAX_NAMED_FILES: usize = 5;

/// What a command outside of the sandbox may load, although the agent can change it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentFiles {
    /// Where the command starts, if the agent can change files there.
    pub start: Option<PathBuf>,
    /// Files that the command names, as it names them.
    pub named: Vec<String>,
}

impl AgentFiles {
    /// A warning for the person who decides; empty if there is nothing to warn of.
    fn warning(&self) -> String {
        let named = match &self.named[..] {
            [] => String::new(),
            names => {
                let more = if names.len() > MAX_NAMED_FILES { ", ..." } else { "" };
                let names: Vec<&str> = names.iter().take(MAX_NAMED_FILES).map(String::as_str).collect();
                format!(", also {}{more}", names.join(", "))
            }
        };
        let place = match &self.start {
            Some(start) => format!("files in {}, where it starts{named}", start.display()),
            None if self.named.is_empty() => return String::new(),
            None => named.trim_start_matches(", also ").to_owned(),
        };
        format!("; it may run what the agent wrote: the agent can change {place}")
    }
}

/// What a person is told about a request: the rule that holds the call back, and what it would open.
#[must_use]
pub fn describe_escalation(
    sandbox: &SandboxRights,
    workdir: &Path,
    reason: String,
    agent_files: &AgentFiles,
) -> Escalation {
    let files = match sandbox.mode {
        SandboxMode::ReadOnly => Some("changes in ~ and /tmp only".to_owned()),
        SandboxMode::Workspace => {
            let places = sandbox.writable.iter().map(|path| format!("{}, ", path.display()));
            Some(format!("changes in {}, {}~ and /tmp only", workdir.display(), places.collect::<String>()))
        }
        SandboxMode::Off => None,
    };
    let hidden = files.is_some().then(|| "no credentials, files of other agents and sockets of services".to_owned());
    let network = match &sandbox.network {
        NetworkAccess::On => None,
        NetworkAccess::Off => Some("no network".to_owned()),
        NetworkAccess::List(_) => Some("the listed servers only".to_owned()),
    };
    let permitted: Vec<String> = files.into_iter().chain(hidden).chain(network).collect();
    Escalation {
        reason,
        mode: sandbox.mode,
        rule: format!("the sandbox `{}` permits {}", sandbox.mode.as_str(), permitted.join("; ")),
        opens: match sandbox.user {
            Some(user) => format!("for commands all files and the network, as user {user} has them; {STAYS_CLOSED}"),
            None => format!("all files and the network, as the user of the daemon has them; {STAYS_CLOSED}"),
        } + &agent_files.warning(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const POLICIES: [ApprovalPolicy; 3] = [ApprovalPolicy::Auto, ApprovalPolicy::Ask, ApprovalPolicy::Deny];
    const RIGHTS: [EscalationRight; 4] = [
        EscalationRight::NotSandboxed,
        EscalationRight::MayAsk,
        EscalationRight::Forbidden,
        EscalationRight::NobodyAnswers,
    ];

    #[test]
    fn a_call_outside_of_a_sandbox_never_runs_unasked() {
        for policy in POLICIES {
            for right in RIGHTS {
                let usual = match policy {
                    ApprovalPolicy::Auto => CallGate::Run,
                    ApprovalPolicy::Ask => CallGate::Ask,
                    ApprovalPolicy::Deny => CallGate::DeniedByPolicy,
                };
                assert_eq!(gate_call(policy, CallPlace::Usual, right), usual);
                let outside = match (policy, right) {
                    (ApprovalPolicy::Deny, _) => CallGate::DeniedByPolicy,
                    (_, EscalationRight::NotSandboxed) => usual,
                    (_, EscalationRight::MayAsk) => CallGate::Ask,
                    (_, EscalationRight::Forbidden) => CallGate::EscalationForbidden,
                    (_, EscalationRight::NobodyAnswers) => CallGate::NobodyAnswers,
                };
                assert_eq!(gate_call(policy, CallPlace::OutsideOfSandbox, right), outside, "{policy:?} {right:?}");
            }
        }
    }

    #[test]
    fn the_right_to_ask_needs_a_sandbox_and_somebody_who_answers() {
        let workspace = SandboxRights::new(SandboxMode::Workspace);
        let off = SandboxRights::new(SandboxMode::Off);
        assert_eq!(EscalationRight::of(&workspace, 900), EscalationRight::MayAsk);
        assert_eq!(EscalationRight::of(&workspace, 0), EscalationRight::NobodyAnswers);
        assert_eq!(EscalationRight::of(&off, 900), EscalationRight::NotSandboxed);
        let without_network = SandboxRights { network: NetworkAccess::Off, ..off };
        assert_eq!(EscalationRight::of(&without_network, 900), EscalationRight::MayAsk);
        let silent = SandboxRights { may_escalate: false, ..workspace.clone() };
        assert_eq!(EscalationRight::of(&silent, 900), EscalationRight::Forbidden);
        // A sub-run asks only if every run above it might.
        assert!(!workspace.restricted_by(&silent).may_escalate && !silent.restricted_by(&workspace).may_escalate);
    }

    #[test]
    fn a_request_needs_a_reason_and_leaves_the_arguments() {
        let split = split_escalation(&json!({"command": "ls", "escalate": " to see "})).expect("a request");
        assert_eq!(split, SplitArguments { arguments: json!({"command": "ls"}), reason: Some("to see".to_owned()) });
        for no_request in [json!({"command": "ls"}), json!({"escalate": null}), json!({"escalate": false}), json!(1)] {
            assert_eq!(split_escalation(&no_request).expect("no request").reason, None, "{no_request}");
        }
        for no_reason in [json!({"escalate": true}), json!({"escalate": "  "}), json!({"escalate": {}})] {
            assert_eq!(split_escalation(&no_reason), Err(EscalationProblem::NoReason), "{no_reason}");
        }
        let long = json!({"escalate": "x".repeat(MAX_ESCALATION_REASON_CHARS + 1)});
        assert_eq!(split_escalation(&long), Err(EscalationProblem::ReasonTooLong));
    }

    #[test]
    fn people_are_told_what_the_agent_may_have_prepared() {
        let opens = |files: &AgentFiles| {
            let workspace = SandboxRights::new(SandboxMode::Workspace);
            describe_escalation(&workspace, Path::new("/work/main"), "why".to_owned(), files).opens
        };
        assert!(!opens(&AgentFiles::default()).contains("the agent"));
        let start = Some(PathBuf::from("/work/main"));
        let told = opens(&AgentFiles { start: start.clone(), named: Vec::new() });
        assert!(told.ends_with("the agent can change files in /work/main, where it starts"), "{told}");
        let told = opens(&AgentFiles { start, named: vec!["./deploy.sh".to_owned()] });
        assert!(told.ends_with("where it starts, also ./deploy.sh"), "{told}");
        let told = opens(&AgentFiles { start: None, named: ["a", "b", "c", "d", "e", "f"].map(str::to_owned).into() });
        assert!(told.ends_with("the agent can change a, b, c, d, e, ..."), "{told}");
    }

    #[test]
    fn people_are_told_the_rule_of_the_mode_and_of_the_network() {
        let describe = |sandbox: &SandboxRights| {
            describe_escalation(sandbox, Path::new("/work/main"), "why".to_owned(), &AgentFiles::default()).rule
        };
        let workspace = SandboxRights { writable: vec!["/srv".into()], ..SandboxRights::new(SandboxMode::Workspace) };
        let rule = describe(&workspace);
        assert!(rule.contains("`workspace`") && rule.contains("/work/main, /srv, ~ and /tmp only"), "{rule}");
        let rule = describe(&SandboxRights { network: NetworkAccess::Off, ..SandboxRights::new(SandboxMode::Off) });
        assert_eq!(rule, "the sandbox `off` permits no network");
        assert!(describe(&SandboxRights::new(SandboxMode::ReadOnly)).contains("changes in ~ and /tmp only"));
    }
}
