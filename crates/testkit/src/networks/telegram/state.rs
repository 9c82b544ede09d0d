//! State of the server: chats, their messages, unconfirmed updates, files.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};

use super::super::FakeButton;
use super::FakeTelegramFault;
use super::html::ParsedEntity;

/// How long "typing" is shown (Bot API: sendChatAction).
const TYPING_DURATION: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Default)]
pub struct FakeTelegramState {
    /// By chat id.
    pub chats: BTreeMap<i64, FakeTelegramChat>,
    /// In order of arrival.
    pub calls: Vec<TelegramCall>,
    /// Updates up to this id were confirmed and are deleted.
    pub confirmed_update: i64,
    /// Number of `getUpdates` calls that wait now.
    pub waiting_polls: usize,
    pub connections: usize,
    pub(super) updates: VecDeque<(i64, Value)>,
    /// Requested kinds of updates; all when empty.
    pub(super) allowed_updates: Vec<String>,
    /// Counts calls of `getUpdates`: only the newest may wait.
    pub(super) newest_poll: u64,
    /// Path and content of files that people sent, by file id.
    pub(super) files: BTreeMap<String, (String, Bytes)>,
    pub(super) faults: HashMap<String, VecDeque<FakeTelegramFault>>,
    /// Presses of buttons, in order.
    pub presses: Vec<FakeTelegramPress>,
    /// Edits in one chat that follow each other faster are answered 429. Telegram does not publish its limit.
    pub min_edit_interval: Option<Duration>,
    /// URL of a webhook that another program has set: with one, `getUpdates` is refused.
    pub webhook: String,
    last_update: i64,
    /// Private chats and small groups share one numbering of messages; each supergroup has its own.
    last_message: i64,
}

#[derive(Debug, Clone)]
pub struct TelegramCall {
    pub method: String,
    /// Its parameters without files.
    pub body: Value,
    pub(super) file: Option<FakeTelegramFile>,
    pub at: Instant,
}

#[derive(Debug, Clone, Default)]
pub struct FakeTelegramChat {
    pub kind: FakeTelegramChatKind,
    /// True when it has topics.
    pub forum: bool,
    /// Topic ids.
    pub topics: Vec<i64>,
    pub messages: Vec<FakeTelegramMessage>,
    /// Times of `typing` actions.
    pub typing: Vec<Instant>,
    /// The user has blocked the bot, or the bot was removed.
    pub bot_blocked: bool,
    /// Its new id after it became a supergroup.
    pub migrated_to: Option<i64>,
    pub(super) last_edit: Option<Instant>,
    last_message: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FakeTelegramChatKind {
    /// One user and the bot.
    #[default]
    Private,
    Group,
    Supergroup,
}

/// A message as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeTelegramMessage {
    pub id: i64,
    /// User id of its sender.
    pub from: i64,
    /// Its text without formatting.
    pub text: String,
    pub entities: Vec<ParsedEntity>,
    /// Topic id.
    pub thread: Option<i64>,
    pub edits: usize,
    pub reactions: Vec<String>,
    pub file: Option<FakeTelegramFile>,
    pub buttons: Vec<FakeButton>,
    pub at: Instant,
}

/// The press of a button.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeTelegramPress {
    /// User id.
    pub from: i64,
    pub query_id: String,
    /// The texts that the person was shown, each with whether it had to be closed.
    pub answers: Vec<(String, bool)>,
}

/// A file, from the bot or from a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeTelegramFile {
    /// As the API names it: `photo`, `document`, `voice`, `audio`, `video`.
    pub kind: String,
    pub name: String,
    pub media_type: String,
    pub bytes: Bytes,
}

impl FakeTelegramState {
    pub fn messages(&self, chat: i64) -> &[FakeTelegramMessage] {
        self.chats.get(&chat).map_or(&[], |chat| &chat.messages)
    }

    /// The current texts of the bot's messages in a chat.
    pub fn bot_texts(&self, chat: i64) -> Vec<&str> {
        let own = self.messages(chat).iter().filter(|message| message.from == super::BOT_ID);
        own.map(|message| message.text.as_str()).collect()
    }

    pub fn calls_of(&self, method: &str) -> impl Iterator<Item = &TelegramCall> {
        self.calls.iter().filter(move |call| call.method == method)
    }

    /// Creates a chat on first use; its id decides its kind.
    pub(super) fn chat_mut(&mut self, id: i64) -> &mut FakeTelegramChat {
        let kind = FakeTelegramChatKind::of_chat_id(id);
        self.chats.entry(id).or_insert_with(|| FakeTelegramChat { kind, ..FakeTelegramChat::default() })
    }

    /// The next message id of a chat.
    pub(super) fn next_message_id(&mut self, chat: i64) -> i64 {
        let shared = self.chat_mut(chat).kind != FakeTelegramChatKind::Supergroup;
        let counter = if shared { &mut self.last_message } else { &mut self.chat_mut(chat).last_message };
        *counter += 1;
        *counter
    }

    /// Queues an update, unless its kind is not requested.
    pub(super) fn queue_update(&mut self, kind: &str, content: Value) {
        if !self.allowed_updates.is_empty() && !self.allowed_updates.iter().any(|wanted| wanted == kind) {
            return;
        }
        self.last_update += 1;
        let id = self.last_update;
        let mut update = json!({ "update_id": id });
        update[kind] = content;
        self.updates.push_back((id, update));
    }

    /// Deletes updates below `offset`; a negative offset counts from the end.
    pub(super) fn confirm_updates(&mut self, offset: i64) {
        let keep = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
        while let Some((id, _)) = self.updates.front() {
            let forget = if offset < 0 { self.updates.len() > keep } else { *id < offset };
            if !forget {
                break;
            }
            self.confirmed_update = *id;
            self.updates.pop_front();
        }
    }
}

impl FakeTelegramChat {
    /// Whether the chat shows that the bot is typing: until the bot's next message, or for some seconds.
    #[must_use]
    pub fn is_typing(&self) -> bool {
        let Some(last) = self.typing.last() else { return false };
        let written = self.messages.iter().any(|message| message.from == super::BOT_ID && message.at >= *last);
        last.elapsed() < TYPING_DURATION && !written
    }
}

impl FakeTelegramChatKind {
    /// Bot API: ids of people are positive, those of groups negative, those of supergroups begin with -100.
    fn of_chat_id(chat: i64) -> Self {
        match chat {
            0.. => Self::Private,
            _ if chat.to_string().starts_with("-100") => Self::Supergroup,
            _ => Self::Group,
        }
    }

    /// As the API names it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Group => "group",
            Self::Supergroup => "supergroup",
        }
    }
}
