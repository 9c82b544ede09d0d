//! What the tests of buttons need of each network's server.

use quell_testkit::networks::discord::{DiscordRoute, FakeDiscord, FakeDiscordFault, FakeInteractionResponse};
use quell_testkit::networks::slack::{self, FakeSlack, FakeSlackFault};
use quell_testkit::networks::telegram::{self, FakeTelegram, FakeTelegramFault, TelegramTestUser};
use quell_testkit::networks::{FakeButton, discord};
use serde_json::{Value, json};

use crate::config::{ChannelConfig, ChannelKind};
use crate::network::async_trait;
use crate::network::test_support::channel_config;

/// A type of its own, because `async_trait` would give the argument a lifetime.
pub(super) type ViewCondition<'a> = dyn Fn(&ChatView) -> bool + Send + Sync + 'a;

/// A server with the people ann, bob, cy, root and eve in one group.
#[async_trait]
pub(super) trait ButtonServer: Send + Sync {
    /// The kind, the address and the tokens of the channel.
    fn config(&self) -> ChannelConfig;

    /// The network's id of a person.
    fn person_id(&self, name: &str) -> String;

    /// A person writes in the group.
    fn write(&self, person: &'static str, text: &str);

    /// A person presses a button, or sends this data by a client that is not genuine.
    fn press(&self, person: &'static str, message: &str, data: &str);

    /// The account writes in the group without Quell; returns the id.
    async fn post_bot_message(&self, text: &str) -> String;

    /// The next message is shown, and the response to it is lost.
    fn lose_next_response(&self);

    fn refuse_next_message(&self);

    fn view(&self) -> ChatView;

    async fn wait_for(&self, what: &str, condition: &ViewCondition<'_>) -> ChatView;

    fn client_errors(&self) -> Vec<String>;
}

/// The group as the network shows it.
#[derive(Debug, Clone)]
pub(super) struct ChatView {
    /// The messages of the account.
    pub(super) messages: Vec<ShownButtonMessage>,
    /// Refused presses: the person, and the text that only this person sees.
    pub(super) refusals: Vec<(String, String)>,
    /// Presses that the network still waits for.
    pub(super) unanswered: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShownButtonMessage {
    pub(super) id: String,
    /// Without marks of code.
    pub(super) text: String,
    pub(super) buttons: Vec<FakeButton>,
}

impl ShownButtonMessage {
    fn new(id: String, text: &str, buttons: &[FakeButton]) -> Self {
        Self { id, text: text.replace('`', ""), buttons: buttons.to_vec() }
    }
}

pub(super) async fn start(kind: ChannelKind) -> Box<dyn ButtonServer> {
    match kind {
        ChannelKind::Telegram => Box::new(start_telegram().await),
        ChannelKind::Discord => Box::new(start_discord().await),
        ChannelKind::Slack => Box::new(start_slack().await),
        kind => unreachable!("{kind:?} has no buttons"),
    }
}

const PEOPLE: [&str; 5] = ["ann", "bob", "cy", "root", "eve"];

fn place_of(name: &str) -> usize {
    PEOPLE.iter().position(|known| *known == name).unwrap()
}

const TELEGRAM_GROUP: i64 = -1_001_234;

async fn start_telegram() -> FakeTelegram {
    let server = FakeTelegram::start().await;
    // The chat exists from its first message.
    server.post_message(TELEGRAM_GROUP, telegram_user("eve"), "hello");
    server
}

fn telegram_user(name: &'static str) -> TelegramTestUser {
    TelegramTestUser { id: 7 + i64::try_from(place_of(name)).unwrap(), name }
}

#[async_trait]
impl ButtonServer for FakeTelegram {
    fn config(&self) -> ChannelConfig {
        let keys = json!({"kind": "telegram", "api_base": self.base_url()});
        channel_config(keys, &json!({}), Some(telegram::TOKEN))
    }

    fn person_id(&self, name: &str) -> String {
        (7 + place_of(name)).to_string()
    }

    fn write(&self, person: &'static str, text: &str) {
        self.post_message(TELEGRAM_GROUP, telegram_user(person), text);
    }

    fn press(&self, person: &'static str, message: &str, data: &str) {
        self.press_button(TELEGRAM_GROUP, telegram_user(person), message.parse().unwrap(), data);
    }

    async fn post_bot_message(&self, text: &str) -> String {
        let url = format!("{}/bot{}/sendMessage", self.base_url(), telegram::TOKEN);
        post(&url, None, &json!({"chat_id": TELEGRAM_GROUP, "text": text})).await;
        self.view().messages.last().unwrap().id.clone()
    }

    fn lose_next_response(&self) {
        self.inject_fault("sendMessage", FakeTelegramFault::LoseAnswer);
    }

    fn refuse_next_message(&self) {
        self.inject_fault("sendMessage", FakeTelegramFault::Refuse(400, "Bad Request: BUTTON_DATA_INVALID"));
    }

    fn view(&self) -> ChatView {
        self.with_state(telegram_view)
    }

    async fn wait_for(&self, what: &str, condition: &ViewCondition<'_>) -> ChatView {
        telegram_view(&(**self).wait_for(what, |state| condition(&telegram_view(state))).await)
    }

    fn client_errors(&self) -> Vec<String> {
        Vec::new()
    }
}

fn telegram_view(state: &telegram::FakeTelegramState) -> ChatView {
    let own = state.messages(TELEGRAM_GROUP).iter().filter(|message| message.from == telegram::BOT_ID);
    let messages =
        own.map(|shown| ShownButtonMessage::new(shown.id.to_string(), &shown.text, &shown.buttons)).collect();
    let answers = state.presses.iter().flat_map(|press| press.answers.iter().map(move |answer| (press.from, answer)));
    let refused = answers.filter(|(_, (_, must_be_closed))| *must_be_closed);
    let refusals = refused.map(|(from, (text, _))| (from.to_string(), text.clone())).collect();
    let unanswered = state.presses.iter().filter(|press| press.answers.is_empty()).count();
    ChatView { messages, refusals, unanswered }
}

struct DiscordServer {
    server: FakeDiscord,
    channel: String,
    people: Vec<String>,
}

async fn start_discord() -> DiscordServer {
    let server = FakeDiscord::start().await;
    server.update(|state| state.limits = None);
    let (channel, people) = (server.add_channel(), PEOPLE.map(|name| server.add_person(name)).to_vec());
    DiscordServer { server, channel, people }
}

#[async_trait]
impl ButtonServer for DiscordServer {
    fn config(&self) -> ChannelConfig {
        let keys = json!({"kind": "discord", "api_base": self.server.base_url()});
        channel_config(keys, &json!({}), Some(discord::TOKEN))
    }

    fn person_id(&self, name: &str) -> String {
        self.people[place_of(name)].clone()
    }

    fn write(&self, person: &'static str, text: &str) {
        self.server.post_message(&self.channel, &self.person_id(person), text);
    }

    fn press(&self, person: &'static str, message: &str, data: &str) {
        self.server.press_button(&self.channel, &self.person_id(person), message, data);
    }

    async fn post_bot_message(&self, text: &str) -> String {
        let url = format!("{}/channels/{}/messages", self.server.base_url(), self.channel);
        post(&url, Some(&format!("Bot {}", discord::TOKEN)), &json!({"content": text})).await;
        self.view().messages.last().unwrap().id.clone()
    }

    fn lose_next_response(&self) {
        self.server.inject_fault(DiscordRoute::Send, FakeDiscordFault::LoseAnswer);
    }

    fn refuse_next_message(&self) {
        let message = "Invalid Form Body".to_owned();
        self.server.inject_fault(DiscordRoute::Send, FakeDiscordFault::Status { status: 400, code: 50035, message });
    }

    fn view(&self) -> ChatView {
        self.server.with_state(|state| self.view_of(state))
    }

    async fn wait_for(&self, what: &str, condition: &ViewCondition<'_>) -> ChatView {
        self.view_of(&self.server.wait_for(what, |state| condition(&self.view_of(state))).await)
    }

    fn client_errors(&self) -> Vec<String> {
        self.server.state().client_errors
    }
}

impl DiscordServer {
    fn view_of(&self, state: &discord::FakeDiscordState) -> ChatView {
        let bot = self.server.bot_id();
        let shown = state.chat_data.channel(&self.channel).unwrap().messages.iter();
        let own = shown.filter(|message| message.author == bot);
        let messages =
            own.map(|shown| ShownButtonMessage::new(shown.id.clone(), &shown.text, &shown.buttons)).collect();
        let refusal = |press: &discord::FakeDiscordPress| match &press.response {
            Some(FakeInteractionResponse::Ephemeral(text)) => Some((press.user.clone(), text.clone())),
            Some(FakeInteractionResponse::Deferred) | None => None,
        };
        let refusals = state.presses.iter().filter_map(refusal).collect();
        let unanswered = state.presses.iter().filter(|press| press.response.is_none()).count();
        ChatView { messages, refusals, unanswered }
    }
}

struct SlackServer {
    server: FakeSlack,
    channel: String,
    people: Vec<String>,
}

async fn start_slack() -> SlackServer {
    let server = FakeSlack::start().await;
    let (channel, people) = (server.add_channel(), PEOPLE.map(|name| server.add_person(name)).to_vec());
    SlackServer { server, channel, people }
}

#[async_trait]
impl ButtonServer for SlackServer {
    fn config(&self) -> ChannelConfig {
        let keys = json!({"kind": "slack", "api_base": self.server.base_url()});
        let config = channel_config(keys, &json!({}), Some(slack::BOT_TOKEN));
        ChannelConfig { app_token: Some(slack::APP_TOKEN.into()), ..config }
    }

    fn person_id(&self, name: &str) -> String {
        self.people[place_of(name)].clone()
    }

    fn write(&self, person: &'static str, text: &str) {
        self.server.post_message(&self.channel, &self.person_id(person), text);
    }

    fn press(&self, person: &'static str, message: &str, data: &str) {
        self.server.press_button(&self.channel, &self.person_id(person), message, data);
    }

    async fn post_bot_message(&self, text: &str) -> String {
        self.server.post_message(&self.channel, slack::BOT, text)
    }

    fn lose_next_response(&self) {
        self.server.inject_fault("chat.postMessage", FakeSlackFault::LoseAnswer);
    }

    fn refuse_next_message(&self) {
        self.server.inject_fault("chat.postMessage", FakeSlackFault::Error("invalid_blocks"));
    }

    fn view(&self) -> ChatView {
        self.server.with_state(|state| self.view_of(state))
    }

    async fn wait_for(&self, what: &str, condition: &ViewCondition<'_>) -> ChatView {
        self.view_of(&self.server.wait_for(what, |state| condition(&self.view_of(state))).await)
    }

    fn client_errors(&self) -> Vec<String> {
        self.server.state().client_errors
    }
}

impl SlackServer {
    fn view_of(&self, state: &slack::FakeSlackState) -> ChatView {
        let own = state.chat_data.messages(&self.channel).iter().filter(|message| message.author == slack::BOT);
        let messages =
            own.map(|shown| ShownButtonMessage::new(shown.ts.clone(), &shown.text, &shown.buttons)).collect();
        let refusals = state.ephemeral.iter().map(|told| (told.user.clone(), told.text.clone())).collect();
        ChatView { messages, refusals, unanswered: state.unacknowledged() }
    }
}

async fn post(url: &str, authorization: Option<&str>, body: &Value) {
    let mut request = reqwest::Client::builder().no_proxy().build().unwrap().post(url).json(body);
    request = request.header("user-agent", "DiscordBot (https://example.org, 1)");
    if let Some(authorization) = authorization {
        request = request.header("authorization", authorization);
    }
    assert!(request.send().await.unwrap().status().is_success());
}
