//! What a server answered, as text that a model reads, and the pictures that came with it.

use quell_kernel::turn::CallResult;
use quell_protocol::CallEnd;
use rmcp::ServiceError;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents, ServerResult};

/// What a call came to.
#[derive(Debug, PartialEq)]
pub struct ToolAnswer {
    /// Its result, in words.
    pub result: CallResult,
    /// The pictures that came with it, each as base64 that nobody has looked at yet.
    pub pictures: Vec<String>,
}

impl From<CallResult> for ToolAnswer {
    fn from(result: CallResult) -> Self {
        Self { result, pictures: Vec::new() }
    }
}

/// What a call came to, its words in at most `limit` bytes.
pub(super) fn of_answer(answer: Result<ServerResult, ServiceError>, server: &str, limit: usize) -> ToolAnswer {
    let problem = match answer {
        Ok(ServerResult::CallToolResult(result)) => {
            let end = if result.is_error == Some(true) { CallEnd::Error } else { CallEnd::Ok };
            let told = CallResult::new(end, bounded(text(&result), limit));
            return ToolAnswer { result: told, pictures: result.content.into_iter().filter_map(picture).collect() };
        }
        Ok(_) => error(format!("the MCP server {server} answered with something that is no result of a tool"), limit),
        Err(ServiceError::McpError(refusal)) => {
            error(format!("the MCP server {server} refused the call: {}", refusal.message), limit)
        }
        // The connection's own failures were told apart before.
        Err(_) => error(format!("the call of the MCP server {server} failed: it gave no answer that fits"), limit),
    };
    problem.into()
}

/// A call that was stopped while it ran, and what became of it.
pub(super) fn stopped(what: &str, limit: usize) -> CallResult {
    let text =
        format!("[Stopped while it ran: {what}. Side effects are possible; check before you rely on its result.]");
    CallResult::new(CallEnd::Stopped, bounded(text, limit))
}

/// An error for the model.
pub(super) fn error(text: String, limit: usize) -> CallResult {
    CallResult::new(CallEnd::Error, bounded(text, limit))
}

fn text(result: &CallToolResult) -> String {
    let mut parts: Vec<String> = result.content.iter().map(part).collect();
    // Structured content is a copy of the text for programs. It is the model's only where there is no text.
    let is_text = |block: &ContentBlock| matches!(block, ContentBlock::Text(text) if !text.text.trim().is_empty());
    if let Some(structured) = result.structured_content.as_ref().filter(|_| !result.content.iter().any(is_text)) {
        parts.push(structured.to_string());
    }
    if parts.is_empty() { "(no output)".to_owned() } else { parts.join("\n") }
}

fn picture(block: ContentBlock) -> Option<String> {
    match block {
        ContentBlock::Image(image) => Some(image.data),
        _ => None,
    }
}

fn part(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => format!("[an image, {}, {}]", image.mime_type, size(&image.data)),
        ContentBlock::Audio(audio) => format!("[a sound, {}, {}]", audio.mime_type, size(&audio.data)),
        ContentBlock::Resource(embedded) => resource(&embedded.resource),
        ContentBlock::ResourceLink(link) => {
            let about = link.description.as_ref().map(|about| format!(": {about}")).unwrap_or_default();
            format!("[a link to the resource {} at {}{about}]", link.name, link.uri)
        }
        _ => "[content of a kind that Quell does not know]".to_owned(),
    }
}

fn resource(contents: &ResourceContents) -> String {
    match contents {
        ResourceContents::TextResourceContents { uri, text, .. } => format!("[the resource {uri}:]\n{text}"),
        ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
            let kind = mime_type.as_deref().unwrap_or("of unknown type");
            format!("[the resource {uri}, {kind}, {}]", size(blob))
        }
        _ => "[a resource of a kind that Quell does not know]".to_owned(),
    }
}

/// Base64 has four characters for three bytes.
fn size(base64: &str) -> String {
    format!("{} bytes", base64.len() / 4 * 3)
}

/// `text` in at most `limit` bytes, with a note of what is missing when something is.
fn bounded(mut text: String, limit: usize) -> String {
    if text.len() <= limit {
        return text;
    }
    let note = format!("\n[cut here: the answer has {} bytes]", text.len());
    let (room, note) = if note.len() < limit { (limit - note.len(), note.as_str()) } else { (limit, "") };
    text.truncate(text.floor_char_boundary(room));
    text.push_str(note);
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn whole(result: serde_json::Value) -> ToolAnswer {
        let result: CallToolResult = serde_json::from_value(result).unwrap();
        of_answer(Ok(ServerResult::CallToolResult(result)), "files", 200)
    }

    fn answer(result: serde_json::Value) -> CallResult {
        whole(result).result
    }

    #[test]
    fn text_comes_as_it_is_and_an_error_is_one() {
        let result = answer(json!({"content": [{"type": "text", "text": "no such file"}], "isError": true}));
        assert_eq!(result, CallResult::new(CallEnd::Error, "no such file"));
    }

    #[test]
    fn structured_content_is_shown_once() {
        let both = json!({"content": [{"type": "text", "text": "{ \"sum\": 3 }"}], "structuredContent": {"sum": 3}});
        assert_eq!(answer(both).output, "{ \"sum\": 3 }");
        let reworded =
            json!({"content": [{"type": "text", "text": "hello"}], "structuredContent": {"content": "hello"}});
        assert_eq!(answer(reworded).output, "hello");
        let alone = json!({"content": [], "structuredContent": {"sum": 3}});
        assert_eq!(answer(alone).output, "{\"sum\":3}");
    }

    #[test]
    fn what_is_no_text_is_named_in_words() {
        let ToolAnswer { result, pictures } = whole(json!({"content": [
            {"type": "image", "data": "AAAAAAAA", "mimeType": "image/png"},
            {"type": "resource_link", "name": "plan", "uri": "file:///plan"},
            {"type": "resource", "resource": {"uri": "file:///a", "text": "hello"}},
        ]}));
        let says = "[an image, image/png, 6 bytes]\n[a link to the resource plan at file:///plan]\n[the resource file:///a:]\nhello";
        assert_eq!(result.output, says);
        assert_eq!(pictures, ["AAAAAAAA"]);
    }

    #[test]
    fn a_long_answer_is_cut_with_a_note() {
        let result = answer(json!({"content": [{"type": "text", "text": "ü".repeat(500)}]}));
        assert!(result.output.len() <= 200 && result.output.ends_with("[cut here: the answer has 1000 bytes]"));
        assert_eq!(bounded("üü".to_owned(), 3), "ü");
    }
}
