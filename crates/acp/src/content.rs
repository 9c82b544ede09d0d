//! The blocks of a prompt as text and files of a message.

use percent_encoding::percent_decode_str;
use quell_protocol::api::SendAttachment;
use url::Url;

use crate::errors::invalid;
use crate::wire::{ContentBlock, EmbeddedResourceResource, RpcError};

#[derive(Debug, Default, PartialEq)]
pub(crate) struct PromptContent {
    pub(crate) text: String,
    pub(crate) attachments: Vec<SendAttachment>,
}

/// Texts and links stay where they are; embedded files follow the text, and pictures and binary files become files of the
/// message.
///
/// # Errors
/// Which block cannot be expressed.
pub(crate) fn read_prompt(blocks: &[ContentBlock]) -> Result<PromptContent, RpcError> {
    let (mut text, mut context, mut attachments) = (String::new(), String::new(), Vec::new());
    for block in blocks {
        match block {
            ContentBlock::Text(part) => text.push_str(&part.text),
            ContentBlock::ResourceLink(link) => text.push_str(&format!("[{}]({})", link.name, shown_place(&link.uri))),
            ContentBlock::Image(image) => attachments.push(SendAttachment {
                name: image.uri.as_deref().and_then(file_name),
                media_type: Some(image.mime_type.clone()),
                content: image.data.clone(),
            }),
            ContentBlock::Resource(embedded) => match &embedded.resource {
                EmbeddedResourceResource::TextResourceContents(file) => {
                    let place = shown_place(&file.uri);
                    context.push_str(&format!("\n\n<file path=\"{place}\">\n{}\n</file>", file.text));
                }
                EmbeddedResourceResource::BlobResourceContents(file) => attachments.push(SendAttachment {
                    name: file_name(&file.uri),
                    media_type: file.mime_type.clone(),
                    content: file.blob.clone(),
                }),
                _ => return Err(unsupported("an embedded resource of an unknown kind")),
            },
            ContentBlock::Audio(_) => return Err(unsupported("audio")),
            _ => return Err(unsupported("a block of an unknown kind")),
        }
    }
    text.push_str(&context);
    if text.trim().is_empty() && attachments.is_empty() {
        return Err(invalid("the prompt is empty; send some text or a file"));
    }
    Ok(PromptContent { text: text.trim_start().to_owned(), attachments })
}

fn unsupported(what: &str) -> RpcError {
    invalid(format!("the prompt has {what}, which Quell does not read; send text, pictures, files or links"))
}

/// The path of a file, or the URI of anything else.
fn shown_place(uri: &str) -> String {
    let path = Url::parse(uri).ok().filter(|url| url.scheme() == "file").map(|url| url.path().to_owned());
    path.and_then(|path| percent_decode_str(&path).decode_utf8().ok().map(std::borrow::Cow::into_owned))
        .unwrap_or_else(|| uri.to_owned())
}

fn file_name(uri: &str) -> Option<String> {
    let place = shown_place(uri);
    place.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(blocks: Value) -> Result<PromptContent, RpcError> {
        read_prompt(&serde_json::from_value::<Vec<ContentBlock>>(blocks).unwrap())
    }

    #[test]
    fn links_stay_in_the_text_and_files_follow_it() {
        let content = read(json!([
            {"type": "text", "text": "Compare "},
            {"type": "resource_link", "name": "a b.rs", "uri": "file:///src/a%20b.rs"},
            {"type": "resource", "resource": {"uri": "file:///src/c.rs", "text": "fn c() {}"}},
            {"type": "text", "text": " with it"},
        ]));
        let wanted = "Compare [a b.rs](/src/a b.rs) with it\n\n<file path=\"/src/c.rs\">\nfn c() {}\n</file>";
        assert_eq!(content.unwrap(), PromptContent { text: wanted.to_owned(), attachments: vec![] });
    }

    #[test]
    fn pictures_and_binary_files_become_files_of_the_message() {
        let content = read(json!([
            {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="},
            {"type": "resource", "resource": {"uri": "file:///x/data.bin", "blob": "AAEC"}},
        ]));
        let files = content.unwrap().attachments;
        assert_eq!(files[0].media_type.as_deref(), Some("image/png"));
        assert_eq!((files[1].name.as_deref(), files[1].content.as_str()), (Some("data.bin"), "AAEC"));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let audio = read(json!([{"type": "audio", "mimeType": "audio/wav", "data": "AA=="}])).unwrap_err();
        assert!(audio.message.contains("audio"), "{audio:?}");
        assert!(read(json!([{"type": "text", "text": " "}])).unwrap_err().message.contains("empty"));
    }
}
