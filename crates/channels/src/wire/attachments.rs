//! Read the attachments of a message from JSON whose sender is not trusted.

use quell_protocol::{Attachment, AttachmentKind};
use serde_json::Value;

use super::text::single_line;

const MAX_URL_BYTES: usize = 4096;
/// Neither Discord (JSON error 30015) nor Slack has messages with more.
const MAX_ATTACHMENTS: usize = 10;

/// The keys under which a network describes a file. The size is under `size`.
pub(crate) struct AttachmentKeys {
    /// The first of them that the file has.
    pub(crate) url: &'static [&'static str],
    pub(crate) media_type: &'static str,
    pub(crate) name: &'static str,
}

/// The files that have a URL.
pub(crate) fn parse_attachments(files: &Value, keys: &AttachmentKeys) -> Vec<Attachment> {
    let files = files.as_array().map_or(&[][..], Vec::as_slice);
    files.iter().take(MAX_ATTACHMENTS).filter_map(|file| parse_attachment(file, keys)).collect()
}

fn parse_attachment(file: &Value, keys: &AttachmentKeys) -> Option<Attachment> {
    let source = keys.url.iter().find_map(|key| file[key].as_str()).filter(|url| url.len() <= MAX_URL_BYTES)?;
    let line = |key: &str| file[key].as_str().map(single_line).filter(|text| !text.is_empty());
    let media_type = line(keys.media_type);
    let kind = match media_type.as_deref().and_then(|kind| kind.split('/').next()) {
        Some("image") => AttachmentKind::Image,
        Some("audio") => AttachmentKind::Audio,
        Some("video") => AttachmentKind::Video,
        _ => AttachmentKind::File,
    };
    let (source, bytes) = (source.to_owned(), file["size"].as_u64());
    Some(Attachment { kind, source, name: line(keys.name), media_type, bytes })
}
