//! Files that a client sends with a message, as the gateway's clients encode them.

use std::sync::Arc;

use quell_kernel::attachment::{MAX_ATTACHMENTS, MAX_FILE_BYTES, MAX_TOTAL_BYTES, MessageFile};
use quell_kernel::image::MAX_IMAGE_BYTES;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::frame::RpcError;

/// A file of a message. The fields that only describe it, such as its width, are ignored.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AttachmentParams {
    mime_type: Option<String>,
    file_name: Option<String>,
    /// Base64, also as a `data:` URL.
    content: Option<String>,
    /// The other place of media type and content.
    source: Option<AttachmentSource>,
}

#[derive(Debug, Clone, Deserialize)]
struct AttachmentSource {
    media_type: Option<String>,
    data: Option<String>,
}

/// Decodes the files of a message.
pub(super) fn decode_attachments(attachments: &[AttachmentParams]) -> Result<Arc<[MessageFile]>, RpcError> {
    if attachments.len() > MAX_ATTACHMENTS {
        let message = format!("the message has {} attachments; it may have {MAX_ATTACHMENTS}", attachments.len());
        return Err(refused(message, None));
    }
    let decode = |(index, attachment): (usize, &AttachmentParams)| {
        let name = attachment.file_name.clone();
        let label = name.clone().unwrap_or_else(|| format!("number {}", index + 1));
        let source = attachment.source.as_ref();
        let content = attachment.content.as_deref().or_else(|| source?.data.as_deref());
        let media_type = attachment.mime_type.as_deref().or_else(|| source?.media_type.as_deref());
        let content =
            content.ok_or_else(|| refused(format!("attachment {label}: content must be base64 text"), Some(index)))?;
        MessageFile::decode(name, media_type, content)
            .map_err(|problem| refused(format!("attachment {label}: {problem}"), Some(index)))
    };
    let files = attachments.iter().enumerate().map(decode).collect::<Result<Vec<MessageFile>, RpcError>>()?;
    let total: usize = files.iter().map(|file| file.bytes.len()).sum();
    if total > MAX_TOTAL_BYTES {
        let message = format!("the attachments have {total} bytes together; they may have {MAX_TOTAL_BYTES}");
        return Err(refused(message, None));
    }
    Ok(files.into())
}

fn refused(message: String, index: Option<usize>) -> RpcError {
    RpcError::invalid(message).with_details(json!({"code": "ATTACHMENT_REFUSED", "index": index}))
}

/// The limits, as `hello-ok` announces them.
pub(in crate::ws) fn attachment_policy() -> Value {
    json!({"maxBytes": MAX_FILE_BYTES, "maxImageBytes": MAX_IMAGE_BYTES})
}
