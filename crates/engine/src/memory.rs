//! What is remembered beyond a conversation: notes of sessions, agents and senders, kept in the database, found again when a
//! model or a person asks, and unasked before a run (row D8). The rules are the kernel's. Nothing here fails a run, and a stop
//! ends every wait of one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_kernel::Moment;
use quell_kernel::memory::consolidation::Exchange;
use quell_kernel::memory::{self, CONVERSATION, Message, Recalled, Showing, may_be_shown};
use quell_kernel::registry::NewRun;
use quell_kernel::turn::TurnDraft;
use quell_protocol::ChannelMessage;
use quell_protocol::memory::SenderRow;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::channel::Errand;
use crate::scope::{Cancelled, Point, Scope};
pub use crate::store::{FoundNote, Note, NoteScope, Remembered};
use crate::store::{Store, StoreError};

/// `[memory]` of the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MemorySettings {
    /// Each run is shown the notes that its message is about: of its session and of its agent, or of who wrote it in a chat.
    pub auto_recall: bool,
    /// Messages become notes of their session, those of private chats in chat networks of their sender.
    pub auto_save: bool,
    /// When a message is answered, the model is asked once more, behind the answer, what of the exchange is worth remembering.
    pub consolidate: bool,
    /// From 0 to 1: how much of what a message is about a note must have, to be shown unasked.
    pub min_relevance_score: f64,
    /// Notes of each scope that are looked at for a message, and that `recall` answers when it is not told how many.
    pub recall_limit: usize,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self { auto_recall: false, auto_save: false, consolidate: false, min_relevance_score: 0.4, recall_limit: 5 }
    }
}

/// The memory of one engine. Clones are the same.
#[derive(Debug, Clone)]
pub struct Memory {
    store: Store,
    settings: MemorySettings,
    /// Places for consolidations, so that what nobody waits for never crowds out what somebody does.
    places: Arc<Semaphore>,
    /// Of whom something was forgotten, and when: what was said before that is remembered no more, whatever is under way.
    forgotten: Arc<Mutex<HashMap<NoteScope, Moment>>>,
}

/// Consolidations at the same time.
const CONSOLIDATIONS: usize = 4;
/// No run lives longer (row A5), so that nothing comes any more of what was said before.
const UNDER_WAY: Duration = Duration::from_secs(2 * 24 * 60 * 60);

impl Memory {
    /// The memory in a database.
    #[must_use]
    pub fn new(store: Store, settings: MemorySettings) -> Self {
        Self { store, settings, places: Arc::new(Semaphore::new(CONSOLIDATIONS)), forgotten: Arc::default() }
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &MemorySettings {
        &self.settings
    }

    /// Remembers a note, in place of the one that has its key.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: once asked for, the note is written whether or not the caller waits.
    pub async fn remember(&self, scope: NoteScope, note: Note) -> Result<Remembered, StoreError> {
        // waits: whoever calls it for a run races it.
        self.store.remember(scope, note).await
    }

    /// The same for what came of a message that was accepted at this moment: nothing is written if its notes were forgotten since,
    /// or whoever writes it is stopped before its turn has come among all that is written.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: once asked for, the note is written whether or not the caller waits.
    pub async fn remember_said(
        &self,
        (whose, note): (NoteScope, Note),
        said: Moment,
        writer: Option<&Scope>,
    ) -> Result<Remembered, StoreError> {
        let (forgotten, writer) = (Arc::clone(&self.forgotten), writer.cloned());
        let is_wanted = move |whose: &NoteScope| {
            let forgotten = forgotten.lock().unwrap_or_else(PoisonError::into_inner);
            let is_forgotten = forgotten.get(whose).is_some_and(|since| said <= *since);
            !is_forgotten && !writer.as_ref().is_some_and(Scope::is_cancelled)
        };
        // waits: whoever calls it for a run races it.
        self.store.remember_if((whose, note), is_wanted).await
    }

    /// What was said until now is remembered no more of this scope. To be called before its notes are forgotten.
    pub fn forget_what_was_said(&self, scope: NoteScope, now: Moment) {
        if !self.settings.auto_save && !self.settings.consolidate {
            return;
        }
        let mut forgotten = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner);
        if forgotten.len() == forgotten.capacity() {
            forgotten.retain(|_, since| now.since(*since) < UNDER_WAY);
        }
        forgotten.insert(scope, now);
    }

