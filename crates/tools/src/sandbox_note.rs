//! What the model is told about the sandbox: before a command, and after one that it may have held back.

use std::path::Path;

use quell_process::{SandboxNetwork, SandboxSpec};
use quell_protocol::sandbox::SandboxMode;

/// What programs print when the system refuses something, with what a person could permit.
const REFUSALS: [(&str, Advice); 9] = [
    ("Read-only file system", Advice::Write),
    ("Permission denied", Advice::Files),
    ("permission denied", Advice::Files),
    ("EACCES", Advice::Files),
    ("EROFS", Advice::Write),
    ("No usable sandbox", Advice::Namespaces),
    ("Operation not permitted", Advice::Privileges),
    ("Network is unreachable", Advice::Network),
    ("Temporary failure in name resolution", Advice::Network),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Advice {
    Write,
    Files,
    Namespaces,
    Privileges,
    Network,
}

/// The description of the argument by which a call asks to run outside of the sandbox.
pub(crate) const ESCALATE_DESCRIPTION: &str = "Asks a person to let this call run outside of the sandbox: the reason, in one or two sentences. Only for a call that \
                                               the sandbox refused, or certainly will.";

/// The sentence for the description of the `shell` tool, if a call may ask to run outside.
pub(crate) const MAY_ESCALATE: &str =
    " A call that needs more may ask with `escalate` to run outside of the sandbox; a person decides.";

/// What a refused call is told, if it may ask to run outside.
pub(crate) const ESCALATION_ADVICE: &str =
    " Or repeat the call with `escalate` and the reason: a person then decides whether it runs outside of the sandbox.";

/// What the file tools print when the mode of the sandbox refuses something.
const FILE_REFUSALS: [&str; 2] = ["leads outside the working directory", "the sandbox of this agent is read-only"];

/// Adds to an error of a file tool that the call may ask to run outside, if the sandbox is the reason.
pub(crate) fn with_escalation_advice(error: String) -> String {
    let is_refusal = FILE_REFUSALS.iter().any(|words| error.contains(words));
    if is_refusal { format!("{error}.{ESCALATION_ADVICE}") } else { error }
}

/// A sentence about the sandbox for the description of the `shell` tool; empty if commands are free.
pub(crate) fn description(mode: SandboxMode) -> &'static str {
    match mode {
        SandboxMode::ReadOnly => {
            " Commands run in a sandbox: they can change nothing but files in ~ and /tmp, and credentials are hidden."
        }
        SandboxMode::Workspace => {
            " Commands run in a sandbox: they can change files in the working directory, in ~ and in /tmp only, and \
             credentials are hidden."
        }
        SandboxMode::Off => "",
    }
}

/// What a refusal in the output of a failed command may come from, and how a person may permit it; `None` if there is
/// no refusal that the sandbox can cause.
pub(crate) fn refusal_note(sandbox: &SandboxSpec, workdir: &Path, output: &str) -> Option<String> {
    let (_, advice) = REFUSALS.iter().find(|(words, _)| output.contains(words))?;
    let mode = sandbox.mode;
    if mode == SandboxMode::Off && !(*advice == Advice::Network && sandbox.network != SandboxNetwork::Daemon) {
        return None;
    }
    let (rule, remedy) = match advice {
        Advice::Write => (write_rule(mode, workdir), "`writable = [\"/path\"]`"),
        Advice::Files => (
            format!(
                "{}, and hides credentials, other agents' files and sockets of services",
                write_rule(mode, workdir)
            ),
            "`writable` or `readable = [\"/path\"]`",
        ),
        Advice::Namespaces => ("permits no namespaces".to_owned(), "`nested_namespaces = true`"),
        Advice::Privileges => (
            "gives commands no privileges: no mounts, no other users, no changes of the system".to_owned(),
            "`sandbox = \"off\"`",
        ),
        Advice::Network => match sandbox.network {
            SandboxNetwork::Daemon => return None,
            SandboxNetwork::Closed => ("gives commands no network".to_owned(), "`network = \"on\"`"),
            SandboxNetwork::Proxied => (
                "gives commands the listed servers only, through the proxy that HTTP_PROXY and HTTPS_PROXY name"
                    .to_owned(),
                "`network = [\"host:port\"]`",
            ),
        },
    };
    Some(format!(
        "The sandbox of this agent, `{}`, may be the reason: it {rule}. If the command needs more, say so: a person can permit \
         it with {remedy} in the agent's configuration.",
        mode.as_str()
    ))
}

fn write_rule(mode: SandboxMode, workdir: &Path) -> String {
    match mode {
        SandboxMode::ReadOnly => "permits changes in ~ and /tmp only".to_owned(),
        SandboxMode::Workspace | SandboxMode::Off => {
            format!("permits changes in {}, ~ and /tmp only", workdir.display())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(sandbox: &SandboxSpec, output: &str) -> Option<String> {
        refusal_note(sandbox, Path::new("/work/main"), output)
    }

    #[test]
    fn a_refusal_names_the_rule_and_the_remedy() {
        let workspace = SandboxSpec::new(SandboxMode::Workspace);
        let text = note(&workspace, "touch: cannot touch '/etc/x': Read-only file system\n").unwrap();
        assert!(
            text.contains("`workspace`") && text.contains("/work/main, ~ and /tmp") && text.contains("`writable"),
            "{text}"
        );
        let text = note(&workspace, "No usable sandbox! Update your kernel").unwrap();
        assert!(text.contains("nested_namespaces = true"), "{text}");
        let without_network = SandboxSpec { network: SandboxNetwork::Closed, ..workspace.clone() };
        let text = note(&without_network, "connect: Network is unreachable").unwrap();
        assert!(text.contains("network = \"on\""), "{text}");
    }

    #[test]
    fn what_no_sandbox_causes_gets_no_note() {
        let (workspace, off) = (SandboxSpec::new(SandboxMode::Workspace), SandboxSpec::new(SandboxMode::Off));
        assert_eq!(note(&workspace, "No such file or directory"), None);
        assert_eq!(note(&workspace, "Network is unreachable"), None, "it has the network of the daemon");
        assert_eq!(note(&off, "Permission denied"), None);
    }
}
