//! Slack: hears through Socket Mode, writes through the Web API.
//!
//! A thread is a place of its own: what is asked in one is answered there, and interrupts nothing outside it. `/stop` is a slash
//! command of the app, because Slack's clients send nothing that begins with a slash as a message; stop words need none.
//!
//! Slack shows no sign that an app is typing outside its own assistant threads, so there is none here. Sources are the public
//! documentation: Socket Mode, Events API, Web API, rate limits, formatting of messages.

mod api;
mod event;
mod files;
mod line;
#[cfg(test)]
mod tests;
mod text;

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::config::{BadChannel, ChannelConfig};
use super::format::{Form, Markup, Measure, Piece};
use super::seam::{Drafts, Ear, Files, Lost, Manners, MessageId, Network, NotSent, Own, Place, Reactions, Trouble};
use super::wire::http::Repeatable;
use api::{Api, Failure};

/// Slack: chat.postMessage, truncating content: "limit to 4,000 characters". Longer ones are cut in two by Slack, which an edit
/// cannot follow.
const LONGEST: usize = 4000;
/// Slack: rate limits, Tier 3 of chat.update: 50 in a minute. Two drafts at a time stay below it.
const EDIT_EVERY: Duration = Duration::from_millis(2400);
/// Nothing is shown.
const TYPING_EVERY: Duration = Duration::from_secs(4);
/// Slack: scopes without which nothing can be said.
const SCOPE: &str = "chat:write";
/// Scopes without which something is left out, and what.
const SCOPES: &[(&str, &str)] = &[
    ("reactions:write", "signs on messages"),
    ("files:read", "files from people"),
    ("files:write", "files of the agent"),
];
/// Slack names emoji. Those that the flow puts, and the most usual ones besides.
const EMOJI: &[(&str, &str)] = &[
    ("👀", "eyes"),
    ("✅", "white_check_mark"),
    ("⚠", "warning"),
    ("⏹", "black_square_for_stop"),
    ("❌", "x"),
    ("⏳", "hourglass_flowing_sand"),
    ("👍", "+1"),
];

/// An app in Slack.
#[derive(Debug)]
pub struct Slack {
    api: Api,
    mention_only: bool,
}

impl Slack {
    /// Checks the keys of `[channels.X]`.
    ///
    /// # Errors
    /// A key that is missing, wrong, or not one of Slack's.
    pub fn new(name: &str, config: &ChannelConfig) -> Result<Self, BadChannel> {
        let bad = |key, problem: &str| BadChannel { channel: name.to_owned(), key, problem: problem.to_owned() };
        if let Some(key) = foreign_key(config) {
            return Err(bad(key, "Slack knows no such key: remove it"));
        }
        for (key, ids) in [("allow", &config.allow), ("operators", &config.operators)] {
            if let Some(id) = ids.iter().find(|id| *id != "*" && !event::is_person(id)) {
                let rule =
                    "is no id of a person in Slack: take \"Copy member ID\" (U...) from the menu of their profile";
                return Err(bad(key, &format!("{id:?} {rule}")));
            }
        }
        let missing = "Slack needs the bot's token (xoxb-...): name the environment variable that holds it (token_env), or \
                       the file (token_file). It stands under OAuth & Permissions, once the app is installed";
        let bot = config.token.as_ref().ok_or_else(|| bad("token_env", missing))?;
        let missing = "Slack needs an app-level token (xapp-...) with the scope connections:write: name the environment \
                       variable that holds it. It is made under Basic Information, App-Level Tokens";
        let app = config.app_token.as_ref().ok_or_else(|| bad("app_token_env", missing))?;
        let api = Api::new(config.api_base.as_deref(), bot, app).map_err(|(key, problem)| bad(key, &problem))?;
        Ok(Self { api, mention_only: config.mention_only })
    }

    /// Who this account is.
    async fn own(&self) -> Result<(Own, Value), Failure> {
        let told = self.api.call("auth.test", &json!({})).await?;
        let id = told["user_id"].as_str().filter(|id| event::is_person(id));
        let id = id.ok_or_else(|| Failure::Failed("auth.test does not say who the app is".to_owned()))?;
        let name = event::line(told["user"].as_str().unwrap_or_default());
        Ok((Own { id: id.to_owned(), name }, told))
    }

