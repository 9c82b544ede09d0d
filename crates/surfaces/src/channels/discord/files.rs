//! Files that come and go with messages. Those that come lie on Discord's CDN, which knows no token.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use quell_protocol::Attachment;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::json;
use url::Url;

use super::message::line;
use super::{Discord, channel, nobody_is_pinged, rest};
use crate::channels::seam::{Files, MessageId, NotSent, Place, Trouble};
use crate::channels::wire::http::{Repeatable, call_at_most};
use crate::channels::wire::multipart::Multipart;

/// How long a file may take, in either direction.
const TRANSFER: Duration = Duration::from_secs(120);
/// Discord: reference, image formatting and signed attachment URLs. Nothing is fetched from elsewhere: a message names the URL,
/// and this machine may reach what the one who wrote it may not.
const CDN: &[&str] = &["cdn.discordapp.com", "media.discordapp.net"];
const LONGEST_NAME: usize = 100;

impl Files for Discord {
    fn fetch<'a>(&'a self, attachment: &'a Attachment, most: u64) -> BoxFuture<'a, Result<Vec<u8>, Trouble>> {
        self.download(attachment, most).boxed()
    }

    fn send<'a>(
        &'a self,
        place: &'a Place,
        attachment: &'a Attachment,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        self.upload(place, attachment, bytes).boxed()
    }
}

impl Discord {
    async fn download(&self, attachment: &Attachment, most: u64) -> Result<Vec<u8>, Trouble> {
        let url = self.file_url(&attachment.source)?;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let answer = call_at_most(self.rest.anonymous(url), TRANSFER, most).await;
        let answer = answer.map_err(|none| Trouble(format!("the file cannot be fetched: {none}")))?;
        if !answer.status.is_success() {
            return Err(Trouble(format!("the file cannot be fetched: HTTP {}", answer.status.as_u16())));
        }
        Ok(answer.body.into())
    }

    fn file_url(&self, source: &str) -> Result<Url, Trouble> {
        let elsewhere = || Trouble("the file is not on Discord's servers, so it is not fetched".to_owned());
        let url = Url::parse(source).map_err(|_| elsewhere())?;
        let on_the_cdn =
            url.scheme() == "https" && url.port().is_none() && url.host_str().is_some_and(|host| CDN.contains(&host));
        // Where the API stands on a server of one's own, so do its files.
        if on_the_cdn || url.origin() == self.rest.base().origin() { Ok(url) } else { Err(elsewhere()) }
    }

    /// Discord: uploading files, `payload_json` and `files[0]`. Without a nonce: the seam has no key for files, so one whose answer is lost is not sent again.
    async fn upload(&self, place: &Place, attachment: &Attachment, bytes: Vec<u8>) -> Result<MessageId, NotSent> {
        let name = file_name(attachment);
        let payload = json!({"attachments": [{"id": 0, "filename": name}], "allowed_mentions": nobody_is_pinged()});
        let mut form = Multipart::new();
        form.text("payload_json", &payload.to_string());
        form.file("files[0]", (&name, attachment.media_type.as_deref().unwrap_or_default()), &bytes);
        drop(bytes);
        let (content_type, body) = form.finish();
        let request = self.rest.request(Method::POST, &["channels", channel(place)?, "messages"]);
        let request = request.header(CONTENT_TYPE, content_type).body(body);
        let shown = rest::call_within(request, TRANSFER).await.map_err(|failure| failure.not_sent(Repeatable::No))?;
        rest::id_of(&shown, Repeatable::No)
    }
}

/// A name that is one, whatever the model called the file.
fn file_name(attachment: &Attachment) -> String {
    let name = attachment.name.as_deref().unwrap_or_default();
    let name = line(name.rsplit(['/', '\\']).next().unwrap_or_default());
    let name: String = name.chars().take(LONGEST_NAME).collect();
    if name.trim_matches('.').is_empty() { "file".to_owned() } else { name }
}
