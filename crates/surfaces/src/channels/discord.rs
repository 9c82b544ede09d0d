//! Discord: hears through the gateway, writes through the REST API (both version 10).
//!
//! A thread of Discord is a channel with an id of its own: it is the target, and there is no thread within it. Sources are the
//! public documentation of Discord: API reference, gateway, rate limits, opcodes and status codes.

mod files;
mod gateway;
mod message;
mod payload;
mod rest;
mod session;
#[cfg(test)]
mod tests;

use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use reqwest::Method;
use serde_json::{Value, json};
use url::Url;

use super::config::{BadChannel, ChannelConfig};
use super::format::{Form, Markup, Measure, Piece};
use super::seam::{Drafts, Ear, Files, Lost, Manners, MessageId, Network, NotSent, Place, Reactions, Trouble, Typing};
use super::wire::http::{Repeatable, is_here};
use rest::{Failure, Rest};
use session::Memory;

/// The public API.
const API: &str = "https://discord.com/api/v10";
/// Discord: create message, `content`. Its API counts code points (discord-api-docs issue 1315), older clients UTF-16; what fits
/// in the larger count fits in both.
const LONGEST: usize = 2000;
/// Changes of one draft: Discord allows five within five seconds in a channel, and its other messages want their share.
const EDIT_EVERY: Duration = Duration::from_millis(1200);
/// The sign fades after ten seconds.
const TYPING_EVERY: Duration = Duration::from_secs(4);
/// Discord: JSON error codes. On removing a reaction both mean that it is not there.
const UNKNOWN_MESSAGE: u64 = 10008;
const UNKNOWN_EMOJI: u64 = 10014;
/// Discord: application flags, `GATEWAY_MESSAGE_CONTENT` and the same for bots in few guilds.
const MESSAGE_CONTENT: u64 = (1 << 18) | (1 << 19);

/// A bot account on Discord.
#[derive(Debug)]
pub struct Discord {
    rest: Rest,
    mention_only: bool,
    /// The session of the gateway, so that the next connection goes on where the last one broke.
    memory: Mutex<Memory>,
}

impl Discord {
    /// Checks the keys of `[channels.X]`.
    ///
    /// # Errors
    /// A key that is missing, wrong, or not one of Discord's.
    pub fn new(name: &str, config: &ChannelConfig) -> Result<Self, BadChannel> {
        let bad = |key, problem: &str| BadChannel { channel: name.to_owned(), key, problem: problem.to_owned() };
        if let Some(key) = foreign_key(config) {
            return Err(bad(key, "Discord knows no such key: remove it"));
        }
        for (key, ids) in [("allow", &config.allow), ("operators", &config.operators)] {
            if ids.iter().any(|id| id != "*" && message::snowflake(id).is_none()) {
                return Err(bad(
                    key,
                    "people on Discord are named by their number: switch on Developer Mode in the \
                                     settings of your client, and take \"Copy User ID\" from their menu",
                ));
            }
        }
        let base = config.api_base.as_deref().unwrap_or(API);
        let base = api_base(base).map_err(|problem| bad("api_base", problem))?;
        let missing = "Discord needs the bot's token: name the environment variable that holds it (token_env), or the \
                       file (token_file). It stands in the Developer Portal under Bot";
        let token = config.token.clone().ok_or_else(|| bad("token_env", missing))?;
        let rest = Rest::new(base, token).map_err(|Trouble(problem)| bad("token_env", &problem))?;
        Ok(Self { rest, mention_only: config.mention_only, memory: Mutex::default() })
    }

    async fn post(&self, place: &Place, piece: &Piece, key: &str) -> Result<MessageId, NotSent> {
        let channel = channel(place)?;
        let nonce = rest::nonce(channel, key);
        let body = json!({
            "content": piece.marked, "nonce": nonce, "enforce_nonce": true, "allowed_mentions": nobody_is_pinged(),
        });
        let request = self.rest.request(Method::POST, &["channels", channel, "messages"]).json(&body);
        let shown = rest::call(request).await.map_err(|failure| failure.not_sent(Repeatable::Yes))?;
        rest::id_of(&shown, Repeatable::Yes)
    }

    async fn change(&self, place: &Place, message: &MessageId, piece: &Piece) -> Result<(), NotSent> {
        let path = ["channels", channel(place)?, "messages", number(&message.0)?];
        let body = json!({"content": piece.marked, "allowed_mentions": nobody_is_pinged()});
        let request = self.rest.request(Method::PATCH, &path).json(&body);
        self.done(rest::call(request).await)
    }

    async fn react(&self, method: Method, place: &Place, message: &MessageId, sign: &str) -> Result<(), NotSent> {
        let message = number(&message.0)?;
        let path = ["channels", channel(place)?, "messages", message, "reactions", sign, "@me"];
        let taken_off = method == Method::DELETE;
        match rest::call(self.rest.request(method, &path)).await {
            Err(Failure::Refused { code: UNKNOWN_MESSAGE | UNKNOWN_EMOJI, .. }) if taken_off => Ok(()),
            answer => self.done(answer),
        }
    }

