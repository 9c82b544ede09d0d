//! Notes of sessions, agents and senders: save, search, recall for a run; permits for consolidation.
//!
//! Notes are in the database and outlive a conversation. A model or a person searches them, and a run may recall them
//! before its first request. The kernel has the rules of selection. Nothing here fails a run, and a stop ends every
//! wait of a run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quell_kernel::Moment;
use quell_kernel::memory::consolidation::ConsolidationInput;
use quell_kernel::memory::{self, CATEGORY_CONVERSATION, RecallLimits, RecalledNote, SavedMessage, is_promptable};
use quell_kernel::registry::NewRun;
use quell_kernel::turn::TurnDraft;
use quell_protocol::ChannelMessage;
use quell_scope::{Cancelled, Point, Scope};
use quell_store::{NoteStore, Store, StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::channel_origin::ChannelOrigin;
pub use quell_store::{FoundNote, Note, NoteScope, SaveNoteOutcome};

/// `[memory]` of the configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MemorySettings {
    /// Adds relevant notes to the prompt of each run: notes of its session and its agent, or of the sender of a chat
    /// message.
    pub auto_recall: bool,
    /// Saves messages as notes of their session. A message of a private chat becomes a note of its sender.
    pub auto_save: bool,
    /// After each answer, asks the model once more which facts of the exchange to save as notes.
    pub consolidate: bool,
    /// Minimum relevance, from 0 to 1, of a note that is added to a prompt.
    pub min_relevance_score: f64,
    /// Maximum number of notes per scope for a message, and the default limit of the tool `recall`.
    pub recall_limit: usize,
}

impl Default for MemorySettings {
    fn default() -> Self {
        Self { auto_recall: false, auto_save: false, consolidate: false, min_relevance_score: 0.4, recall_limit: 5 }
    }
}

/// The notes of one engine. Clones share them.
#[derive(Debug, Clone)]
pub struct NoteMemory {
    store: Store,
    settings: MemorySettings,
    /// Permits for consolidations, so that background work does not delay work that a caller waits for.
    consolidation_permits: Arc<Semaphore>,
    /// Scopes whose notes were deleted, and when. Messages from before that time are no longer saved, even if in
    /// progress.
    forgotten_at: Arc<Mutex<HashMap<NoteScope, Moment>>>,
}

const MAX_CONSOLIDATIONS: usize = 4;
/// Longer than the maximum life of a run (see `expiry` in the kernel), so that no message from before can still be
/// saved.
const FORGOTTEN_TTL: Duration = Duration::from_secs(2 * 24 * 60 * 60);

impl NoteMemory {
    pub fn new(store: Store, settings: MemorySettings) -> Self {
        Self {
            store,
            settings,
            consolidation_permits: Arc::new(Semaphore::new(MAX_CONSOLIDATIONS)),
            forgotten_at: Arc::default(),
        }
    }

    pub fn settings(&self) -> &MemorySettings {
        &self.settings
    }

    /// The stored notes. Write what a message said with [`Self::save_note_unless_forgotten`], and delete the notes of a
    /// sender with [`Self::forget_sender`].
    pub fn notes(&self) -> &dyn NoteStore {
        self.store.notes()
    }

    /// Saves a note from a message that was accepted at `said_at`. Skips the write if the notes of the scope were
    /// deleted since, or if `writer_scope` is cancelled while the write is queued.
    ///
    /// # Cancel safety
    /// Safe: once polled, the write is queued whether or not the caller waits.
    pub async fn save_note_unless_forgotten(
        &self,
        note_scope: NoteScope,
        note: Note,
        said_at: Moment,
        writer_scope: Option<&Scope>,
    ) -> Result<SaveNoteOutcome, StoreError> {
        let (forgotten, writer) = (Arc::clone(&self.forgotten_at), writer_scope.cloned());
        let may_write = move |note_scope: &NoteScope| {
            let forgotten = forgotten.lock().unwrap_or_else(PoisonError::into_inner);
            let is_forgotten = forgotten.get(note_scope).is_some_and(|since| said_at <= *since);
            !is_forgotten && !writer.as_ref().is_some_and(Scope::is_cancelled)
        };
        // waits: callers that work for a run race it.
        self.store.notes().save_if(note_scope, note, Box::new(may_write)).await
    }

    /// Stops messages up to `now` from being saved in this scope. Call it before its notes are deleted.
    pub fn forget_messages_until(&self, scope: NoteScope, now: Moment) {
        if !self.settings.auto_save && !self.settings.consolidate {
            return;
        }
        let mut forgotten = self.forgotten_at.lock().unwrap_or_else(PoisonError::into_inner);
        if forgotten.len() == forgotten.capacity() {
            forgotten.retain(|_, since| now.since(*since) < FORGOTTEN_TTL);
        }
        forgotten.insert(scope, now);
    }

    /// Deletes all notes of a sender, also those being written. Returns how many there were.
    ///
    /// # Cancel safety
    /// Safe: once polled, the notes are deleted whether or not the caller waits.
    pub async fn forget_sender(&self, sender: String, now: Moment) -> Result<u64, StoreError> {
        self.forget_messages_until(NoteScope::Sender(sender.clone()), now);
        // waits: only requests of people delete notes, never a run.
        self.store.notes().forget_sender(sender).await
    }

