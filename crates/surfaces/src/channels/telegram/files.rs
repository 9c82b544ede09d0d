//! Files: fetched in two steps (Bot API: getFile), sent by kind so that a picture is seen and a voice can be heard.

use std::time::Duration;

use quell_protocol::{Attachment, AttachmentKind};
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};

use super::api::{Api, Failure};
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
/// How Telegram refuses pictures that are too long, too narrow or not to be read.
const NO_PHOTO: [&str; 2] = ["PHOTO_INVALID_DIMENSIONS", "IMAGE_PROCESS_FAILED"];
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
    let address = address(place)?;
    let mut sent = upload(api, &address, (attachment, form_of(attachment, bytes.len())), &bytes).await;
    if sent.as_ref().is_err_and(|failure| NO_PHOTO.iter().any(|words| failure.says(words))) {
        // Nothing was shown, and a document may have any size and shape.
        sent = upload(api, &address, (attachment, DOCUMENT), &bytes).await;
    }
    message_id(&sent.map_err(|failure| failure.not_sent(Repeatable::No))?)
}

async fn upload(
    api: &Api,
    address: &Value,
    (attachment, form): (&Attachment, Form),
    bytes: &[u8],
) -> Result<Value, Failure> {
    let mut multipart = Multipart::new();
    for (key, value) in address.as_object().into_iter().flatten() {
        multipart.text(key, &text(value));
    }
    let media_type = attachment.media_type.as_deref().unwrap_or("application/octet-stream");
    multipart.file(form.field, (attachment.name.as_deref().unwrap_or(form.name), media_type), bytes);
    let (content_type, body) = multipart.finish();
    let request = api.post(form.method).header(CONTENT_TYPE, content_type).body(body);
    api.result(request, TRANSFER).await
}

/// How a file is sent.
#[derive(Debug, Clone, Copy)]
struct Form {
    method: &'static str,
    /// The parameter that holds it.
    field: &'static str,
    /// Its name when it has none.
    name: &'static str,
}

const PHOTO: Form = Form { method: "sendPhoto", field: "photo", name: "picture" };
const VOICE: Form = Form { method: "sendVoice", field: "voice", name: "voice.ogg" };
const AUDIO: Form = Form { method: "sendAudio", field: "audio", name: "sound" };
const VIDEO: Form = Form { method: "sendVideo", field: "video", name: "film.mp4" };
const DOCUMENT: Form = Form { method: "sendDocument", field: "document", name: "file" };

/// As what a file is sent: as a document where Telegram would not show or play it.
fn form_of(attachment: &Attachment, bytes: usize) -> Form {
    let media_type = attachment.media_type.as_deref().unwrap_or_default();
    let media_type = media_type.split_once(';').map_or(media_type, |(essence, _)| essence.trim_end());
    match (attachment.kind, media_type) {
        (AttachmentKind::Image, "image/jpeg" | "image/png" | "image/webp") if bytes <= LARGEST_PHOTO => PHOTO,
        // Bot API: sendVoice takes OGG with OPUS, sendAudio MP3 and M4A, sendVideo MPEG4.
        (AttachmentKind::Audio, "audio/ogg") => VOICE,
        (AttachmentKind::Audio, "audio/mpeg" | "audio/mp4" | "audio/m4a" | "audio/x-m4a") => AUDIO,
        (AttachmentKind::Video, "video/mp4") => VIDEO,
        _ => DOCUMENT,
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