    /// For calls that change nothing when they are made twice.
    fn done(&self, answer: Result<Value, Failure>) -> Result<(), NotSent> {
        answer.map(drop).map_err(|failure| failure.not_sent(Repeatable::Yes))
    }

    async fn look_at(&self, path: &[&str]) -> Result<Value, Trouble> {
        let answer = rest::call(self.rest.request(Method::GET, path)).await;
        answer.map_err(|failure| Trouble(failure.to_string()))
    }

    async fn who_am_i(&self) -> Result<String, Trouble> {
        let me = self.look_at(&["users", "@me"]).await?;
        let application = self.look_at(&["applications", "@me"]).await?;
        let name = message::line(me["username"].as_str().unwrap_or_default());
        if application["flags"].as_u64().unwrap_or_default() & MESSAGE_CONTENT == 0 {
            return Err(Trouble(format!("{name} may not read messages: {}", gateway::SWITCH_ON_CONTENT)));
        }
        let id = me["id"].as_str().and_then(message::snowflake).unwrap_or("?");
        Ok(format!("{name} ({id}) on Discord"))
    }
}

impl Network for Discord {
    fn manners(&self) -> Manners {
        let form = Form { markup: Markup::Discord, longest: LONGEST, measure: Measure::Utf16 };
        Manners { form, edit_every: EDIT_EVERY, typing_every: TYPING_EVERY }
    }

    fn listen<'a>(&'a self, ear: &'a dyn Ear) -> BoxFuture<'a, Lost> {
        gateway::listen(self, ear).boxed()
    }

    /// Discord shows a key once for some minutes only ("in the past few minutes" is all that it says): a message that is sent
    /// again later than that may be shown twice.
    fn send<'a>(
        &'a self,
        place: &'a Place,
        piece: &'a Piece,
        key: &'a str,
    ) -> BoxFuture<'a, Result<MessageId, NotSent>> {
        self.post(place, piece, key).boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<String, Trouble>> {
        self.who_am_i().boxed()
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

impl Drafts for Discord {
    fn edit<'a>(
        &'a self,
        place: &'a Place,
        message: &'a MessageId,
        piece: &'a Piece,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        self.change(place, message, piece).boxed()
    }
}

impl Typing for Discord {
    fn show<'a>(&'a self, place: &'a Place) -> BoxFuture<'a, Result<(), NotSent>> {
        async move {
            let path = ["channels", channel(place)?, "typing"];
            self.done(rest::call(self.rest.request(Method::POST, &path)).await)
        }
        .boxed()
    }

    /// Only time or a message takes it away.
    fn hide<'a>(&'a self, _: &'a Place) -> BoxFuture<'a, Result<(), NotSent>> {
        async { Ok(()) }.boxed()
    }
}

impl Reactions for Discord {
    fn add<'a>(
        &'a self,
        place: &'a Place,
        message: &'a MessageId,
        sign: &'a str,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        self.react(Method::PUT, place, message, sign).boxed()
    }

    fn remove<'a>(
        &'a self,
        place: &'a Place,
        message: &'a MessageId,
        sign: &'a str,
    ) -> BoxFuture<'a, Result<(), NotSent>> {
        self.react(Method::DELETE, place, message, sign).boxed()
    }
}

/// The channel of a place. A thread is a channel.
fn channel(place: &Place) -> Result<&str, NotSent> {
    number(place.thread.as_deref().unwrap_or(&place.target))
}

fn number(id: &str) -> Result<&str, NotSent> {
    let why = || format!("{} is no number, and Discord has nothing else", message::line(id));
    message::snowflake(id).ok_or_else(|| NotSent::Refused { why: why() })
}

/// Discord: allowed mentions. What a model writes never pings anybody, `@everyone` least of all.
fn nobody_is_pinged() -> Value {
    json!({"parse": []})
}

/// A key that is set and means nothing to Discord.
fn foreign_key(config: &ChannelConfig) -> Option<&'static str> {
    let foreign = [
        ("app_token_env", config.app_token_env.is_some()),
        ("server", config.server.is_some()),
        ("tls", config.tls.is_some()),
        ("nick", config.nick.is_some()),
        ("sasl_account", config.sasl_account.is_some()),
        ("join", !config.join.is_empty()),
        ("reply_url", config.reply_url.is_some()),
    ];
    foreign.into_iter().find(|(_, set)| *set).map(|(key, _)| key)
}

/// Where the API is. The token goes there: not without encryption, unless it stays on this machine.
fn api_base(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text).map_err(|_| "this is no URL; without the key the public API is taken")?;
    match url.scheme() {
        "https" => {}
        "http" if is_here(&url) => {}
        _ => return Err("it has to begin with https://, because the token is sent there"),
    }
    if url.query().is_some() || url.fragment().is_some() || !url.username().is_empty() || url.password().is_some() {
        return Err("it may have neither a user, nor a query, nor a fragment");
    }
    Ok(url)
}
