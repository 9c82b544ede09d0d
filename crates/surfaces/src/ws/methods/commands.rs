//! Messages that are commands of the gateway. None of them is ever a prompt: it is answered here, or refused by its name.

use quell_kernel::Push;
use quell_kernel::channel::commands::{Command, StopReach, status};
use quell_kernel::registry::StopAsk;
use quell_protocol::{AgentId, SessionKey, StopReason};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::Refusal;
use super::super::handshake::Peer;
use super::look::no_agent;
use super::{Answer, Call, params};
use crate::door::Door;

/// Commands of the gateway that this one does not have (its documentation: tools/slash-commands).
const OTHERS: &[&str] = &[
    "acp",
    "activation",
    "agents",
    "allowlist",
    "approve",
    "bash",
    "btw",
    "compact",
    "config",
    "context",
    "debug",
    "elev",
    "elevated",
    "exec",
    "export",
    "export-session",
    "fast",
    "focus",
    "goal",
    "id",
    "kill",
    "mcp",
    "model",
    "models",
    "plugins",
    "queue",
    "reason",
    "reasoning",
    "restart",
    "session",
    "side",
    "skill",
    "steer",
    "subagents",
    "t",
    "tasks",
    "tell",
    "think",
    "thinking",
    "trace",
    "tts",
    "unfocus",
    "usage",
    "v",
    "verbose",
    "whoami",
];

/// What is shown for `/help`.
const HELP: &str = "\
/stop - stop what this session does
/status - what this session does
/new - begin a new conversation
/help - this list";

/// What a message asks of the gateway itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Status,
    Help,
    New,
}

/// The command that a message is; none when it is a prompt, or a stop, which the engine knows by itself.
pub(super) fn of(text: &str) -> Result<Option<Asked>, Refusal> {
    let first = text.split_whitespace().next().and_then(|word| word.strip_prefix('/'));
    let Some(name) = first.map(str::to_ascii_lowercase) else { return Ok(None) };
    if OTHERS.contains(&name.as_str()) {
        return Err(unsupported(&name));
    }
    let text = match name.as_str() {
        "reset" => text.replacen(&text.trim_start()[..="reset".len()], "/new", 1),
        "commands" => "/help".to_owned(),
        _ => text.to_owned(),
    };
    match Command::of(&text) {
        None | Some(Command::Stop(StopReach::Own)) => Ok(None),
        Some(Command::Status) => Ok(Some(Asked::Status)),
        Some(Command::Help) => Ok(Some(Asked::Help)),
        Some(Command::New) => Ok(Some(Asked::New)),
        Some(Command::Stop(StopReach::All)) => Err(unsupported("stop all")),
        Some(Command::Providers | Command::UseProvider(_)) => Err(unsupported("models")),
        Some(Command::Model | Command::UseModel(_)) => Err(unsupported("model")),
    }
}

fn unsupported(name: &str) -> Refusal {
    let message = format!("the command /{name} is not supported; /help lists those that are");
    Refusal::invalid(message).with_details(json!({"code": "UNSUPPORTED_COMMAND", "command": format!("/{name}")}))
}

/// Does what is asked, and says what came of it.
pub(super) async fn obey(door: &Door, peer: &Peer, key: &SessionKey, asked: Asked) -> Result<String, Refusal> {
    let engine = door.engine();
    match asked {
        Asked::Help => Ok(HELP.to_owned()),
        Asked::Status => {
            let config = engine.session_view(key).await?.and_then(|view| view.config);
            let of_default = || engine.agents().into_iter().find(|agent| agent.default).map(|agent| agent.model);
            let model = config.map(|config| config.model.value).or_else(of_default);
            Ok(status(&engine.active_runs_of(key), model.as_deref().unwrap_or("unknown")))
        }
        Asked::New => {
            let ask = StopAsk { push: Push::Gentle, reason: StopReason::Command, surface: peer.caller.surface };
            engine.reset_session(&peer.caller, key, &ask).await?;
            Ok("A new conversation begins.".to_owned())
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct List {
    scope: Option<String>,
    agent_id: Option<AgentId>,
    /// The commands are the same in all sessions.
    #[serde(rename = "sessionKey")]
    _session_key: Option<SessionKey>,
    /// None takes any.
    #[serde(rename = "includeArgs")]
    _include_args: Option<bool>,
}

/// `commands.list`. All are typed as text; none is native to a network.
pub(super) fn list(call: &Call<'_>, value: Value) -> Answer {
    let asked: List = params(value)?;
    if let Some(id) = asked.agent_id.as_ref().filter(|id| call.door.engine().agent(id).is_none()) {
        return Err(no_agent(id));
    }
    let known = [
        ("stop", "Stop this session's runs"),
        ("status", "What this session does"),
        ("help", "The commands"),
        ("new", "Begin a new conversation"),
    ];
    let entry = |(name, description): (&str, &str)| {
        json!({"name": name, "description": description, "textAliases": [format!("/{name}")], "category": "session",
               "source": "native", "scope": "text", "acceptsArgs": false})
    };
    match asked.scope.as_deref() {
        None | Some("text" | "both") => Ok(json!({"commands": known.map(entry)})),
        Some("native") => Ok(json!({"commands": []})),
        Some(other) => Err(Refusal::invalid(format!("scope is {other:?}; it may be text, native or both"))),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/status", Ok(Some(Asked::Status)))]
    #[case("/new", Ok(Some(Asked::New)))]
    #[case("/reset", Ok(Some(Asked::New)))]
    #[case("/Reset", Ok(Some(Asked::New)))]
    #[case("/reset everything, please", Ok(Some(Asked::Help)))]
    #[case("/commands", Ok(Some(Asked::Help)))]
    #[case("/stop", Ok(None))]
    #[case("/stop all", Err("/stop all"))]
    #[case("/goal ship it", Err("/goal"))]
    #[case("/BTW what?", Err("/btw"))]
    #[case("/model gpt-5", Err("/model"))]
    #[case("/etc/passwd holds what?", Ok(None))]
    #[case("what does /goal do?", Ok(None))]
    #[case("/goals are fine", Ok(None))]
    #[case("", Ok(None))]
    fn commands_are_told_from_prompts(#[case] text: &str, #[case] asked: Result<Option<Asked>, &str>) {
        let refused = |refusal: Refusal| refusal.details()["command"].as_str().unwrap().to_owned();
        assert_eq!(of(text).map_err(refused), asked.map_err(str::to_owned));
    }
}