    /// The notes of each scope that a query is about, at most `limit` of each, the most relevant first.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn recall(
        &self,
        scopes: Vec<NoteScope>,
        query: &str,
        limit: usize,
    ) -> Result<Vec<Vec<FoundNote>>, StoreError> {
        // waits: whoever calls it for a run races it.
        self.store.search_notes(scopes, query, limit).await
    }

    /// The notes of a scope, the one remembered last first, and the cursor of the next page.
    ///
    /// # Errors
    /// The store's error; also when the cursor is not one.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn newest(
        &self,
        scope: NoteScope,
        limit: usize,
        cursor: Option<String>,
    ) -> Result<(Vec<Note>, Option<String>), StoreError> {
        // waits: whoever calls it for a run races it.
        self.store.note_page(scope, limit, cursor).await
    }

    /// Forgets a note. False when there is none with that key.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: once asked for, the note is gone whether or not the caller waits.
    pub async fn forget(&self, scope: NoteScope, key: String) -> Result<bool, StoreError> {
        // waits: no run forgets, only people do.
        self.store.forget_note(scope, key).await
    }

    /// The senders who have notes, the one with the newest note first, and the cursor of the next page.
    ///
    /// # Errors
    /// The store's error; also when the cursor is not one.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn senders(
        &self,
        limit: usize,
        cursor: Option<String>,
    ) -> Result<(Vec<SenderRow>, Option<String>), StoreError> {
        // waits: no run asks, only people do.
        self.store.sender_page(limit, cursor).await
    }

    /// Forgets all notes of a sender, and what of them is under way. Answers how many there were.
    ///
    /// # Errors
    /// The store's error.
    ///
    /// # Cancel safety
    /// Safe: once asked for, the notes are gone whether or not the caller waits.
    pub async fn forget_sender(&self, sender: String, now: Moment) -> Result<u64, StoreError> {
        self.forget_what_was_said(NoteScope::Sender(sender.clone()), now);
        // waits: no run forgets, only people do.
        self.store.forget_sender(sender).await
    }

    /// What a run is shown besides its message: of its session's and its agent's notes, or, of a message from a chat network, of
    /// its sender's, and in a group of the conversation's (row D8); none when there is nothing to show, the
    /// configuration does not want it, or the database has no answer. Such a message is about the words that are given with
    /// its errand: what its hooks left of it, and no names of files.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope was cancelled first.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn preamble(
        &self,
        scope: &Scope,
        run: &NewRun,
        heard: Option<(&Errand, &str)>,
    ) -> Result<Option<String>, Cancelled> {
        if !self.settings.auto_recall {
            return Ok(None);
        }
        let (errand, words) = heard.map_or((None, run.text.as_str()), |(errand, words)| (Some(errand), words));
        let scopes = match errand.map(Errand::message) {
            None => vec![NoteScope::Session(run.session.clone()), NoteScope::Agent(run.agent.clone())],
            Some(message) if is_group(message) => {
                vec![NoteScope::Sender(sender_of(message)), NoteScope::Session(run.session.clone())]
            }
            Some(message) => vec![NoteScope::Sender(sender_of(message))],
        };
        let of_each_scope = self.settings.recall_limit;
        // One more, because the message itself may be a note by now.
        let search = self.store.search_notes(scopes, words, of_each_scope.saturating_add(1));
        let found = match scope.race(Point::Recall, search).await? {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(run = %run.id, %error, "nothing could be recalled; the run goes on without");
                return Ok(None);
            }
        };
        let recalled: Vec<Vec<Recalled>> = found.into_iter().map(|of| of.into_iter().map(recalled).collect()).collect();
        let answered = key_of_message(run, errand);
        let showing =
            Showing { least_score: self.settings.min_relevance_score, of_each_scope, answered: answered.as_str() };
        Ok(memory::block(&memory::shown(&recalled, &showing)))
    }

    /// Remembers the message of a run, if the configuration wants that and it is a person's: of one from a chat network the text
    /// that is given with its errand. `at` is when it was accepted, also as RFC 3339.
    ///
    /// # Cancel safety
    /// Safe: once polled, the note is written whether or not the caller waits.
    pub async fn save_message(
        &self,
        run: &NewRun,
        heard: Option<(&Errand, &str)>,
        (said, at): (Moment, impl FnOnce() -> String),
    ) {
        // What one agent tells another is in the conversation of both.
        let (errand, text) = heard.map_or((None, run.text.as_str()), |(errand, text)| (Some(errand), text));
        if !self.settings.auto_save || run.parent.is_some() || !may_be_shown(text) {
            return;
        }
        let category = CONVERSATION.to_owned();
        let note = Note { key: key_of_message(run, errand), category, text: text.to_owned(), at: at() };
        let scope = whose_notes(run, errand);
        // waits: the finaliser of the run, beside its work and not in it; of a message from a chat network the run races it.
        if let Err(error) = self.remember_said((scope, note), said, None).await {
            tracing::error!(run = %run.id, %error, "a message could not be remembered");
        }
    }

    /// What a run and its answer are to be consolidated as; none when the configuration does not want that, it is no person's
    /// message, or there is too little to it. `words` are those of its message, where they are others than its text.
    #[must_use]
    pub fn exchange(&self, run: &NewRun, words: Option<&str>, draft: &TurnDraft) -> Option<Exchange> {
        if !self.settings.consolidate || run.parent.is_some() {
            return None;
        }
        Exchange::of(words.unwrap_or(&run.text), draft)
    }

    /// Waits for a place among the consolidations that are at work.
    ///
    /// # Cancel safety
    /// Safe: who leaves the line takes none.
    pub async fn place_to_consolidate(&self) -> Option<OwnedSemaphorePermit> {
        // waits: raced by who consolidates. Nobody closes the semaphore.
        Arc::clone(&self.places).acquire_owned().await.ok()
    }
}

