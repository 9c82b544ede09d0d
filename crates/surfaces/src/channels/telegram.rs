//! Telegram, by the Bot API (<https://core.telegram.org/bots/api>) and long polling.
//!
//! Telegram keeps a message until the next question for messages confirms it, so that question is asked when everything heard
//! before is kept, and nothing is lost by a crash in between: it is told again, with the same id. The place to go on from is
//! Telegram's own; none is kept here. While keeping takes its time, Telegram is asked for the unconfirmed messages again, and what
//! is new among them is heard: a stop does not wait for a slow database.
//!
//! Not heard are bots, posts on behalf of a channel or group, stickers, places and the like, and changes of old messages: the
//! request as it was first written has been answered or is being answered, and a second run for a mended comma would surprise.

mod api;
mod files;
mod hear;
mod send;
mod signs;
#[cfg(test)]
mod tests;
mod words;

use std::convert::Infallible;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_protocol::Attachment;
use serde_json::json;
use tokio::time::timeout;

use super::config::{BadChannel, ChannelConfig};
use super::format::{Form, Markup, Measure, Piece};
use super::seam::{
    Drafts, Ear, Files, Heard, Lost, Manners, MessageId, Network, NotSent, Place, Reactions, Trouble, Typing,
};
use api::Api;
use hear::{Account, Groups, Update};
use signs::Signs;

/// How long Telegram holds a question for messages. It is the longest that its server grants.
const POLL: Duration = Duration::from_secs(50);
/// How long keeping may take before Telegram is asked again for what is not confirmed.
const GLANCE: Duration = Duration::from_millis(500);
/// Who asks for so many gets the most (Bot API: getUpdates, limit).
const UPDATES: usize = 100;
/// Bot API: sendMessage, "1-4096 characters after entities parsing"; characters are UTF-16 code units there.
const LONGEST: usize = 4096;
/// Telegram takes about one message per second in a chat and 20 per minute in a group, changes included (Bots FAQ: "My bot is
/// hitting limits"). A draft does not know which of them it is in.
const EDIT_EVERY: Duration = Duration::from_secs(3);
/// The sign fades after five seconds (Bot API: sendChatAction).
const TYPING_EVERY: Duration = Duration::from_secs(4);

/// A bot in Telegram.
#[derive(Debug)]
pub struct Telegram {
    name: String,
    api: Api,
    groups: Groups,
    signs: Signs,
}

impl Telegram {
    /// A bot as `[channels.NAME]` describes it.
    ///
    /// # Errors
    /// When a key is missing, wrong, or of another network.
    pub fn new(name: &str, config: &ChannelConfig) -> Result<Self, BadChannel> {
        let bad = |key, problem: &str| BadChannel { channel: name.to_owned(), key, problem: problem.to_owned() };
        let foreign = [
            ("app_token_env", config.app_token_env.is_some()),
            ("server", config.server.is_some()),
            ("tls", config.tls.is_some()),
            ("nick", config.nick.is_some()),
            ("sasl_account", config.sasl_account.is_some()),
            ("join", !config.join.is_empty()),
            ("reply_url", config.reply_url.is_some()),
        ];
        if let Some((key, _)) = foreign.into_iter().find(|(_, given)| *given) {
            return Err(bad(key, "Telegram has no such thing; remove it"));
        }
        for (key, ids) in [("allow", &config.allow), ("operators", &config.operators)] {
            if let Some(id) = ids.iter().find(|id| *id != "*" && id.parse::<u64>().is_err()) {
                let problem = "is no id of a person in Telegram, which is a number; bots such as @userinfobot tell it";
                return Err(bad(key, &format!("{id:?} {problem}")));
            }
        }
        let missing =
            "is missing: it names the environment variable with the token that @BotFather gave, or token_file the file";
        let token = config.token.clone().ok_or_else(|| bad("token_env", missing))?;
        let api = Api::new(config.api_base.as_deref(), token).map_err(|(key, problem)| bad(key, &problem))?;
        let groups = if config.mention_only { Groups::WhenNamed } else { Groups::Always };
        Ok(Self { name: name.to_owned(), api, groups, signs: Signs::default() })
    }

    async fn hear_all(&self, ear: &dyn Ear) -> Result<Infallible, Lost> {
        let account = self.account().await.map_err(api::Failure::lost)?;
        // The first question does not wait: its answer tells at once whether this account can listen.
        let mut updates = self.updates(None, Duration::ZERO).await?;
        ear.connected(account.own());
        // The newest update that was told and is not confirmed.
        let mut told = None;
        loop {
            let full = updates.len() >= UPDATES;
            for update in updates {
                if told.is_some_and(|told| update.id <= told) {
                    continue;
                }
                told = Some(update.id);
                if let Some(heard) = self.understand(update, &account) {
                    ear.hear(heard);
                }
            }
            let kept = told.is_none() || timeout(GLANCE, ear.settled()).await.is_ok();
            // Ids begin anew somewhere after a quiet week: an offset is named once, and those of other times are not compared.
            let mut behind = || told.take().map(|told: i64| told.saturating_add(1));
            updates = match kept {
                true => self.updates(behind(), POLL).await?,
                // What stands behind a full page is not told before that is confirmed, and may be a stop: to hear it matters more
                // than what a crash in this moment would lose.
                false if full => self.updates(behind(), Duration::ZERO).await?,
                false => self.updates(None, Duration::ZERO).await?,
            };
        }
    }