    /// The notes to add to the prompt of a run, as text. These are notes of its session and agent. For a chat message
    /// they are notes of its sender, and in a group also of its session.
    ///
    /// Returns `None` if no note is relevant, recall is not configured, or the search fails. `channel_message` contains
    /// the text to search for: the message after its hooks, without file names.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn recall_for_run(
        &self,
        scope: &Scope,
        run: &NewRun,
        channel_message: Option<(&ChannelOrigin, &str)>,
    ) -> Result<Option<String>, Cancelled> {
        if !self.settings.auto_recall {
            return Ok(None);
        }
        let (channel_origin, text) =
            channel_message.map_or((None, run.text.as_str()), |(origin, text)| (Some(origin), text));
        let scopes = match channel_origin.map(ChannelOrigin::message) {
            None => vec![NoteScope::Session(run.session.clone()), NoteScope::Agent(run.agent.clone())],
            Some(message) if is_group_message(message) => {
                vec![NoteScope::Sender(sender_key(message)), NoteScope::Session(run.session.clone())]
            }
            Some(message) => vec![NoteScope::Sender(sender_key(message))],
        };
        let max_per_scope = self.settings.recall_limit;
        // One more, because the message itself may already be saved as a note.
        let search = self.store.notes().search(scopes, text, max_per_scope.saturating_add(1));
        let found = match scope.race(Point::Recall, search).await? {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(run = %run.id, %error, "notes could not be recalled; the run continues without them");
                return Ok(None);
            }
        };
        let recalled: Vec<Vec<RecalledNote>> =
            found.into_iter().map(|notes| notes.into_iter().map(to_recalled_note).collect()).collect();
        let answered_key = message_key(run, channel_origin);
        let recall_limits = RecallLimits {
            min_score: self.settings.min_relevance_score,
            max_per_scope,
            answered_key: answered_key.as_str(),
        };
        Ok(memory::format_notes(&memory::select_notes(&recalled, &recall_limits)))
    }

    /// Saves the message of a run as a note, if `auto_save` is set and a person wrote it. For a chat message,
    /// `channel_message` contains the text to save. `at` is the time of acceptance in RFC 3339 format.
    ///
    /// # Cancel safety
    /// Safe: once polled, the note is written whether or not the caller waits.
    pub async fn save_message(
        &self,
        run: &NewRun,
        channel_message: Option<(&ChannelOrigin, &str)>,
        said_at: Moment,
        at: impl FnOnce() -> String,
    ) {
        // Skip messages between agents: they are in the history of both.
        let (channel_origin, text) =
            channel_message.map_or((None, run.text.as_str()), |(origin, text)| (Some(origin), text));
        if !self.settings.auto_save || run.parent.is_some() || !is_promptable(text) {
            return;
        }
        let category = CATEGORY_CONVERSATION.to_owned();
        let note = Note { key: message_key(run, channel_origin), category, text: text.to_owned(), at: at() };
        let scope = note_scope_of_message(run, channel_origin);
        // waits: the task of the run waits, beside the run's work; for a chat message the run races it.
        if let Err(error) = self.save_note_unless_forgotten(scope, note, said_at, None).await {
            tracing::error!(run = %run.id, %error, "a message could not be saved as a note");
        }
    }

    /// The exchange of a run to consolidate. Returns `None` if consolidation is not configured, the message is not from
    /// a person, or the exchange is too short. `text` replaces the text of the message, if given.
    pub fn consolidation_input(
        &self,
        run: &NewRun,
        text: Option<&str>,
        draft: &TurnDraft,
    ) -> Option<ConsolidationInput> {
        if !self.settings.consolidate || run.parent.is_some() {
            return None;
        }
        ConsolidationInput::from_turn(text.unwrap_or(&run.text), draft)
    }

    /// Waits for a permit to consolidate.
    ///
    /// # Cancel safety
    /// Safe: if dropped, it takes no permit.
    pub async fn acquire_consolidation_permit(&self) -> Option<OwnedSemaphorePermit> {
        // waits: the consolidation task races it. The semaphore is never closed.
        Arc::clone(&self.consolidation_permits).acquire_owned().await.ok()
    }
}

fn to_recalled_note(found_note: FoundNote) -> RecalledNote {
    RecalledNote { key: found_note.note.key, text: found_note.note.text, score: found_note.score }
}

/// The key under which the message of a run is saved.
fn message_key(run: &NewRun, channel_origin: Option<&ChannelOrigin>) -> String {
    match channel_origin.map(ChannelOrigin::message) {
        Some(message) => {
            let thread = message.thread.as_deref();
            SavedMessage { channel: &message.channel, thread, sender: &message.sender, id: &message.id }.key()
        }
        None => {
            let (channel, sender) = (run.surface.as_str(), run.principal.as_str());
            SavedMessage { channel, thread: None, sender, id: run.id.as_str() }.key()
        }
    }
}

/// The scope for notes about a message: its sender in a private chat, otherwise its session. Messages in a group belong
/// to the group, so that they are not revealed in other conversations of the sender.
pub fn note_scope_of_message(run: &NewRun, channel_origin: Option<&ChannelOrigin>) -> NoteScope {
    let private = channel_origin.map(ChannelOrigin::message).filter(|message| !is_group_message(message));
    private.map_or_else(|| NoteScope::Session(run.session.clone()), |message| NoteScope::Sender(sender_key(message)))
}

/// Channel and sender, because sender names are unique only within a channel.
fn sender_key(message: &ChannelMessage) -> String {
    format!("{}:{}", message.channel, message.sender)
}

/// True when more than two people can read the message, according to the network or to the reply target.
fn is_group_message(message: &ChannelMessage) -> bool {
    message.group || message.reply_target.contains("@g.us") || message.reply_target.contains("group:")
}
