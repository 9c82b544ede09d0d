//! Updates, questions, settings and ends in the words of version 2, and its prompts as parts.

use crate::content::unsupported_block;
use crate::diff::{EditKind, FileEdit};
use crate::editor::{
    CallContent, CallDescription, CallKind, CallStatus, ChoiceKind, EditorUpdate, EndReason, EndedCall, FileLocation,
    MessageRole, MessageText, PermissionChoice, PermissionRequest, PlanItem, PlanStatus, PromptBlock, PromptEnd,
};
use crate::settings::{SessionOption, SessionOptionKind, SessionOptionValue};
use crate::wire::RpcError;
use crate::wire::v2::*;

/// The id of the only plan of a session.
const PLAN_ID: &str = "todo";

pub(super) fn encode_update(update: EditorUpdate) -> SessionUpdate {
    match update {
        EditorUpdate::AddedText(text) => encode_added_text(text),
        EditorUpdate::WholeText(text) => encode_whole_text(text),
        EditorUpdate::CallAnnounced { call, status } => SessionUpdate::ToolCallUpdate(encode_call(call, status)),
        EditorUpdate::CallStatus { id, status } => {
            SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id).status(encode_status(status)))
        }
        EditorUpdate::CallOutput { id, output } => {
            SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id).content(vec![text_content(output)]))
        }
        EditorUpdate::CallEnded(result) => SessionUpdate::ToolCallUpdate(encode_result(result)),
        EditorUpdate::Plan(items) => {
            let entries = items.into_iter().map(encode_plan_item).collect();
            SessionUpdate::PlanUpdate(PlanUpdate::new(PlanUpdateContent::items(PLAN_ID, entries)))
        }
    }
}

fn encode_added_text(text: MessageText) -> SessionUpdate {
    let chunk = ContentChunk::new(text.text.into(), text.message);
    match text.role {
        MessageRole::User => SessionUpdate::UserMessageChunk(chunk),
        MessageRole::Agent => SessionUpdate::AgentMessageChunk(chunk),
        MessageRole::Thought => SessionUpdate::AgentThoughtChunk(chunk),
    }
}

/// Replaces what the editor has of this message.
fn encode_whole_text(text: MessageText) -> SessionUpdate {
    let (id, content) = (text.message, vec![ContentBlock::from(text.text)]);
    match text.role {
        MessageRole::User => SessionUpdate::UserMessage(UserMessage::new(id).content(content)),
        MessageRole::Agent => SessionUpdate::AgentMessage(AgentMessage::new(id).content(content)),
        MessageRole::Thought => SessionUpdate::AgentThought(AgentThought::new(id).content(content)),
    }
}

fn encode_call(call: CallDescription, status: CallStatus) -> ToolCallUpdate {
    let CallDescription { id, tool, title, kind, location, arguments } = call;
    ToolCallUpdate::new(id)
        .name(tool)
        .title(title)
        .kind(encode_kind(kind))
        .status(encode_status(status))
        .locations(location.into_iter().map(encode_location).collect::<Vec<_>>())
        .raw_input(arguments)
}

fn encode_result(result: EndedCall) -> ToolCallUpdate {
    let update = ToolCallUpdate::new(result.id).status(encode_status(result.status)).raw_output(result.raw);
    match result.content {
        CallContent::Texts(texts) => update.content(texts.into_iter().map(text_content).collect::<Vec<_>>()),
        CallContent::Diffs(files) => {
            let place = |file: &FileEdit| {
                let line = |line| ToolCallLocation::new(file.path.clone()).line(line);
                file.hunks.iter().map(|hunk| line(hunk.line)).collect::<Vec<_>>()
            };
            let places: Vec<_> = files.iter().flat_map(place).collect();
            update.locations(places).content(files.into_iter().map(encode_diff).collect::<Vec<_>>())
        }
    }
}

fn encode_diff(file: FileEdit) -> ToolCallContent {
    let change = match file.change {
        EditKind::Added => DiffChange::add(file.path),
        EditKind::Modified => DiffChange::modify(file.path),
        EditKind::Deleted => DiffChange::delete(file.path),
    };
    ToolCallContent::Diff(match file.patch {
        Some(patch) => Diff::patch(patch, vec![change]),
        None => Diff::new(vec![change]),
    })
}

