//! Files that come with messages. They are fetched from the server that answers go to, and from nowhere else: a message names
//! the URL, and this machine may reach what the one who wrote it may not.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_protocol::Attachment;
use url::Url;

use super::Webhook;
use crate::channels::seam::{Files, MessageId, NotSent, Place, Trouble};
use crate::channels::wire::http::call_at_most;

/// How long a file may take.
const TRANSFER: Duration = Duration::from_secs(120);

impl Files for Webhook {
    fn fetch<'a>(&'a self, attachment: &'a Attachment, most: u64) -> BoxFuture<'a, Result<Vec<u8>, Trouble>> {
        self.download(&attachment.source, most).boxed()
    }

    /// Events hold text alone.
    fn send<'a>(
        &'a self,
        _place: &'a Place,
        _attachment: &'a Attachment,
        _bytes: Vec<u8>,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        let why =
            "a webhook takes no files; let the agent put them where people find them, and name the place".to_owned();
        std::future::ready(Err(NotSent::Refused { why })).boxed()
    }
}

impl Webhook {
    async fn download(&self, source: &str, most: u64) -> Result<Vec<u8>, Trouble> {
        let elsewhere = || Trouble("it is not on the server of reply_url, so it is not fetched".to_owned());
        let (Some(out), Ok(url)) = (&self.out, Url::parse(source)) else { return Err(elsewhere()) };
        if url.origin() != out.url.origin() {
            return Err(elsewhere());
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let answer = call_at_most(out.client.get(url), TRANSFER, most).await;
        let answer = answer.map_err(|none| Trouble(format!("it cannot be fetched: {none}")))?;
        if !answer.status.is_success() {
            return Err(Trouble(format!("it cannot be fetched: HTTP {}", answer.status.as_u16())));
        }
        Ok(answer.body.into())
    }
}
