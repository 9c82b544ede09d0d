//! The blocks of a prompt as text and files of a message.

use percent_encoding::percent_decode_str;
use quell_protocol::api::SendAttachment;
use url::Url;

use crate::editor::PromptBlock;
use crate::errors::invalid;
use crate::wire::RpcError;

#[derive(Debug, Default, PartialEq)]
pub(crate) struct PromptContent {
    pub(crate) text: String,
    pub(crate) attachments: Vec<SendAttachment>,
}

/// Texts and links stay where they are; embedded files follow the text, and pictures and binary files become files of the
/// message.
///
/// # Errors
/// The prompt is empty.
pub(crate) fn join_prompt(parts: Vec<PromptBlock>) -> Result<PromptContent, RpcError> {
    let (mut text, mut context, mut attachments) = (String::new(), String::new(), Vec::new());
    for part in parts {
        match part {
            PromptBlock::Text(part) => text.push_str(&part),
            PromptBlock::Link { name, uri } => text.push_str(&format!("[{name}]({})", shown_place(&uri))),
            PromptBlock::Picture { uri, media_type, data } => attachments.push(SendAttachment {
                name: uri.as_deref().and_then(file_name),
                media_type: Some(media_type),
                content: data,
            }),
            PromptBlock::TextFile { uri, text } => {
                context.push_str(&format!("\n\n<file path=\"{}\">\n{text}\n</file>", shown_place(&uri)));
            }
            PromptBlock::BinaryFile { uri, media_type, data } => {
                attachments.push(SendAttachment { name: file_name(&uri), media_type, content: data });
            }
        }
    }
    text.push_str(&context);
    if text.trim().is_empty() && attachments.is_empty() {
        return Err(invalid("the prompt is empty; send some text or a file"));
    }
    Ok(PromptContent { text: text.trim_start().to_owned(), attachments })
}

/// The error for a block that Quell cannot read.
pub(crate) fn unsupported_block(what: &str) -> RpcError {
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
    use super::*;

    #[test]
    fn links_stay_in_the_text_and_files_follow_it() {
        let content = join_prompt(vec![
            PromptBlock::Text("Compare ".into()),
            PromptBlock::Link { name: "a b.rs".into(), uri: "file:///src/a%20b.rs".into() },
            PromptBlock::TextFile { uri: "file:///src/c.rs".into(), text: "fn c() {}".into() },
            PromptBlock::Text(" with it".into()),
        ]);
        let wanted = "Compare [a b.rs](/src/a b.rs) with it\n\n<file path=\"/src/c.rs\">\nfn c() {}\n</file>";
        assert_eq!(content.unwrap(), PromptContent { text: wanted.to_owned(), attachments: vec![] });
    }

    #[test]
    fn pictures_and_binary_files_become_files_of_the_message() {
        let picture = PromptBlock::Picture { uri: None, media_type: "image/png".into(), data: "iVBORw0KGgo=".into() };
        let file = PromptBlock::BinaryFile { uri: "file:///x/data.bin".into(), media_type: None, data: "AAEC".into() };
        let files = join_prompt(vec![picture, file]).unwrap().attachments;
        assert_eq!(files[0].media_type.as_deref(), Some("image/png"));
        assert_eq!((files[1].name.as_deref(), files[1].content.as_str()), (Some("data.bin"), "AAEC"));
    }

    #[test]
    fn an_empty_prompt_is_refused() {
        assert!(join_prompt(vec![PromptBlock::Text(" ".into())]).unwrap_err().message.contains("empty"));
    }
}
