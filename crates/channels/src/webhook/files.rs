//! Download of attachments from the origin of `reply_url`.
//!
//! Other servers are refused: the sender of a message chooses the URL, and this machine may reach hosts that the sender
//! cannot.

use quell_protocol::Attachment;
use url::Url;

use super::WebhookNetwork;
use crate::network::{ChatAddress, FileTransfer, MessageId, NetworkError, SendError, async_trait};
use crate::wire::http_client::fetch_file;

#[async_trait]
impl FileTransfer for WebhookNetwork {
    async fn fetch(&self, attachment: &Attachment, max_bytes: u64) -> Result<Vec<u8>, NetworkError> {
        let untrusted_host = || NetworkError("it is not on the server of reply_url, so it is not fetched".to_owned());
        let (Some(endpoint), Ok(url)) = (&self.reply_endpoint, Url::parse(&attachment.source)) else {
            return Err(untrusted_host());
        };
        if url.origin() != endpoint.url.origin() {
            return Err(untrusted_host());
        }
        fetch_file(endpoint.client.get(url), max_bytes).await?.into_file()
    }

    /// Events can only hold text.
    async fn send(
        &self,
        _address: &ChatAddress,
        _attachment: &Attachment,
        _bytes: Vec<u8>,
    ) -> Result<MessageId, SendError> {
        let why =
            "a webhook takes no files; let the agent put them where people find them, and name the place".to_owned();
        Err(SendError::Refused { why })
    }
}
