//! Slash commands in `chat.send`, and `commands.list`. A command never becomes a prompt: it is answered here, or
//! refused by its name.

use quell_kernel::StopLevel;
use quell_kernel::channel::chat_language::ChatLanguage;
use quell_kernel::channel::commands::{ChannelCommand, StopReach, status_text};
use quell_kernel::registry::StopRequest;
use quell_protocol::approval::Decision;
use quell_protocol::{AgentId, SessionKey, StopReason};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::RpcError;
use super::queries::check_named_agent;
use super::{RpcResult, WsClient, parse_params};

/// Commands of OpenClaw's gateway that Quell does not support (see tools/slash-commands in its documentation).
const UNSUPPORTED_COMMANDS: &str = "\
    acp activation agents allowlist approve bash btw compact config context debug elev elevated exec export \
    export-session fast focus goal id kill mcp model models plugins queue reason reasoning restart session side \
    skill steer subagents t tasks tell think thinking trace tts unfocus usage v verbose whoami";

const HELP_REPLY: &str = "\
/stop - stop what this session does
/status - what this session does
/new - begin a new conversation
/help - this list";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GatewayCommand {
    Status,
    Help,
    New,
}

/// Parses a command; `None` for a prompt, and for a stop, which the engine recognises itself.
pub(super) fn parse_command(text: &str) -> Result<Option<GatewayCommand>, RpcError> {
    let first = text.split_whitespace().next().and_then(|word| word.strip_prefix('/'));
    let Some(name) = first.map(str::to_ascii_lowercase) else { return Ok(None) };
    if UNSUPPORTED_COMMANDS.split(' ').any(|known| known == name) {
        return Err(unsupported_command(&name));
    }
    let text = match name.as_str() {
        "reset" => text.replacen(&text.trim_start()[..="reset".len()], "/new", 1),
        "commands" => "/help".to_owned(),
        _ => text.to_owned(),
    };
    match ChannelCommand::parse(&text) {
        None | Some(ChannelCommand::Stop(StopReach::Own)) => Ok(None),
        Some(ChannelCommand::Status) => Ok(Some(GatewayCommand::Status)),
        Some(ChannelCommand::Help) => Ok(Some(GatewayCommand::Help)),
        Some(ChannelCommand::New) => Ok(Some(GatewayCommand::New)),
        Some(ChannelCommand::Stop(StopReach::All)) => Err(unsupported_command("stop all")),
        Some(ChannelCommand::Providers | ChannelCommand::UseProvider(_)) => Err(unsupported_command("models")),
        // `approvals.resolve` answers a call.
        Some(ChannelCommand::AnswerApproval { answer, .. }) => Err(unsupported_command(match answer.decision {
            Decision::Allow => "approve",
            Decision::Deny => "deny",
        })),
        // The routes below `/api/mcp` do this.
        Some(ChannelCommand::McpList(_) | ChannelCommand::McpMessage(_)) => Err(unsupported_command(&name)),
        // The routes below `/api/schedules` do this.
        Some(ChannelCommand::Schedules | ChannelCommand::EditSchedule { .. }) => Err(unsupported_command("schedules")),
        Some(ChannelCommand::Model | ChannelCommand::UseModel(_)) => Err(unsupported_command("model")),
    }
}

fn unsupported_command(name: &str) -> RpcError {
    let message = format!("the command /{name} is not supported; /help lists those that are");
    RpcError::invalid(message).with_details(json!({"code": "UNSUPPORTED_COMMAND", "command": format!("/{name}")}))
}

pub(super) async fn run_command(
    client: &WsClient,
    key: &SessionKey,
    command: GatewayCommand,
) -> Result<String, RpcError> {
    let engine = client.engine();
    match command {
        GatewayCommand::Help => Ok(HELP_REPLY.to_owned()),
        GatewayCommand::Status if !engine.may_read_session(&client.peer.caller, key) => {
            Err(RpcError::invalid(format!("there is no session {key:?}")))
        }
        GatewayCommand::Status => {
            let config = engine.session_view(key).await?.and_then(|view| view.config);
            let default_model =
                || engine.list_agents().into_iter().find(|agent| agent.default).map(|agent| agent.model);
            let model = config.map(|config| config.model.value).or_else(default_model);
            // The protocol's texts are in English.
            Ok(status_text(&engine.active_runs_of_session(key), model.as_deref(), ChatLanguage::English))
        }
        GatewayCommand::New => {
            let request = StopRequest {
                level: StopLevel::Gentle,
                reason: StopReason::Command,
                surface: client.peer.caller.surface,
            };
            engine.reset_session(&client.peer.caller, key, &request).await?;
            Ok("A new conversation begins.".to_owned())
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CommandsListParams {
    scope: Option<String>,
    agent_id: Option<AgentId>,
    /// Ignored: all sessions have the same commands.
    #[serde(rename = "sessionKey")]
    _session_key: Option<SessionKey>,
    /// Ignored: no command has arguments.
    #[serde(rename = "includeArgs")]
    _include_args: Option<bool>,
}

/// `commands.list`: all commands are typed as text; none is native to a network.
pub(super) fn list(client: &WsClient, value: Value) -> RpcResult {
    let params: CommandsListParams = parse_params(value)?;
    check_named_agent(client, params.agent_id.as_ref())?;
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
    match params.scope.as_deref() {
        None | Some("text" | "both") => Ok(json!({"commands": known.map(entry)})),
        Some("native") => Ok(json!({"commands": []})),
        Some(other) => Err(RpcError::invalid(format!("scope is {other:?}; it may be text, native or both"))),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/status", Ok(Some(GatewayCommand::Status)))]
    #[case("/new", Ok(Some(GatewayCommand::New)))]
    #[case("/reset", Ok(Some(GatewayCommand::New)))]
    #[case("/Reset", Ok(Some(GatewayCommand::New)))]
    #[case("/reset everything, please", Ok(Some(GatewayCommand::Help)))]
    #[case("/commands", Ok(Some(GatewayCommand::Help)))]
    #[case("/stop", Ok(None))]
    #[case("/stop all", Err("/stop all"))]
    #[case("/goal ship it", Err("/goal"))]
    #[case("/BTW what?", Err("/btw"))]
    #[case("/model gpt-5", Err("/model"))]
    #[case("/etc/passwd holds what?", Ok(None))]
    #[case("what does /goal do?", Ok(None))]
    #[case("/goals are fine", Ok(None))]
    #[case("", Ok(None))]
    fn commands_are_told_from_prompts(#[case] text: &str, #[case] expected: Result<Option<GatewayCommand>, &str>) {
        let refused = |refusal: RpcError| refusal.details()["command"].as_str().unwrap().to_owned();
        assert_eq!(parse_command(text).map_err(refused), expected.map_err(str::to_owned));
    }
}
