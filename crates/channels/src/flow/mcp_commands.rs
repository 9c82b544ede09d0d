//! The chat commands `/prompts`, `/prompt`, `/resources` and `/resource`: what MCP servers offer to people.

use quell_engine::engine::McpRequestError;
use quell_kernel::channel::chat_language::ChatLanguage;
use quell_kernel::channel::inbox::InboxMessage;
use quell_protocol::AgentId;
use quell_protocol::ErrorCode;
use quell_protocol::api::AccessLevel;
use quell_protocol::display_text::one_line;
use quell_protocol::mcp::{McpContentCommand, McpList, McpListKind, McpListedItem};

use super::commands::{caller_of_message, send_outcome};
use super::{Channels, ChatOrigin, command_texts, texts};

/// The most lines of a list in a chat.
const MAX_LINES: usize = 50;
/// The maximum number of characters of a line; a longer one is cut.
const MAX_LINE_CHARS: usize = 300;
/// The maximum number of characters of the items in a list; the others are only counted.
const MAX_LIST_CHARS: usize = 6000;

/// The list of all servers, or why there is none, for the chat.
///
/// # Cancel safety
/// Safe: a server whose answer is not waited for is ended.
pub(super) async fn list_text(
    channels: &Channels,
    queued: &InboxMessage<ChatOrigin>,
    kind: McpListKind,
    language: ChatLanguage,
) -> String {
    if let Some(refusal) = access_refusal(queued, language) {
        return refusal;
    }
    let none = match kind {
        McpListKind::Prompts => command_texts::NO_PROMPTS,
        McpListKind::Resources => command_texts::NO_RESOURCES,
    };
    let agent = agent_of(channels, queued).await;
    match channels.engine().list_mcp(&caller_of_message(queued), agent.as_ref(), kind).await {
        Ok(list) if list == McpList::default() => none.text(language).to_owned(),
        Ok(list) => list_lines(&list, language).join("\n"),
        Err(error) => failure_text(&error, language),
    }
}

/// Replaces the command by the message that it means. False if it was refused or stopped; the sender knows it then.
pub(super) async fn prepare_message(
    channels: &Channels,
    queued: &mut InboxMessage<ChatOrigin>,
    command: McpContentCommand,
) -> bool {
    let language = queued.extra.language(channels);
    let prepared = tokio::select! {
        biased;
        () = queued.extra.stop_token.cancelled() => Err(command_texts::COMMAND_STOPPED.text(language).to_owned()),
        prepared = message_text(channels, queued, command, language) => prepared,
    };
    // From here on a stop ends the run, unless it has come before.
    let text = prepared.and_then(|text| {
        let is_run = channels.lock_inbox().continue_as_run(&queued.conversation, &queued.run_id);
        if is_run { Ok(text) } else { Err(command_texts::COMMAND_STOPPED.text(language).to_owned()) }
    });
    match text {
        Ok(text) => {
            queued.message.content = text;
            true
        }
        Err(refusal) => {
            send_outcome(channels, queued, refusal).await;
            false
        }
    }
}

async fn message_text(
    channels: &Channels,
    queued: &InboxMessage<ChatOrigin>,
    command: McpContentCommand,
    language: ChatLanguage,
) -> Result<String, String> {
    if let Some(refusal) = access_refusal(queued, language) {
        return Err(refusal);
    }
    let McpContentCommand { server, request, text } = command;
    let agent = agent_of(channels, queued).await;
    let caller = caller_of_message(queued);
    let content = channels.engine().read_mcp(&caller, agent.as_ref(), &server, request).await;
    let content = content.map_err(|error| failure_text(&error, language))?;
    let parts = [content, text];
    let parts: Vec<&str> = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()).collect();
    match parts.is_empty() {
        true => Err(command_texts::MCP_CONTENT_EMPTY.text(language).to_owned()),
        false => Ok(parts.join("\n\n")),
    }
}

fn access_refusal(queued: &InboxMessage<ChatOrigin>, language: ChatLanguage) -> Option<String> {
    let level = queued.extra.channel.access_level(&queued.message.sender);
    let is_allowed = level.is_some_and(|level| level >= AccessLevel::Write);
    (!is_allowed).then(|| texts::rejection_text(ErrorCode::Forbidden).text(language).to_owned())
}

/// The agent of the conversation; `None` for the default one.
async fn agent_of(channels: &Channels, queued: &InboxMessage<ChatOrigin>) -> Option<AgentId> {
    let session = channels.engine().find_session(&queued.conversation).await.ok().flatten();
    session.and_then(|session| session.agent).or_else(|| queued.extra.channel.config.agent.clone())
}

fn list_lines(list: &McpList, language: ChatLanguage) -> Vec<String> {
    let mut chars = 0;
    let mut lines: Vec<String> = list.items.iter().take(MAX_LINES).map(item_line).collect();
    let fitting = lines.iter().take_while(|line| {
        chars += line.chars().count();
        chars <= MAX_LIST_CHARS
    });
    lines.truncate(fitting.count());
    let more = list.items.len() - lines.len();
    if more > 0 {
        lines.push(command_texts::MCP_MORE_ITEMS.format(language, &[("n", &more)]));
    }
    lines.extend(list.unavailable.iter().map(|broken| {
        let problem = one_line(&broken.problem, MAX_LINE_CHARS);
        let values: &[(&str, &dyn std::fmt::Display)] = &[("server", &broken.server), ("problem", &problem)];
        command_texts::MCP_SERVER_UNAVAILABLE.format(language, values)
    }));
    lines
}

/// The text is the server's: it is cleaned and cut.
fn item_line(item: &McpListedItem) -> String {
    one_line(&format!("{} {} - {}", item.server, item.command_form(), item.description), MAX_LINE_CHARS)
}

fn failure_text(error: &McpRequestError, language: ChatLanguage) -> String {
    command_texts::MCP_FAILED.format(language, &[("problem", error)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list_of(count: usize, id: &str) -> McpList {
        let item = McpListedItem {
            server: "far".to_owned(),
            id: id.to_owned(),
            description: "It helps.".to_owned(),
            arguments: Vec::new(),
        };
        McpList { items: vec![item; count], unavailable: Vec::new() }
    }

    #[test]
    fn a_list_in_a_chat_is_clean_and_short_whatever_a_server_says() {
        let lines = |list: McpList| list_lines(&list, ChatLanguage::English);
        assert_eq!(lines(list_of(1, "a\nb\u{1b}[2J")), ["far a b [2J - It helps."]);
        let long = lines(list_of(60, &"x".repeat(2000)));
        assert!(long.iter().all(|line| line.chars().count() <= MAX_LINE_CHARS), "{long:?}");
        let shown = MAX_LIST_CHARS / MAX_LINE_CHARS;
        assert_eq!(long.len(), shown + 1);
        assert_eq!(long[shown], format!("… and {} more", 60 - shown));
        assert_eq!(lines(list_of(60, "short")).len(), MAX_LINES + 1);
    }
}
