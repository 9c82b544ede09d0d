//! Updates, questions, settings and ends in the words of version 1, and its prompts as parts.

use crate::content::unsupported_block;
use crate::diff::{EditKind, FileEdit};
use crate::editor::{
    CallContent, CallDescription, CallKind, CallStatus, ChoiceKind, EditorUpdate, EndReason, EndedCall, FileLocation,
    MessageRole, MessageText, PermissionChoice, PermissionRequest, PlanItem, PlanStatus, PromptBlock, PromptEnd,
};
use crate::settings::{SessionOption, SessionOptionKind, SessionOptionValue};
use crate::wire::RpcError;
use crate::wire::v1::*;

pub(super) fn encode_update(update: EditorUpdate) -> SessionUpdate {
    match update {
        EditorUpdate::AddedText(text) | EditorUpdate::WholeText(text) => encode_text(text),
        EditorUpdate::CallAnnounced { call, status } => SessionUpdate::ToolCall(
            ToolCall::new(call.id, call.title)
                .name(call.tool)
                .kind(encode_kind(call.kind))
                .status(encode_status(status))
                .locations(call.location.into_iter().map(encode_location).collect())
                .raw_input(call.arguments),
        ),
        EditorUpdate::CallStatus { id, status } => {
            let fields = ToolCallUpdateFields::new().status(encode_status(status));
            SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, fields))
        }
        EditorUpdate::CallOutput { id, output } => {
            let fields = ToolCallUpdateFields::new().content(vec![text_content(output)]);
            SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, fields))
        }
        EditorUpdate::CallEnded(result) => SessionUpdate::ToolCallUpdate(encode_result(result)),
        EditorUpdate::Plan(items) => SessionUpdate::Plan(Plan::new(items.into_iter().map(encode_plan_item).collect())),
    }
}

fn encode_text(text: MessageText) -> SessionUpdate {
    let chunk = ContentChunk::new(text.text.into());
    match text.role {
        MessageRole::User => SessionUpdate::UserMessageChunk(chunk),
        MessageRole::Agent => SessionUpdate::AgentMessageChunk(chunk),
        MessageRole::Thought => SessionUpdate::AgentThoughtChunk(chunk),
    }
}

fn encode_result(result: EndedCall) -> ToolCallUpdate {
    let mut fields = ToolCallUpdateFields::new().status(encode_status(result.status)).raw_output(result.raw);
    let content = match result.content {
        CallContent::Texts(texts) => texts.into_iter().map(text_content).collect(),
        CallContent::Diffs(files) => {
            let place = |file: &FileEdit| {
                let line = |line| ToolCallLocation::new(file.path.clone()).line(line);
                file.hunks.iter().map(|hunk| line(hunk.line)).collect::<Vec<_>>()
            };
            fields = fields.locations(files.iter().flat_map(place).collect::<Vec<_>>());
            files.into_iter().flat_map(encode_diff).collect::<Vec<_>>()
        }
    };
    ToolCallUpdate::new(result.id, fields.content(content))
}

/// One for each hunk.
fn encode_diff(file: FileEdit) -> Vec<ToolCallContent> {
    let FileEdit { path, change, hunks, patch: _ } = file;
    let diff = |hunk: crate::diff::FileHunk| {
        let old = (change != EditKind::Added).then_some(hunk.old);
        ToolCallContent::Diff(Diff::new(path.clone(), hunk.new).old_text(old))
    };
    hunks.into_iter().map(diff).collect()
}

fn text_content(text: String) -> ToolCallContent {
    ToolCallContent::Content(Content::new(text))
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
        // Version 1 has no word for a call that was stopped.
        CallStatus::Failed | CallStatus::Cancelled => ToolCallStatus::Failed,
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
    let CallDescription { id, tool: _, title, kind, location, arguments } = call;
    let fields = ToolCallUpdateFields::new()
        .title(title)
        .kind(encode_kind(kind))
        .status(ToolCallStatus::Pending)
        .locations(location.into_iter().map(encode_location).collect::<Vec<_>>())
        .raw_input(arguments);
    let fields = match note {
        Some(note) => fields.content(vec![text_content(note)]),
        None => fields,
    };
    let options = choices.iter().map(encode_choice).collect();
    RequestPermissionRequest::new(session, ToolCallUpdate::new(id, fields), options)
}

