//! What Telegram knows: chats, their messages, updates nobody has confirmed, files.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};

use super::Fault;
use super::html::Entity;

/// How long "typing" is shown (Bot API: sendChatAction).
const TYPING: Duration = Duration::from_secs(5);

/// Everything that a test can look at.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// By their ids.
    pub chats: BTreeMap<i64, Chat>,
    /// In the order in which they came.
    pub calls: Vec<Call>,
    /// Updates up to this one were confirmed and are gone for ever.
    pub confirmed: i64,
    /// Calls of `getUpdates` that wait now.
    pub polls: usize,
    /// Connections that are open now.
    pub connections: usize,
    /// What came that is no HTTP request as it should be.
    pub oddities: Vec<String>,
    pub(super) updates: VecDeque<(i64, Value)>,
    /// The kinds of updates that are wanted; all when empty.
    pub(super) wanted: Vec<String>,
    /// Counts calls of `getUpdates`: only the newest may wait.
    pub(super) newest_poll: u64,
    /// Paths and contents of files that people sent, by their ids.
    pub(super) files: BTreeMap<String, (String, Bytes)>,
    pub(super) faults: HashMap<String, VecDeque<Fault>>,
    pub(super) edit_every: Option<Duration>,
    pub(super) webhook: String,
    last_update: i64,
    /// Messages of private chats and small groups are numbered together, those of each supergroup by themselves.
    last_message: i64,
}

/// One call of the API.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its method.
    pub method: String,
    /// Its parameters; files are left out.
    pub body: Value,
    /// When it had come.
    pub at: Instant,
    /// The status it was answered with, once it was. The answer may still have been lost.
    pub answered: Option<u16>,
}

/// A chat.
#[derive(Debug, Clone)]
pub struct Chat {
    /// Its kind.
    pub kind: ChatKind,
    /// True when it has topics.
    pub forum: bool,
    /// Topics by their ids.
    pub topics: Vec<i64>,
    /// What it shows.
    pub messages: Vec<Shown>,
    /// When "typing" was asked for.
    pub typing: Vec<Instant>,
    /// The person has blocked the bot, or the bot was removed.
    pub closed_to_bot: bool,
    /// Where it went when it became a supergroup.
    pub migrated_to: Option<i64>,
    pub(super) last_edit: Option<Instant>,
    last_message: i64,
}

/// Kinds of chats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatKind {
    /// Of one person with the bot.
    Private,
    /// A small group.
    Group,
    /// A supergroup.
    Supergroup,
}

/// A message as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Its number.
    pub id: i64,
    /// Who wrote it.
    pub from: i64,
    /// Its text, without markup.
    pub text: String,
    /// Its markup.
    pub entities: Vec<Entity>,
    /// The topic in which it stands.
    pub thread: Option<i64>,
    /// How often it was changed.
    pub edits: usize,
    /// The bot's signs on it.
    pub reactions: Vec<String>,
    /// A file that came with it.
    pub file: Option<ChatFile>,
    /// When it came.
    pub at: Instant,
}

/// A file, from the bot or from a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatFile {
    /// As the API names it: `photo`, `document`, `voice`, `audio`, `video`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its media type.
    pub media_type: String,
    /// What it holds.
    pub bytes: Bytes,
}

impl State {
    /// What a chat shows.
    #[must_use]
    pub fn messages(&self, chat: i64) -> &[Shown] {
        self.chats.get(&chat).map_or(&[], |chat| &chat.messages)
    }

    /// The texts that the bot wrote in a chat, as they are now.
    #[must_use]
    pub fn bot_texts(&self, chat: i64) -> Vec<&str> {
        let own = self.messages(chat).iter().filter(|message| message.from == super::BOT_ID);
        own.map(|message| message.text.as_str()).collect()
    }

    /// The calls of a method.
    pub fn calls_of(&self, method: &str) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(move |call| call.method == method)
    }

    /// Chats are there once somebody has written in them; their ids tell their kinds.
    pub(super) fn chat(&mut self, id: i64) -> &mut Chat {
        self.chats.entry(id).or_insert_with(|| Chat {
            kind: ChatKind::of(id),
            forum: false,
            topics: Vec::new(),
            messages: Vec::new(),
            typing: Vec::new(),
            closed_to_bot: false,
            migrated_to: None,
            last_edit: None,
            last_message: 0,
        })
    }

    /// The number of the next message of a chat.
    pub(super) fn next_message(&mut self, chat: i64) -> i64 {
        let shared = self.chat(chat).kind != ChatKind::Supergroup;
        let counter = if shared { &mut self.last_message } else { &mut self.chat(chat).last_message };
        *counter += 1;
        *counter
    }

    /// Queues an update, unless nobody wants its kind.
    pub(super) fn update(&mut self, kind: &str, content: Value) {
        if !self.wanted.is_empty() && !self.wanted.iter().any(|wanted| wanted == kind) {
            return;
        }
        self.last_update += 1;
        let id = self.last_update;
        let mut update = json!({ "update_id": id });
        update[kind] = content;
        self.updates.push_back((id, update));
    }

    /// Forgets updates below `offset`; a negative one counts from the end.
    pub(super) fn confirm(&mut self, offset: i64) {
        let keep = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
        while let Some((id, _)) = self.updates.front() {
            let forget = if offset < 0 { self.updates.len() > keep } else { *id < offset };
            if !forget {
                break;
            }
            self.confirmed = *id;
            self.updates.pop_front();
        }
    }
}

impl Chat {
    /// Whether it shows that the bot is typing: until a message of the bot or some seconds later.
    #[must_use]
    pub fn is_typing(&self) -> bool {
        let Some(last) = self.typing.last() else { return false };
        let written = self.messages.iter().any(|message| message.from == super::BOT_ID && message.at >= *last);
        last.elapsed() < TYPING && !written
    }
}

impl ChatKind {
    /// Bot API: people have positive ids, groups negative ones, those of supergroups begin with -100.
    fn of(chat: i64) -> Self {
        match chat {
            0.. => Self::Private,
            _ if chat.to_string().starts_with("-100") => Self::Supergroup,
            _ => Self::Group,
        }
    }

    /// As the API names it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Group => "group",
            Self::Supergroup => "supergroup",
        }
    }
}
