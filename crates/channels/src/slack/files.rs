//! Download and upload of attachments.
//!
//! A download needs the bot's token. An upload takes three steps, and only the last one shows the file.

use quell_protocol::Attachment;
use reqwest::header::CONTENT_TYPE;
use serde_json::json;

use super::SlackNetwork;
use crate::network::{ChatAddress, FileTransfer, MessageId, NetworkError, SendError, async_trait};
use crate::wire::call_error::CallError;
use crate::wire::http_client::{FILE_TIMEOUT, Repeatable, fetch_file, send_request};
use crate::wire::text::{safe_file_name, single_line};

#[async_trait]
impl FileTransfer for SlackNetwork {
    async fn fetch(&self, attachment: &Attachment, max_bytes: u64) -> Result<Vec<u8>, NetworkError> {
        let request = self.api.file_request(&attachment.source);
        let request =
            request.ok_or_else(|| NetworkError("the file is not on Slack's servers, so it is not fetched".into()))?;
        let response = fetch_file(request, max_bytes).await?;
        let media_type = response.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_page = |kind: &str| kind.starts_with("text/html");
        let is_wanted = attachment.media_type.as_deref().is_some_and(is_page);
        // Without the scope, Slack responds with its sign-in page or a redirect to it.
        if response.status.is_redirection() || (is_page(media_type) && !is_wanted) {
            let remedy = "add the scope files:read under OAuth & Permissions, and install the app again";
            return Err(NetworkError(format!("Slack does not give the file to the app: {remedy}")));
        }
        response.into_file()
    }

    /// Returns the id of the file: Slack shows it a little later and does not tell the message.
    async fn send(
        &self,
        address: &ChatAddress,
        attachment: &Attachment,
        bytes: Vec<u8>,
    ) -> Result<MessageId, SendError> {
        let (name, length) = (safe_file_name(attachment), bytes.len().to_string());
        let fields = [("filename", name.as_str()), ("length", length.as_str())];
        let upload_slot = self
            .api
            .call_method_with_form("files.getUploadURLExternal", &fields)
            .await
            .map_err(CallError::into_not_delivered)?;
        let (target, id) = (upload_slot["upload_url"].as_str(), upload_slot["file_id"].as_str().map(single_line));
        let request = target.and_then(|target| self.api.upload_request(target, bytes));
        let (Some(request), Some(id)) = (request, id) else {
            let why = "Slack does not say where to put the file".to_owned();
            return Err(SendError::NotDelivered { why, retry_after: None });
        };
        let upload = send_request(request, FILE_TIMEOUT)
            .await
            .map_err(|no_response| SendError::NotDelivered { why: no_response.to_string(), retry_after: None })?;
        if !upload.status.is_success() {
            let why = format!("Slack does not take the file: HTTP {}", upload.status.as_u16());
            return Err(SendError::NotDelivered { why, retry_after: upload.retry_after() });
        }
        let mut body = json!({"files": [{"id": id, "title": name}], "channel_id": address.target});
        if let Some(thread) = &address.thread {
            body["thread_ts"] = json!(thread);
        }
        let result = self.api.call_method("files.completeUploadExternal", &body).await;
        result.map(|_| MessageId(id)).map_err(|failure| failure.into_send_error(Repeatable::No))
    }
}