fn recalled(found: FoundNote) -> Recalled {
    Recalled { key: found.note.key, text: found.note.text, score: found.score }
}

/// The key under which the message of a run is saved.
fn key_of_message(run: &NewRun, errand: Option<&Errand>) -> String {
    match errand.map(Errand::message) {
        Some(message) => {
            let thread = message.thread.as_deref();
            Message { channel: &message.channel, thread, sender: &message.sender, id: &message.id }.key()
        }
        None => {
            let (channel, sender) = (run.surface.word(), run.principal.as_str());
            Message { channel, thread: None, sender, id: run.id.as_str() }.key()
        }
    }
}

/// Whose notes are written about a message: its sender's, or its session's. What was said in a group is the group's: it is not
/// told to whoever the sender talks to elsewhere.
#[must_use]
pub fn whose_notes(run: &NewRun, errand: Option<&Errand>) -> NoteScope {
    let private = errand.map(Errand::message).filter(|message| !is_group(message));
    private.map_or_else(|| NoteScope::Session(run.session.clone()), |message| NoteScope::Sender(sender_of(message)))
}

/// Whoever wrote a message: names are a channel's own.
fn sender_of(message: &ChannelMessage) -> String {
    format!("{}:{}", message.channel, message.sender)
}

/// True when more than two can read it: the network says so, or its target does (row D8).
fn is_group(message: &ChannelMessage) -> bool {
    message.group || message.reply_target.contains("@g.us") || message.reply_target.contains("group:")
}