    async fn who_am_i(&self) -> Result<String, Trouble> {
        let (own, told) = self.own().await.map_err(Failure::trouble)?;
        let mut line = format!("{} ({}) in {}", own.name, own.id, event::line(told["team"].as_str().unwrap_or("?")));
        if let Some(scopes) = told[api::SCOPES_KEY].as_str() {
            let has = |wanted: &str| scopes.split(',').any(|scope| scope.trim() == wanted);
            if !has(SCOPE) {
                return Err(Trouble(format!("{line} may not write: add the scope {SCOPE}, and install the app again")));
            }
            for (scope, what) in SCOPES.iter().filter(|(scope, _)| !has(scope)) {
                line.push_str(&format!("; without {what}, for want of the scope {scope}"));
            }
        }
        // The address is not used: that Slack gives one shows that the app-level token is good and Socket Mode is on.
        self.api.open_connection().await.map_err(Failure::trouble)?;
        Ok(line)
    }

    async fn post(&self, place: &Place, piece: &Piece) -> Result<MessageId, NotSent> {
        let mut body = json!({
            "channel": place.target, "text": piece.marked, "mrkdwn": true, "unfurl_links": false, "unfurl_media": false,
        });
        if let Some(thread) = &place.thread {
            body["thread_ts"] = json!(thread);
        }
        let shown =
            self.api.call("chat.postMessage", &body).await.map_err(|failure| failure.not_sent(Repeatable::No))?;
        let lost =
            || NotSent::Unknown { why: "Slack took the message and did not say its id".to_owned(), repeatable: false };
        let ts = shown["ts"].as_str().filter(|ts| event::is_timestamp(ts)).ok_or_else(lost)?;
        Ok(MessageId(ts.to_owned()))
    }

    async fn change(&self, place: &Place, message: &MessageId, piece: &Piece) -> Result<(), NotSent> {
        let body = json!({"channel": place.target, "ts": message.0, "text": piece.marked});
        let answer = self.api.call("chat.update", &body).await;
        answer.map(drop).map_err(|failure| failure.not_sent(Repeatable::Yes))
    }

    /// `done` is what Slack says when it is so already.
    async fn react(&self, method: &str, at: (&Place, &MessageId), sign: &str, done: &[&str]) -> Result<(), NotSent> {
        let (place, message) = at;
        // A command is no message: it can bear no sign.
        if !event::is_timestamp(&message.0) {
            return Ok(());
        }
        let bare = sign.trim_end_matches('\u{fe0f}');
        let name = EMOJI.iter().find(|(emoji, _)| *emoji == bare).map(|(_, name)| *name);
        let name = name.ok_or_else(|| NotSent::Refused { why: format!("Slack's name of {sign} is not known here") })?;
        let body = json!({"channel": place.target, "timestamp": message.0, "name": name});
        match self.api.call(method, &body).await {
            Err(Failure::Refused { error, .. }) if done.contains(&error.as_str()) => Ok(()),
            answer => answer.map(drop).map_err(|failure| failure.not_sent(Repeatable::Yes)),
        }
    }
}

impl Network for Slack {
    fn manners(&self) -> Manners {
        let form = Form { markup: Markup::Slack, longest: LONGEST, measure: Measure::Chars };
        Manners { form, edit_every: EDIT_EVERY, typing_every: TYPING_EVERY }
    }

    fn listen<'a>(&'a self, ear: &'a dyn Ear) -> BoxFuture<'a, Lost> {
        line::listen(self, ear).boxed()
    }

    fn send<'a>(
        &'a self,
        place: &'a Place,
        piece: &'a Piece,
        _key: &'a str,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        self.post(place, piece).boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Trouble>> {
        self.who_am_i().boxed()
    }

    fn drafts(&self) -> Option<&dyn Drafts> {
        Some(self)
    }

    fn reactions(&self) -> Option<&dyn Reactions> {
        Some(self)
    }

    fn files(&self) -> Option<&dyn Files> {
        Some(self)
    }
}

impl Drafts for Slack {
    fn edit<'a>(
        &'a self,
        place: &'a Place,
        message: &'a MessageId,
        piece: &'a Piece,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        self.change(place, message, piece).boxed()
    }
}

impl Reactions for Slack {
    fn add<'a>(
        &'a self,
        place: &'a Place,
        message: &'a MessageId,
        sign: &'a str,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        self.react("reactions.add", (place, message), sign, &["already_reacted"]).boxed()
    }

    fn remove<'a>(
        &'a self,
        place: &'a Place,
        message: &'a MessageId,
        sign: &'a str,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        self.react("reactions.remove", (place, message), sign, &["no_reaction", "message_not_found"]).boxed()
    }
}

/// A key that is set and means nothing to Slack.
fn foreign_key(config: &ChannelConfig) -> Option<&'static str> {
    let foreign = [
        ("server", config.server.is_some()),
        ("tls", config.tls.is_some()),
        ("nick", config.nick.is_some()),
        ("sasl_account", config.sasl_account.is_some()),
        ("join", !config.join.is_empty()),
        ("reply_url", config.reply_url.is_some()),
    ];
    foreign.into_iter().find(|(_, set)| *set).map(|(key, _)| key)
}
