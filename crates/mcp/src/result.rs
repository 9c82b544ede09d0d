//! Convert tool results to text and images for the model.

use quell_kernel::turn::CallResult;
use quell_protocol::CallEnd;
use rmcp::ServiceError;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents, ServerResult};

#[derive(Debug, PartialEq)]
pub struct ToolAnswer {
    pub result: CallResult,
    /// The images of the result, each as base64, not validated.
    pub images: Vec<String>,
}

impl From<CallResult> for ToolAnswer {
    fn from(result: CallResult) -> Self {
        Self { result, images: Vec::new() }
    }
}

/// Converts a server's answer; the text has at most `limit` bytes.
pub(super) fn convert_answer(answer: Result<ServerResult, ServiceError>, server: &str, limit: usize) -> ToolAnswer {
    let problem = match answer {
        Ok(ServerResult::CallToolResult(result)) => {
            let end = if result.is_error == Some(true) { CallEnd::Error } else { CallEnd::Ok };
            let call_result = CallResult::new(end, truncate_with_note(result_text(&result), limit));
            return ToolAnswer {
                result: call_result,
                images: result.content.into_iter().filter_map(image_data).collect(),
            };
        }
        Ok(_) => {
            error_result(format!("the MCP server {server} answered with something that is no result of a tool"), limit)
        }
        Err(ServiceError::McpError(refusal)) => {
            error_result(format!("the MCP server {server} refused the call: {}", refusal.message), limit)
        }
        // Failures of the connection were handled before.
        Err(_) => error_result(format!("the call of the MCP server {server} failed: it gave no valid answer"), limit),
    };
    problem.into()
}

/// The result of a call that was stopped while it ran; `outcome` says what is known of it.
pub(super) fn stopped_result(outcome: &str, limit: usize) -> CallResult {
    let text =
        format!("[Stopped while it ran: {outcome}. Side effects are possible; check before you rely on its result.]");
    CallResult::new(CallEnd::Stopped, truncate_with_note(text, limit))
}

/// An error for the model.
pub(super) fn error_result(text: String, limit: usize) -> CallResult {
    CallResult::new(CallEnd::Error, truncate_with_note(text, limit))
}

fn result_text(result: &CallToolResult) -> String {
    let mut parts: Vec<String> = result.content.iter().map(block_text).collect();
    // Structured content is a copy of the text for programs. The model gets it only if there is no text.
    let is_text = |block: &ContentBlock| matches!(block, ContentBlock::Text(text) if !text.text.trim().is_empty());
    if let Some(structured) = result.structured_content.as_ref().filter(|_| !result.content.iter().any(is_text)) {
        parts.push(structured.to_string());
    }
    if parts.is_empty() { "(no output)".to_owned() } else { parts.join("\n") }
}

fn image_data(block: ContentBlock) -> Option<String> {
    match block {
        ContentBlock::Image(image) => Some(image.data),
        _ => None,
    }
}

pub(super) fn block_text(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => format!("[an image, {}, {}]", image.mime_type, decoded_size(&image.data)),
        ContentBlock::Audio(audio) => format!("[a sound, {}, {}]", audio.mime_type, decoded_size(&audio.data)),
        ContentBlock::Resource(embedded) => resource_text(&embedded.resource),
        ContentBlock::ResourceLink(link) => {
            let about = link.description.as_ref().map(|about| format!(": {about}")).unwrap_or_default();
            format!("[a link to the resource {} at {}{about}]", link.name, link.uri)
        }
        _ => "[content of a kind that Quell does not know]".to_owned(),
    }
}

pub(super) fn resource_text(contents: &ResourceContents) -> String {
    match contents {
        ResourceContents::TextResourceContents { uri, text, .. } => format!("[the resource {uri}:]\n{text}"),
        ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
            let kind = mime_type.as_deref().unwrap_or("of unknown type");
            format!("[the resource {uri}, {kind}, {}]", decoded_size(blob))
        }
        _ => "[a resource of a kind that Quell does not know]".to_owned(),
    }
}

/// Base64 has four characters for three bytes.
fn decoded_size(base64: &str) -> String {
    format!("{} bytes", base64.len() / 4 * 3)
}

/// `text` in at most `limit` bytes, with a note of its full length if it is cut.
pub(super) fn truncate_with_note(mut text: String, limit: usize) -> String {
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

    fn convert(result: serde_json::Value) -> ToolAnswer {
        let result: CallToolResult = serde_json::from_value(result).unwrap();
        convert_answer(Ok(ServerResult::CallToolResult(result)), "files", 200)
    }

    fn answer(result: serde_json::Value) -> CallResult {
        convert(result).result
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
    fn content_that_is_no_text_is_described() {
        let ToolAnswer { result, images } = convert(json!({"content": [
            {"type": "image", "data": "AAAAAAAA", "mimeType": "image/png"},
            {"type": "resource_link", "name": "plan", "uri": "file:///plan"},
            {"type": "resource", "resource": {"uri": "file:///a", "text": "hello"}},
        ]}));
        let says = "[an image, image/png, 6 bytes]\n[a link to the resource plan at file:///plan]\n[the resource file:///a:]\nhello";
        assert_eq!(result.output, says);
        assert_eq!(images, ["AAAAAAAA"]);
    }

    #[test]
    fn a_long_answer_is_cut_with_a_note() {
        let result = answer(json!({"content": [{"type": "text", "text": "ü".repeat(500)}]}));
        assert!(result.output.len() <= 200 && result.output.ends_with("[cut here: the answer has 1000 bytes]"));
        assert_eq!(truncate_with_note("üü".to_owned(), 3), "ü");
    }
}
