//! Responses of the Responses API that clients read again, and conversations that they continue.

use quell_protocol::{Principal, RunId};

use crate::StoreFuture;

/// How long a response is kept, in seconds: as long as OpenAI keeps it. A conversation of this age is deleted with its
/// last response.
pub const RESPONSE_RETENTION_SECONDS: i64 = 30 * 24 * 60 * 60;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResponse {
    pub id: String,
    pub owner: Principal,
    pub run: RunId,
    /// The response that it continues.
    pub previous: Option<String>,
    /// The conversation that gets its items.
    pub conversation: Option<String>,
    pub background: bool,
    pub state: StoredResponseState,
    /// Seconds since 1970.
    pub created_at: i64,
    /// Seconds since 1970. From then on it is not found.
    pub expires_at: i64,
    /// The object as clients get it, as JSON.
    pub response: String,
    /// The items of the request, as a JSON array.
    pub input: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredResponseState {
    /// Its run is at work.
    Open,
    /// Its end was not stored, and the daemon that had its run is gone. Only a store says so.
    Abandoned,
    /// Never changes any more.
    Ended,
}

impl StoredResponseState {
    pub(crate) fn from_columns(has_ended: bool, is_of_earlier_daemon: bool) -> Self {
        match (has_ended, is_of_earlier_daemon) {
            (true, _) => Self::Ended,
            (false, true) => Self::Abandoned,
            (false, false) => Self::Open,
        }
    }
}

/// The end of a response that is stored as open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedResponse {
    pub id: String,
    /// The final object, as JSON.
    pub response: String,
    /// The events of its stream, as a JSON array.
    pub events: Option<String>,
    /// Appended to its conversation.
    pub conversation_items: Vec<ConversationItem>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredConversation {
    pub id: String,
    pub owner: Principal,
    /// Seconds since 1970.
    pub created_at: i64,
    /// JSON.
    pub metadata: String,
}

/// An item of a conversation, in the order in which it was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversationItem {
    pub id: String,
    /// JSON.
    pub item: String,
}

/// What has expired and was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeletedResponses {
    pub responses: u64,
    pub conversations: u64,
}

pub trait ResponseStore: Send + Sync {
    /// Stores a new response. Appends the items to its conversation, unless that was deleted. Fails if its id is in use.
    fn create(&self, response: StoredResponse, conversation_items: Vec<ConversationItem>) -> StoreFuture<'_, ()>;

    /// The response of this id, unless it has expired at `now`.
    fn find(&self, id: String, now: i64) -> StoreFuture<'_, Option<StoredResponse>>;

    /// The events of a response that has ended, as a JSON array.
    fn events(&self, id: String) -> StoreFuture<'_, Option<String>>;

    /// Stores the end of a response. Does nothing if it has ended before, or was deleted: false then.
    fn end(&self, ended: EndedResponse) -> StoreFuture<'_, bool>;

    /// False if there is none of this id.
    fn delete(&self, id: String) -> StoreFuture<'_, bool>;

    /// Deletes what has expired at `now`: responses, and conversations that are older than
    /// [`RESPONSE_RETENTION_SECONDS`] and have no response any more.
    fn delete_expired(&self, now: i64) -> StoreFuture<'_, DeletedResponses>;

    /// Stores a new conversation. Fails if its id is in use.
    fn create_conversation(
        &self,
        conversation: StoredConversation,
        items: Vec<ConversationItem>,
    ) -> StoreFuture<'_, ()>;

    fn find_conversation(&self, id: String) -> StoreFuture<'_, Option<StoredConversation>>;

    /// The items of a conversation, the oldest first.
    fn conversation_items(&self, id: String) -> StoreFuture<'_, Vec<ConversationItem>>;

    /// Deletes a conversation with its items. False if there is none of this id.
    fn delete_conversation(&self, id: String) -> StoreFuture<'_, bool>;
}