fn text_content(text: String) -> ToolCallContent {
    ToolCallContent::Content(Box::new(Content::new(text)))
}

fn encode_location(location: FileLocation) -> ToolCallLocation {
    ToolCallLocation::new(location.path).line(location.line)
}

fn encode_kind(kind: CallKind) -> ToolKind {
    match kind {
        CallKind::Read => ToolKind::Read,
        CallKind::Edit => ToolKind::Edit,
        CallKind::Search => ToolKind::Search,
        CallKind::Execute => ToolKind::Execute,
        CallKind::Fetch => ToolKind::Fetch,
        CallKind::Think => ToolKind::Think,
        CallKind::Other => ToolKind::Other,
    }
}

fn encode_status(status: CallStatus) -> ToolCallStatus {
    match status {
        CallStatus::Pending => ToolCallStatus::Pending,
        CallStatus::InProgress => ToolCallStatus::InProgress,
        CallStatus::Completed => ToolCallStatus::Completed,
        CallStatus::Failed => ToolCallStatus::Failed,
        CallStatus::Cancelled => ToolCallStatus::Cancelled,
    }
}

fn encode_plan_item(item: PlanItem) -> PlanEntry {
    let status = match item.status {
        PlanStatus::Pending => PlanEntryStatus::Pending,
        PlanStatus::InProgress => PlanEntryStatus::InProgress,
        PlanStatus::Completed => PlanEntryStatus::Completed,
    };
    PlanEntry::new(item.text, PlanEntryPriority::Medium, status)
}

pub(super) fn encode_permission(session: SessionId, request: PermissionRequest) -> RequestPermissionRequest {
    let PermissionRequest { call, note, choices } = request;
    let title = call.title.clone();
    let subject = ToolCallPermissionSubject::new(encode_call(call, CallStatus::Pending));
    RequestPermissionRequest::new(session, title, choices.iter().map(encode_choice).collect())
        .description(note)
        .subject(RequestPermissionSubject::ToolCall(Box::new(subject)))
}

fn encode_choice(choice: &PermissionChoice) -> PermissionOption {
    let kind = match choice.kind {
        ChoiceKind::AllowOnce => PermissionOptionKind::AllowOnce,
        ChoiceKind::AllowAlways => PermissionOptionKind::AllowAlways,
        ChoiceKind::RejectOnce => PermissionOptionKind::RejectOnce,
    };
    PermissionOption::new(choice.id, choice.name, kind)
}

pub(super) fn encode_end(end: PromptEnd) -> IdleStateUpdate {
    let reason = match end.reason {
        EndReason::EndTurn => StopReason::EndTurn,
        EndReason::MaxTokens => StopReason::MaxTokens,
        EndReason::MaxTurnRequests => StopReason::MaxTurnRequests,
        EndReason::Refusal => StopReason::Refusal,
        EndReason::Cancelled => StopReason::Cancelled,
    };
    IdleStateUpdate::new().stop_reason(reason).meta(end.meta)
}

pub(super) fn encode_failure(error: RpcError) -> IdleStateUpdate {
    IdleStateUpdate::new().stop_reason(StopReason::Error(ErrorStopReason::new().error(Error::from(error))))
}

pub(super) fn encode_options(settings: [SessionOption; 3]) -> Vec<SessionConfigOption> {
    settings.into_iter().map(encode_option).collect()
}

fn encode_option(setting: SessionOption) -> SessionConfigOption {
    let SessionOption { kind, current, values } = setting;
    let value = |value: SessionOptionValue| {
        SessionConfigSelectOption::new(value.id.clone(), value.id).description(value.description)
    };
    let values: Vec<_> = values.into_iter().map(value).collect();
    let category = match kind {
        SessionOptionKind::Agent => SessionConfigOptionCategory::Mode,
        SessionOptionKind::Model => SessionConfigOptionCategory::Model,
        SessionOptionKind::Thinking => SessionConfigOptionCategory::ThoughtLevel,
    };
    SessionConfigOption::select(kind.id(), kind.name(), current, values).category(category)
}

