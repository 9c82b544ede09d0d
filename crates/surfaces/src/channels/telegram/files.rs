//! Files: fetched in two steps (Bot API: getFile), sent by kind so that a picture is seen and a voice can be heard.

use std::time::Duration;

use quell_protocol::{Attachment, AttachmentKind};
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};

use super::api::Api;
use super::send::{address, message_id};
use crate::channels::seam::{MessageId, NotSent, Place, Trouble};
use crate::channels::wire::http::{Repeatable, call_at_most};
use crate::channels::wire::multipart::Multipart;

/// Bot API: getFile, "bots can download files of up to 20MB in size".
const LARGEST_FETCHED: u64 = 20 * 1024 * 1024;
/// Bot API: sendPhoto, "at most 10 MB in size". What is larger goes as a document.
const LARGEST_PHOTO: usize = 10 * 1024 * 1024;
/// Bot API: sendDocument, "up to 50 MB in size".
const LARGEST_SENT: usize = 50 * 1024 * 1024;
/// For the bytes of a file.
const TRANSFER: Duration = Duration::from_secs(300);

/// Fetches a file, `most` bytes at the most.
///
/// # Cancel safety
/// Safe: the transfer is given up.
pub(super) async fn fetch(api: &Api, attachment: &Attachment, most: u64) -> Result<Vec<u8>, Trouble> {
    let most = most.min(LARGEST_FETCHED);
    let told = |bytes: u64| Trouble(format!("the file has {bytes} bytes, and {most} are the most that is fetched"));
    if let Some(bytes) = attachment.bytes.filter(|bytes| *bytes > most) {
        return Err(told(bytes));
    }
    let file =
        api.call("getFile", &json!({"file_id": attachment.source})).await.map_err(|failure| failure.trouble())?;
    if let Some(bytes) = file["file_size"].as_u64().filter(|bytes| *bytes > most) {
        return Err(told(bytes));
    }
    let path =
        file["file_path"].as_str().ok_or_else(|| Trouble("Telegram does not say where the file is".to_owned()))?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let answer = call_at_most(api.get_file(path), TRANSFER, most).await;
    let answer = answer.map_err(|lost| api.no_answer(lost).trouble())?;
    if !answer.status.is_success() {
        return Err(Trouble(api.told(&answer)));
    }
    Ok(answer.body.into())
}

/// Sends a file.
///
/// # Cancel safety
/// A dropped call may or may not have sent it.
pub(super) async fn send(
    api: &Api,
    place: &Place,
    attachment: &Attachment,
    bytes: Vec<u8>,
) -> Result<MessageId, NotSent> {
    if bytes.len() > LARGEST_SENT {
        let why = format!("the file has {} bytes, and Telegram takes {LARGEST_SENT} at the most", bytes.len());
        return Err(NotSent::Refused { why });
    }
    let (method, field, name) = method(attachment, bytes.len());
    let mut form = Multipart::new();
    for (key, value) in address(place)?.as_object().into_iter().flatten() {
        form.text(key, &text(value));
    }
    let media_type = attachment.media_type.as_deref().unwrap_or("application/octet-stream");
    form.file(field, (attachment.name.as_deref().unwrap_or(name), media_type), &bytes);
    let (content_type, body) = form.finish();
    let request = api.post(method).header(CONTENT_TYPE, content_type).body(body);
    let sent = api.result(request, TRANSFER).await.map_err(|failure| failure.not_sent(Repeatable::No))?;
    message_id(&sent)
}

/// The method, its parameter, and a name for a file without one.
fn method(attachment: &Attachment, bytes: usize) -> (&'static str, &'static str, &'static str) {
    let media_type = attachment.media_type.as_deref().unwrap_or_default();
    match attachment.kind {
        // Other pictures, such as SVG, are no photos to Telegram.
        AttachmentKind::Image
            if bytes <= LARGEST_PHOTO && matches!(media_type, "image/jpeg" | "image/png" | "image/webp") =>
        {
            ("sendPhoto", "photo", "picture")
        }
        // Bot API: sendVoice takes OGG with OPUS, sendAudio MP3 and M4A.
        AttachmentKind::Audio if media_type == "audio/ogg" => ("sendVoice", "voice", "voice.ogg"),
        AttachmentKind::Audio if matches!(media_type, "audio/mpeg" | "audio/mp4" | "audio/m4a" | "audio/x-m4a") => {
            ("sendAudio", "audio", "sound")
        }
        AttachmentKind::Video if media_type == "video/mp4" => ("sendVideo", "video", "film.mp4"),
        AttachmentKind::Image | AttachmentKind::Audio | AttachmentKind::Video | AttachmentKind::File => {
            ("sendDocument", "document", "file")
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
