//! Download of attachments from the origin of `reply_url`.
//!
//! Other servers are refused: the sender of a message chooses the URL, and this machine may reach hosts that the sender
//! cannot.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_protocol::Attachment;
use url::Url;

use super::WebhookNetwork;
use crate::network::{ChatAddress, FileTransfer, MessageId, NetworkError, SendError};
use crate::wire::http_client::send_request_limited;

/// Time limit of a download.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(120);

impl FileTransfer for WebhookNetwork {
    fn fetch<'a>(&'a self, attachment: &'a Attachment, max_bytes: u64) -> BoxFuture<'a, Result<Vec<u8>, NetworkError>> {
        self.download_attachment(&attachment.source, max_bytes).boxed()
    }

    /// Events can only hold text.
    fn send<'a>(
        &'a self,
        _address: &'a ChatAddress,
        _attachment: &'a Attachment,
        _bytes: Vec<u8>,
    ) -> BoxFuture<'a, Result<MessageId, SendError>> {
        let why =
            "a webhook takes no files; let the agent put them where people find them, and name the place".to_owned();
        std::future::ready(Err(SendError::Refused { why })).boxed()
    }
}

impl WebhookNetwork {
    async fn download_attachment(&self, source: &str, max_bytes: u64) -> Result<Vec<u8>, NetworkError> {
        let untrusted_host = || NetworkError("it is not on the server of reply_url, so it is not fetched".to_owned());
        let (Some(endpoint), Ok(url)) = (&self.reply_endpoint, Url::parse(source)) else {
            return Err(untrusted_host());
        };
        if url.origin() != endpoint.url.origin() {
            return Err(untrusted_host());
        }
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let response = send_request_limited(endpoint.client.get(url), TRANSFER_TIMEOUT, max_bytes).await;
        let response = response.map_err(|none| NetworkError(format!("it cannot be fetched: {none}")))?;
        if !response.status.is_success() {
            return Err(NetworkError(format!("it cannot be fetched: HTTP {}", response.status.as_u16())));
        }
        Ok(response.body.into())
    }
}