fn encode_choice(choice: &PermissionChoice) -> PermissionOption {
    let kind = match choice.kind {
        ChoiceKind::AllowOnce => PermissionOptionKind::AllowOnce,
        ChoiceKind::AllowAlways => PermissionOptionKind::AllowAlways,
        ChoiceKind::RejectOnce => PermissionOptionKind::RejectOnce,
    };
    PermissionOption::new(choice.id, choice.name, kind)
}

pub(super) fn encode_end(end: PromptEnd) -> PromptResponse {
    let reason = match end.reason {
        EndReason::EndTurn => StopReason::EndTurn,
        EndReason::MaxTokens => StopReason::MaxTokens,
        EndReason::MaxTurnRequests => StopReason::MaxTurnRequests,
        EndReason::Refusal => StopReason::Refusal,
        EndReason::Cancelled => StopReason::Cancelled,
    };
    PromptResponse::new(reason).meta(end.meta)
}

/// The agents, as modes.
pub(super) fn encode_modes(agents: SessionOption) -> SessionModeState {
    let mode = |agent: SessionOptionValue| SessionMode::new(agent.id.clone(), agent.id).description(agent.description);
    SessionModeState::new(agents.current, agents.values.into_iter().map(mode).collect::<Vec<_>>())
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
pub(super) fn read_blocks(blocks: Vec<ContentBlock>) -> Result<Vec<PromptBlock>, RpcError> {
    blocks.into_iter().map(read_block).collect()
}

fn read_block(block: ContentBlock) -> Result<PromptBlock, RpcError> {
    Ok(match block {
        ContentBlock::Text(text) => PromptBlock::Text(text.text),
        ContentBlock::ResourceLink(link) => PromptBlock::Link { name: link.name, uri: link.uri },
        ContentBlock::Image(image) => {
            PromptBlock::Picture { uri: image.uri, media_type: image.mime_type, data: image.data }
        }
        ContentBlock::Resource(embedded) => match embedded.resource {
            EmbeddedResourceResource::TextResourceContents(file) => {
                PromptBlock::TextFile { uri: file.uri, text: file.text }
            }
            EmbeddedResourceResource::BlobResourceContents(file) => {
                PromptBlock::BinaryFile { uri: file.uri, media_type: file.mime_type, data: file.blob }
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

    fn read(blocks: Value) -> Result<Vec<PromptBlock>, RpcError> {
        read_blocks(serde_json::from_value(blocks).unwrap())
    }

    #[test]
    fn blocks_become_parts_and_what_cannot_be_read_is_named() {
        let parts = read(json!([
            {"type": "text", "text": "Compare "},
            {"type": "resource_link", "name": "a.rs", "uri": "file:///src/a.rs"},
            {"type": "resource", "resource": {"uri": "file:///src/c.rs", "text": "fn c() {}"}},
        ]));
        let wanted = [
            PromptBlock::Text("Compare ".into()),
            PromptBlock::Link { name: "a.rs".into(), uri: "file:///src/a.rs".into() },
            PromptBlock::TextFile { uri: "file:///src/c.rs".into(), text: "fn c() {}".into() },
        ];
        assert_eq!(parts.unwrap(), wanted);
        let audio = read(json!([{"type": "audio", "mimeType": "audio/wav", "data": "AA=="}])).unwrap_err();
        assert!(audio.message.contains("audio"), "{audio:?}");
    }

    #[test]
    fn a_stopped_call_has_failed_and_an_edit_shows_each_hunk() {
        let hunk = crate::diff::FileHunk { old: "x\n".into(), new: "y\n".into(), line: 3 };
        let file = FileEdit { path: "/w/a".into(), change: EditKind::Modified, hunks: vec![hunk], patch: None };
        let content = CallContent::Diffs(vec![file]);
        let result = EndedCall { id: "c1".into(), status: CallStatus::Cancelled, raw: json!({}), content };
        let shown = serde_json::to_value(encode_update(EditorUpdate::CallEnded(result))).unwrap();
        assert_eq!(shown["status"], "failed");
        assert_eq!(shown["content"][0], json!({"type": "diff", "path": "/w/a", "oldText": "x\n", "newText": "y\n"}));
        assert_eq!(shown["locations"], json!([{"path": "/w/a", "line": 3}]));
    }
}
