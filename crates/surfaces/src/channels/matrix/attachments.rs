//! Files that come and go with messages: they lie on homeservers, and a message names them by an `mxc` URI.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_protocol::{Attachment, AttachmentKind};
use serde_json::json;

use super::Matrix;
use super::fault::Fault;
use super::speaking::{new_transaction, relate};
use crate::channels::seam::{Files, MessageId, NotSent, Place, Trouble};
use crate::channels::wire::http::Repeatable;

/// The type of a file of which nothing is known.
const UNKNOWN_TYPE: &str = "application/octet-stream";
/// The name of a file that has none.
const UNNAMED: &str = "file";

impl Files for Matrix {
    fn fetch<'a>(&'a self, attachment: &'a Attachment, most: u64) -> BoxFuture<'a, Result<Vec<u8>, Trouble>> {
        async move {
            let Some((server, media)) = place_of(&attachment.source) else {
                return Err(Trouble(format!("{:?} names no file on a homeserver", attachment.source)));
            };
            if let Some(bytes) = attachment.bytes.filter(|bytes| *bytes > most) {
                return Err(Trouble(format!("the file has {bytes} bytes, more than {most}")));
            }
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let answer = self.api.download(server, media, most).await;
            answer.map(|answer| answer.body.into()).map_err(|fault| Trouble(fault.to_string()))
        }
        .boxed()
    }

    fn send<'a>(
        &'a self,
        place: &'a Place,
        attachment: &'a Attachment,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        async move {
            let name = attachment.name.as_deref().unwrap_or(UNNAMED);
            let media_type = attachment.media_type.as_deref().filter(|media_type| is_media_type(media_type));
            let (media_type, size) = (media_type.unwrap_or(UNKNOWN_TYPE), bytes.len());
            // A file that lies on the server and is named by no message is seen by nobody.
            let uri = self.api.upload(name, media_type, bytes).await.map_err(unseen)?;
            let mut content = json!({
                "msgtype": message_type(attachment.kind), "body": name, "filename": name, "url": uri,
                "info": {"mimetype": media_type, "size": size}, "m.mentions": {},
            });
            relate(&mut content, place);
            let sent = self.api.send(&place.target, "m.room.message", &new_transaction(), &content).await;
            sent.map(MessageId).map_err(|fault| fault.into_not_sent(Repeatable::No))
        }
        .boxed()
    }
}

/// The server and the name in an `mxc` URI (Matrix specification: content repository).
fn place_of(uri: &str) -> Option<(&str, &str)> {
    let (server, media) = uri.strip_prefix("mxc://")?.split_once('/')?;
    let is_server = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
    let is_media = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let whole = !server.is_empty() && !media.is_empty() && server.chars().all(is_server) && media.chars().all(is_media);
    (whole && !server.starts_with('.')).then_some((server, media))
}

/// Whether this can stand in a header.
fn is_media_type(text: &str) -> bool {
    text.contains('/') && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn message_type(kind: AttachmentKind) -> &'static str {
    match kind {
        AttachmentKind::Image => "m.image",
        AttachmentKind::Audio => "m.audio",
        AttachmentKind::Video => "m.video",
        AttachmentKind::File => "m.file",
    }
}

fn unseen(fault: Fault) -> NotSent {
    match fault.into_not_sent(Repeatable::No) {
        NotSent::Unknown { why, .. } => NotSent::Undelivered { why, after: None },
        certain => certain,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("mxc://quell.test/abcDEF_-0", Some(("quell.test", "abcDEF_-0")))]
    #[case("mxc://[::1]:8448/a", Some(("[::1]:8448", "a")))]
    #[case("mxc://quell.test/../../v3/account/whoami", None)]
    #[case("mxc://../a", None)]
    #[case("mxc://quell.test/", None)]
    #[case("https://quell.test/a", None)]
    fn a_file_is_fetched_from_nowhere_else(#[case] uri: &str, #[case] place: Option<(&str, &str)>) {
        assert_eq!(place_of(uri), place);
    }
}