    async fn account(&self) -> Result<Account, api::Failure> {
        let me = self.api.call("getMe", &json!({})).await?;
        serde_json::from_value(me).map_err(|_| api::Failure::Odd("getMe does not say who the bot is".to_owned()))
    }

    /// The messages after the confirmed ones. An offset confirms everything below it.
    async fn updates(&self, offset: Option<i64>, wait: Duration) -> Result<Vec<Update>, Lost> {
        let mut question = json!({"limit": UPDATES, "timeout": wait.as_secs(), "allowed_updates": ["message"]});
        if let Some(offset) = offset {
            question["offset"] = json!(offset);
        }
        let updates = self.api.question("getUpdates", &question, wait).await.map_err(api::Failure::lost)?;
        serde_json::from_value(updates)
            .map_err(|_| Lost::Connection("getUpdates does not answer with updates".to_owned()))
    }

    fn understand(&self, update: Update, account: &Account) -> Option<Heard> {
        // Whatever else is new in the world must not keep the bot from hearing the next message.
        let message = serde_json::from_value(update.message?);
        let message =
            message.map_err(|error| tracing::debug!(channel = self.name, %error, "a message is not understood"));
        hear::heard(message.ok()?, account, self.groups)
    }
}

impl Network for Telegram {
    fn manners(&self) -> Manners {
        let form = Form { markup: Markup::TelegramHtml, longest: LONGEST, measure: Measure::Utf16 };
        Manners { form, edit_every: EDIT_EVERY, typing_every: TYPING_EVERY }
    }

    fn listen<'a>(&'a self, ear: &'a dyn Ear) -> BoxFuture<'a, Lost> {
        self.hear_all(ear).map(|Err(lost)| lost).boxed()
    }

    fn send<'a>(
        &'a self,
        place: &'a Place,
        piece: &'a Piece,
        _key: &'a str,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        send::message(&self.api, place, piece).boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Trouble>> {
        async {
            let account = self.account().await.map_err(api::Failure::trouble)?;
            let webhook = self.api.call("getWebhookInfo", &json!({})).await.map_err(api::Failure::trouble)?;
            match webhook["url"].as_str() {
                Some(url) if !url.is_empty() => Err(Trouble(format!("{account}, but {}", api::WEBHOOK))),
                _ => Ok(account.to_string()),
            }
        }
        .boxed()
    }

    fn drafts(&self) -> Option<&dyn Drafts> {
        Some(self)
    }

    fn typing(&self) -> Option<&dyn Typing> {
        Some(self)
    }

    fn reactions(&self) -> Option<&dyn Reactions> {
        Some(self)
    }

    fn files(&self) -> Option<&dyn Files> {
        Some(self)
    }
}

impl Drafts for Telegram {
    fn edit<'a>(
        &'a self,
        place: &'a Place,
        message: &'a MessageId,
        piece: &'a Piece,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        send::edit(&self.api, place, message, piece).boxed()
    }
}

impl Typing for Telegram {
    fn show<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), NotSent>> {
        send::typing(&self.api, place).boxed()
    }

    /// A message takes it away, or a few seconds do; the Bot API has no call for it.
    fn hide<'a>(&'a self, _place: &'a Place) -> BoxFuture<'a, Result<(), NotSent>> {
        futures_util::future::ready(Ok(())).boxed()
    }
}

impl Reactions for Telegram {
    fn add<'a>(
        &'a self,
        place: &'a Place,
        message: &'a MessageId,
        sign: &'a str,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        self.signs.add(&self.api, (place, message), sign).boxed()
    }

    fn remove<'a>(
        &'a self,
        place: &'a Place,
        message: &'a MessageId,
        sign: &'a str,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        self.signs.remove(&self.api, (place, message), sign).boxed()
    }
}

impl Files for Telegram {
    fn fetch<'a>(&'a self, attachment: &'a Attachment, most: u64) -> BoxFuture<'a, Result<Vec<u8>, Trouble>> {
        files::fetch(&self.api, attachment, most).boxed()
    }

    fn send<'a>(
        &'a self,
        place: &'a Place,
        attachment: &'a Attachment,
        bytes: Vec<u8>,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        files::send(&self.api, place, attachment, bytes).boxed()
    }
}
