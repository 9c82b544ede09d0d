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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeginResponseOutcome {
    Begun,
    /// Another response of the conversation is open.
    ConversationLocked,
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

/// Which items of a conversation are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemQuery {
    /// The id of an item: the page begins behind it.
    pub after: Option<String>,
    pub order: ItemOrder,
    pub limit: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemOrder {
    OldestFirst,
    NewestFirst,
}

/// Whose responses are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseOwner {
    Anybody,
    One(Principal),
}

impl ResponseOwner {
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Anybody => None,
            Self::One(owner) => Some(owner.as_str()),
        }
    }
}

/// What has expired and was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeletedResponses {
    pub responses: u64,
    pub conversations: u64,
}

pub trait ResponseStore: Send + Sync {
    /// Stores a new response that has ended. Appends the items to its conversation, unless that was deleted. Fails if its
    /// id is in use.
    fn create(&self, response: StoredResponse, conversation_items: Vec<ConversationItem>) -> StoreFuture<'_, ()>;

    /// Stores a new response that begins, unless its conversation has an open one. Fails if its id is in use.
    fn begin(&self, response: StoredResponse) -> StoreFuture<'_, BeginResponseOutcome>;

    /// The abandoned responses of a conversation, the oldest first.
    fn find_abandoned(&self, conversation: String) -> StoreFuture<'_, Vec<StoredResponse>>;

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

    /// Deletes responses that were made before `time`, in seconds since 1970, and conversations of that age that have no
    /// response any more. Open responses stay. Returns the number of both.
    fn delete_older(&self, time: i64) -> StoreFuture<'_, u64>;

    /// Deletes at most `count` responses that are not open, the oldest first. Returns how many.
    fn delete_oldest(&self, of: ResponseOwner, count: u32) -> StoreFuture<'_, u64>;

    /// Deletes at most `count` conversations without an open response, the oldest first. Returns how many.
    fn delete_oldest_conversations(&self, count: u32) -> StoreFuture<'_, u64>;

    /// Bytes that the responses and conversations of an owner take.
    fn used_bytes(&self, owner: Principal) -> StoreFuture<'_, u64>;

    /// Stores a new conversation. Fails if its id is in use.
    fn create_conversation(
        &self,
        conversation: StoredConversation,
        items: Vec<ConversationItem>,
    ) -> StoreFuture<'_, ()>;

    fn find_conversation(&self, id: String) -> StoreFuture<'_, Option<StoredConversation>>;

    /// Bytes of the items of a conversation.
    fn conversation_bytes(&self, id: String) -> StoreFuture<'_, u64>;

    /// The items of a conversation, the oldest first.
    fn conversation_items(&self, id: String) -> StoreFuture<'_, Vec<ConversationItem>>;

    /// Some items of a conversation; `None` if it has no item that the query begins after.
    fn item_page(&self, id: String, query: ItemQuery) -> StoreFuture<'_, Option<Vec<ConversationItem>>>;

    /// The first item of a conversation with this id.
    fn find_item(&self, conversation: String, id: String) -> StoreFuture<'_, Option<ConversationItem>>;

    /// Appends items to a conversation, unless that was deleted.
    fn add_items(&self, conversation: String, items: Vec<ConversationItem>) -> StoreFuture<'_, ()>;

    /// Deletes the items of a conversation with this id. False if there is none.
    fn delete_item(&self, conversation: String, id: String) -> StoreFuture<'_, bool>;

    /// Replaces the metadata of a conversation. False if there is none of this id.
    fn set_metadata(&self, conversation: String, metadata: String) -> StoreFuture<'_, bool>;

    /// Deletes a conversation with its items. False if there is none of this id.
    fn delete_conversation(&self, id: String) -> StoreFuture<'_, bool>;
}
