//! Files that come and go with messages. Those that come want the bot's token; those that go take three steps, of which only
//! the last shows anything.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use quell_protocol::Attachment;
use reqwest::header::CONTENT_TYPE;
use serde_json::json;

use super::Slack;
use super::api::Failure;
use super::event::line;
use crate::channels::seam::{Files, MessageId, NotSent, Place, Trouble};
use crate::channels::wire::http::{Repeatable, call, call_at_most};

/// How long a file may take, in either direction.
const TRANSFER: Duration = Duration::from_secs(120);
const LONGEST_NAME: usize = 100;

impl Files for Slack {
    fn fetch<'a>(&'a self, attachment: &'a Attachment, most: u64) -> BoxFuture<'a, Result<Vec<u8>, Trouble>> {
        self.download(attachment, most).boxed()
    }

    /// The answer is the id of the file: Slack shows it a little later, and does not say as which message.
    fn send<'a>(
        &'a self,
        place: &'a Place,
        attachment: &'a Attachment,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        self.upload(place, attachment, bytes).boxed()
    }
}

impl Slack {
    async fn download(&self, attachment: &Attachment, most: u64) -> Result<Vec<u8>, Trouble> {
        let request = self.api.file(&attachment.source);
        let request =
            request.ok_or_else(|| Trouble("the file is not on Slack's servers, so it is not fetched".into()))?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let answer = call_at_most(request, TRANSFER, most).await;
        let answer = answer.map_err(|none| Trouble(format!("the file cannot be fetched: {none}")))?;
        let media_type = answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_page = |kind: &str| kind.starts_with("text/html");
        let is_wanted = attachment.media_type.as_deref().is_some_and(is_page);
        // Slack answers with its sign-in page, or the way there, where a token lacks the scope.
        if answer.status.is_redirection() || (is_page(media_type) && !is_wanted) {
            let remedy = "add the scope files:read under OAuth & Permissions, and install the app again";
            return Err(Trouble(format!("Slack does not give the file to the app: {remedy}")));
        }
        if !answer.status.is_success() {
            return Err(Trouble(format!("the file cannot be fetched: HTTP {}", answer.status.as_u16())));
        }
        Ok(answer.body.into())
    }

    async fn upload(&self, place: &Place, attachment: &Attachment, bytes: Vec<u8>) -> Result<MessageId, NotSent> {
        let (name, length) = (file_name(attachment), bytes.len().to_string());
        let fields = [("filename", name.as_str()), ("length", length.as_str())];
        let told = self.api.call_with_form("files.getUploadURLExternal", &fields).await.map_err(Failure::not_begun)?;
        let (target, id) = (told["upload_url"].as_str(), told["file_id"].as_str().map(line));
        let request = target.and_then(|target| self.api.upload(target, bytes));
        let (Some(request), Some(id)) = (request, id) else {
            let why = "Slack does not say where to put the file".to_owned();
            return Err(NotSent::Undelivered { why, after: None });
        };
        let put = call(request, TRANSFER)
            .await
            .map_err(|none| NotSent::Undelivered { why: none.to_string(), after: None })?;
        if !put.status.is_success() {
            let why = format!("Slack does not take the file: HTTP {}", put.status.as_u16());
            return Err(NotSent::Undelivered { why, after: put.retry_after() });
        }
        let mut body = json!({"files": [{"id": id, "title": name}], "channel_id": place.target});
        if let Some(thread) = &place.thread {
            body["thread_ts"] = json!(thread);
        }
        let shown = self.api.call("files.completeUploadExternal", &body).await;
        shown.map(|_| MessageId(id)).map_err(|failure| failure.not_sent(Repeatable::No))
    }
}

/// A name that is one, whatever the model called the file.
fn file_name(attachment: &Attachment) -> String {
    let name = attachment.name.as_deref().unwrap_or_default();
    let name = line(name.rsplit(['/', '\\']).next().unwrap_or_default());
    let name: String = name.chars().take(LONGEST_NAME).collect();
    if name.trim_matches('.').is_empty() { "file".to_owned() } else { name }
}
