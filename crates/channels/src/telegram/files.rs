//! Download and upload of attachments.
//!
//! A download takes two steps (Bot API: getFile). An upload uses the method for its kind, so that Telegram shows
//! pictures and plays sound.

use std::time::Duration;

use quell_net::Multipart;
use quell_protocol::{Attachment, AttachmentKind};
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};

use super::TelegramNetwork;
use super::api::{TelegramApi, network_error, reason_contains};
use super::messages::{chat_fields, parse_message_id};
use crate::network::{ChatAddress, FileTransfer, MessageId, NetworkError, SendError, async_trait};
use crate::wire::call_error::CallError;
use crate::wire::http_client::{Repeatable, send_request_limited};

/// Bot API: getFile, "bots can download files of up to 20MB in size".
const MAX_FETCH_BYTES: u64 = 20 * 1024 * 1024;
/// Bot API: sendPhoto, "at most 10 MB in size". A larger picture is sent as a document.
const MAX_PHOTO_BYTES: usize = 10 * 1024 * 1024;
/// Bot API: sendDocument, "up to 50 MB in size".
const MAX_SEND_BYTES: usize = 50 * 1024 * 1024;
/// Errors for pictures that are too long, too narrow or unreadable.
const PHOTO_ERRORS: [&str; 2] = ["PHOTO_INVALID_DIMENSIONS", "IMAGE_PROCESS_FAILED"];
/// Time for the transfer of a file.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(300);

#[async_trait]
impl FileTransfer for TelegramNetwork {
    async fn fetch(&self, attachment: &Attachment, max_bytes: u64) -> Result<Vec<u8>, NetworkError> {
        let max_bytes = max_bytes.min(MAX_FETCH_BYTES);
        let too_large = |bytes: u64| {
            NetworkError(format!("the file has {bytes} bytes, and {max_bytes} are the most that is fetched"))
        };
        if let Some(bytes) = attachment.bytes.filter(|bytes| *bytes > max_bytes) {
            return Err(too_large(bytes));
        }
        let file =
            self.api.call_method("getFile", &json!({"file_id": attachment.source})).await.map_err(network_error)?;
        if let Some(bytes) = file["file_size"].as_u64().filter(|bytes| *bytes > max_bytes) {
            return Err(too_large(bytes));
        }
        let path = file["file_path"]
            .as_str()
            .ok_or_else(|| NetworkError("Telegram does not say where the file is".to_owned()))?;
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let response = send_request_limited(self.api.file_request(path), TRANSFER_TIMEOUT, max_bytes).await;
        let response = response.map_err(|lost| network_error(self.api.redact_no_response(lost)))?;
        if !response.status.is_success() {
            return Err(NetworkError(self.api.describe_response(&response)));
        }
        Ok(response.body.into())
    }

    async fn send(
        &self,
        address: &ChatAddress,
        attachment: &Attachment,
        bytes: Vec<u8>,
    ) -> Result<MessageId, SendError> {
        if bytes.len() > MAX_SEND_BYTES {
            let why = format!("the file has {} bytes, and Telegram takes {MAX_SEND_BYTES} at the most", bytes.len());
            return Err(SendError::Refused { why });
        }
        let fields = chat_fields(address)?;
        let mut sent =
            upload_file(&self.api, &fields, attachment, upload_method(attachment, bytes.len()), &bytes).await;
        if sent.as_ref().is_err_and(|failure| PHOTO_ERRORS.iter().any(|words| reason_contains(failure, words))) {
            // Nothing was shown yet, and a document may have any size and shape.
            sent = upload_file(&self.api, &fields, attachment, DOCUMENT, &bytes).await;
        }
        parse_message_id(&sent.map_err(|failure| failure.into_send_error(Repeatable::No))?)
    }
}

async fn upload_file(
    api: &TelegramApi,
    fields: &Value,
    attachment: &Attachment,
    upload: TelegramUploadMethod,
    bytes: &[u8],
) -> Result<Value, CallError> {
    let mut multipart = Multipart::new();
    for (key, value) in fields.as_object().into_iter().flatten() {
        multipart.add_field(key, &form_value(value));
    }
    let media_type = attachment.media_type.as_deref().unwrap_or("application/octet-stream");
    multipart.add_file(upload.field, attachment.name.as_deref().unwrap_or(upload.name), media_type, bytes);
    let (content_type, body) = multipart.finish();
    let request = api.method_request(upload.method).header(CONTENT_TYPE, content_type).body(body);
    api.send_request(request, TRANSFER_TIMEOUT).await
}

/// How a kind of file is sent.
#[derive(Debug, Clone, Copy)]
struct TelegramUploadMethod {
    method: &'static str,
    /// The parameter that holds the file.
    field: &'static str,
    /// File name for a file without one.
    name: &'static str,
}

const PHOTO: TelegramUploadMethod = TelegramUploadMethod { method: "sendPhoto", field: "photo", name: "picture" };
const VOICE: TelegramUploadMethod = TelegramUploadMethod { method: "sendVoice", field: "voice", name: "voice.ogg" };
const AUDIO: TelegramUploadMethod = TelegramUploadMethod { method: "sendAudio", field: "audio", name: "sound" };
const VIDEO: TelegramUploadMethod = TelegramUploadMethod { method: "sendVideo", field: "video", name: "film.mp4" };
const DOCUMENT: TelegramUploadMethod = TelegramUploadMethod { method: "sendDocument", field: "document", name: "file" };

/// The upload method of a file: as a document if Telegram would not show or play it.
fn upload_method(attachment: &Attachment, bytes: usize) -> TelegramUploadMethod {
    let media_type = attachment.media_type.as_deref().unwrap_or_default();
    let media_type = media_type.split_once(';').map_or(media_type, |(essence, _)| essence.trim_end());
    match (attachment.kind, media_type) {
        (AttachmentKind::Image, "image/jpeg" | "image/png" | "image/webp") if bytes <= MAX_PHOTO_BYTES => PHOTO,
        // Bot API: sendVoice takes OGG with OPUS, sendAudio MP3 and M4A, sendVideo MPEG4.
        (AttachmentKind::Audio, "audio/ogg") => VOICE,
        (AttachmentKind::Audio, "audio/mpeg" | "audio/mp4" | "audio/m4a" | "audio/x-m4a") => AUDIO,
        (AttachmentKind::Video, "video/mp4") => VIDEO,
        _ => DOCUMENT,
    }
}

fn form_value(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
