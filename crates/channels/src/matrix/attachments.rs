//! Download and upload of media by `mxc` URI.

use quell_protocol::{Attachment, AttachmentKind};
use serde_json::json;

use super::MatrixNetwork;
use super::sending::{new_transaction_id, set_thread_relation};
use crate::network::{ChatAddress, FileTransfer, MessageId, NetworkError, SendError, async_trait};
use crate::wire::call_error::CallError;
use crate::wire::http_client::Repeatable;

const DEFAULT_MEDIA_TYPE: &str = "application/octet-stream";
const DEFAULT_FILE_NAME: &str = "file";

#[async_trait]
impl FileTransfer for MatrixNetwork {
    async fn fetch(&self, attachment: &Attachment, max_bytes: u64) -> Result<Vec<u8>, NetworkError> {
        let Some((server, media)) = parse_mxc_uri(&attachment.source) else {
            return Err(NetworkError(format!("{:?} names no file on a homeserver", attachment.source)));
        };
        if let Some(bytes) = attachment.bytes.filter(|bytes| *bytes > max_bytes) {
            return Err(NetworkError(format!("the file has {bytes} bytes, more than {max_bytes}")));
        }
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let response = self.api.download(server, media, max_bytes).await;
        response.map(|response| response.body.into()).map_err(CallError::into_network_error)
    }

    async fn send(
        &self,
        address: &ChatAddress,
        attachment: &Attachment,
        bytes: Vec<u8>,
    ) -> Result<MessageId, SendError> {
        let name = attachment.name.as_deref().unwrap_or(DEFAULT_FILE_NAME);
        let media_type = attachment.media_type.as_deref().filter(|media_type| is_media_type(media_type));
        let (media_type, size) = (media_type.unwrap_or(DEFAULT_MEDIA_TYPE), bytes.len());
        // Nobody sees an uploaded file until a message names it.
        let uri = self.api.upload(name, media_type, bytes).await.map_err(CallError::into_not_delivered)?;
        let mut content = json!({
            "msgtype": message_type(attachment.kind), "body": name, "filename": name, "url": uri,
            "info": {"mimetype": media_type, "size": size}, "m.mentions": {},
        });
        set_thread_relation(&mut content, address);
        let sent = self.api.send_event(&address.target, "m.room.message", &new_transaction_id(), &content).await;
        sent.map(MessageId).map_err(|fault| fault.into_send_error(Repeatable::No))
    }
}

/// The server and the media id in an `mxc` URI (Matrix specification: content repository).
fn parse_mxc_uri(uri: &str) -> Option<(&str, &str)> {
    let (server, media) = uri.strip_prefix("mxc://")?.split_once('/')?;
    let is_server = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
    let is_media = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let is_valid =
        !server.is_empty() && !media.is_empty() && server.chars().all(is_server) && media.chars().all(is_media);
    (is_valid && !server.starts_with('.')).then_some((server, media))
}

/// True if the text is a media type that fits into a header.
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
        assert_eq!(parse_mxc_uri(uri), place);
    }
}
