//! Download and upload of attachments. Downloads come from Discord's CDN, without a token.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use quell_protocol::Attachment;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::json;
use url::Url;

use super::{DiscordNetwork, no_allowed_mentions, rest_client, target_channel_id};
use crate::network::{ChatAddress, FileTransfer, MessageId, NetworkError, SendError};
use crate::wire::http_client::{Repeatable, send_request_limited};
use crate::wire::multipart::Multipart;
use crate::wire::text::safe_file_name;

/// Time limit of one file, in either direction.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(120);
/// Discord: reference, image formatting and signed attachment URLs. Other hosts are refused: the sender of a message
/// chooses the URL, and this machine may reach hosts that the sender cannot.
const CDN_HOSTS: &[&str] = &["cdn.discordapp.com", "media.discordapp.net"];

impl FileTransfer for DiscordNetwork {
    fn fetch<'a>(&'a self, attachment: &'a Attachment, max_bytes: u64) -> BoxFuture<'a, Result<Vec<u8>, NetworkError>> {
        self.download_attachment(attachment, max_bytes).boxed()
    }

    fn send<'a>(
        &'a self,
        address: &'a ChatAddress,
        attachment: &'a Attachment,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, Result<MessageId, SendError>> {
        self.upload_attachment(address, attachment, bytes).boxed()
    }
}

impl DiscordNetwork {
    async fn download_attachment(&self, attachment: &Attachment, max_bytes: u64) -> Result<Vec<u8>, NetworkError> {
        let url = self.parse_trusted_file_url(&attachment.source)?;
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let response =
            send_request_limited(self.rest_client.request_without_token(url), TRANSFER_TIMEOUT, max_bytes).await;
        let response = response.map_err(|none| NetworkError(format!("the file cannot be fetched: {none}")))?;
        if !response.status.is_success() {
            return Err(NetworkError(format!("the file cannot be fetched: HTTP {}", response.status.as_u16())));
        }
        Ok(response.body.into())
    }

    fn parse_trusted_file_url(&self, source: &str) -> Result<Url, NetworkError> {
        let untrusted_host = || NetworkError("the file is not on Discord's servers, so it is not fetched".to_owned());
        let url = Url::parse(source).map_err(|_| untrusted_host())?;
        let is_on_cdn = url.scheme() == "https"
            && url.port().is_none()
            && url.host_str().is_some_and(|host| CDN_HOSTS.contains(&host));
        // A private API server may also serve the files.
        if is_on_cdn || url.origin() == self.rest_client.base().origin() { Ok(url) } else { Err(untrusted_host()) }
    }

    /// Discord: uploading files, `payload_json` and `files[0]`. Sent without a nonce, because [`FileTransfer`] has no
    /// key for files: if the response is lost, the file is not sent again.
    async fn upload_attachment(
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
        let sent = rest_client::call_api_within(request, TRANSFER_TIMEOUT)
            .await
            .map_err(|failure| failure.into_send_error(Repeatable::No))?;
        rest_client::sent_message_id(&sent, Repeatable::No)
    }
}