/// # Errors
/// Which block cannot be read.
pub(super) fn read_blocks(blocks: &[ContentBlock]) -> Result<Vec<PromptBlock>, RpcError> {
    blocks.iter().cloned().map(read_block).collect()
}

fn read_block(block: ContentBlock) -> Result<PromptBlock, RpcError> {
    Ok(match block {
        ContentBlock::Text(text) => PromptBlock::Text(text.text),
        ContentBlock::ResourceLink(link) => PromptBlock::Link { name: link.name, uri: link.uri },
        ContentBlock::Image(image) => {
            PromptBlock::Picture { uri: image.uri, media_type: image.mime_type.to_string(), data: image.data }
        }
        ContentBlock::Resource(embedded) => match embedded.resource {
            EmbeddedResourceResource::TextResourceContents(file) => {
                PromptBlock::TextFile { uri: file.uri, text: file.text }
            }
            EmbeddedResourceResource::BlobResourceContents(file) => {
                let media_type = file.mime_type.map(|media_type| media_type.to_string());
                PromptBlock::BinaryFile { uri: file.uri, media_type, data: file.blob }
            }
            _ => return Err(unsupported_block("an embedded resource of an unknown kind")),
        },
        ContentBlock::Audio(_) => return Err(unsupported_block("audio")),
        _ => return Err(unsupported_block("a block of an unknown kind")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::diff::FileHunk;

    fn encode(update: EditorUpdate) -> Value {
        serde_json::to_value(encode_update(update)).unwrap()
    }

    #[test]
    fn texts_carry_the_id_of_their_message() {
        let text = |role| MessageText { role, message: "r1/text/1".into(), text: "hi".into() };
        let added = encode(EditorUpdate::AddedText(text(MessageRole::Agent)));
        assert_eq!(
            (&added["sessionUpdate"], &added["messageId"]),
            (&json!("agent_message_chunk"), &json!("r1/text/1"))
        );
        let whole = encode(EditorUpdate::WholeText(text(MessageRole::User)));
        assert_eq!((&whole["sessionUpdate"], &whole["content"][0]["text"]), (&json!("user_message"), &json!("hi")));
    }

    #[test]
    fn a_stopped_call_is_cancelled_and_an_edit_shows_a_patch() {
        let stopped = encode(EditorUpdate::CallStatus { id: "c1".into(), status: CallStatus::Cancelled });
        assert_eq!((&stopped["sessionUpdate"], &stopped["status"]), (&json!("tool_call_update"), &json!("cancelled")));
        let hunk = FileHunk { old: "x\n".into(), new: "y\n".into(), line: 3 };
        let patch = Some("diff --git /w/a /w/a\n".to_owned());
        let file = FileEdit { path: "/w/a".into(), change: EditKind::Modified, hunks: vec![hunk], patch };
        let content = CallContent::Diffs(vec![file]);
        let result = EndedCall { id: "c2".into(), status: CallStatus::Completed, raw: json!({}), content };
        let edited = encode(EditorUpdate::CallEnded(result));
        assert_eq!(edited["content"][0]["changes"], json!([{"operation": "modify", "path": "/w/a"}]));
        let patch = json!({"format": "git_patch", "text": "diff --git /w/a /w/a\n"});
        assert_eq!(edited["content"][0]["patch"], patch);
        assert_eq!(edited["locations"], json!([{"path": "/w/a", "line": 3}]));
    }

    #[test]
    fn an_end_is_an_idle_state_with_its_reason() {
        let end = encode_end(PromptEnd { reason: EndReason::Cancelled, meta: None });
        let state = serde_json::to_value(StateUpdate::Idle(end)).unwrap();
        assert_eq!(state, json!({"state": "idle", "stopReason": "cancelled"}));
        let failure =
            serde_json::to_value(StateUpdate::Idle(encode_failure(RpcError::new(-32603, "on fire")))).unwrap();
        assert_eq!((&failure["stopReason"], &failure["error"]["message"]), (&json!("error"), &json!("on fire")));
    }
}
