//! Download and upload of attachments. Downloads come from Discord's CDN, without a token.

use quell_net::Multipart;
use quell_protocol::Attachment;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::json;
use url::Url;

use super::{DiscordNetwork, no_allowed_mentions, rest_client, target_channel_id};
use crate::network::{ChatAddress, FileTransfer, MessageId, NetworkError, SendError, async_trait};
use crate::wire::http_client::{FILE_TIMEOUT, Repeatable, fetch_file};
use crate::wire::text::safe_file_name;

/// Discord: reference, image formatting and signed attachment URLs. Other hosts are refused: the sender of a message
/// chooses the URL, and this machine may reach hosts that the sender cannot.
const CDN_HOSTS: &[&str] = &["cdn.discordapp.com", "media.discordapp.net"];

#[async_trait]
impl FileTransfer for DiscordNetwork {
    async fn fetch(&self, attachment: &Attachment, max_bytes: u64) -> Result<Vec<u8>, NetworkError> {
        let url = self.parse_trusted_file_url(&attachment.source)?;
        fetch_file(self.rest_client.request_without_token(url), max_bytes).await?.into_file()
    }

    /// Discord: uploading files, `payload_json` and `files[0]`. Sent without a nonce, because [`FileTransfer`] has no
    /// key for files: if the response is lost, the file is not sent again.
    async fn send(
        &self,
        address: &ChatAddress,
        attachment: &Attachment,
        bytes: Vec<u8>,
    ) -> Result<MessageId, SendError> {
        let name = safe_file_name(attachment);
        let payload = json!({"attachments": [{"id": 0, "filename": name}], "allowed_mentions": no_allowed_mentions()});
        let mut form = Multipart::new();
        form.add_field("payload_json", &payload.to_string());
        form.add_file("files[0]", &name, attachment.media_type.as_deref().unwrap_or_default(), &bytes);
        drop(bytes);
        let (content_type, body) = form.finish();
        let request = self.rest_client.request(Method::POST, &["channels", target_channel_id(address)?, "messages"]);
        let request = request.header(CONTENT_TYPE, content_type).body(body);
        let sent = rest_client::call_api_within(request, FILE_TIMEOUT)
            .await
            .map_err(|failure| failure.into_send_error(Repeatable::No))?;
        rest_client::sent_message_id(&sent, Repeatable::No)
    }
}

impl DiscordNetwork {
    fn parse_trusted_file_url(&self, source: &str) -> Result<Url, NetworkError> {
        let untrusted_host = || NetworkError("the file is not on Discord's servers, so it is not fetched".to_owned());
        let url = Url::parse(source).map_err(|_| untrusted_host())?;
        let is_on_cdn = url.scheme() == "https"
            && url.port().is_none()
            && url.host_str().is_some_and(|host| CDN_HOSTS.contains(&host));
        // A private API server may also serve the files.
        if is_on_cdn || url.origin() == self.rest_client.base().origin() { Ok(url) } else { Err(untrusted_host()) }
    }
}
