//! Responses of the Responses API, and conversations.

use quell_protocol::{Principal, RunId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::SqliteStore;
use super::columns::{parse_id_column, to_unsigned};
use crate::{
    BeginResponseOutcome, ConversationItem, DeletedResponses, EndedResponse, ItemOrder, ItemQuery,
    RESPONSE_RETENTION_SECONDS, ResponseOwner, ResponseStore, StoreFuture, StoredConversation, StoredResponse,
    StoredResponseState,
};

macro_rules! response_columns {
    () => {
        "id, owner, run, previous, conversation, background, ended, boot <> (SELECT number FROM boot), created_at,
         expires_at, response, input"
    };
}

impl ResponseStore for SqliteStore {
    fn create(&self, response: StoredResponse, conversation_items: Vec<ConversationItem>) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            insert_response(db, &response)?;
            append_items(db, response.conversation.as_deref(), &conversation_items)
        })
    }

    fn begin(&self, response: StoredResponse) -> StoreFuture<'_, BeginResponseOutcome> {
        self.write(move |db| {
            let sql = "SELECT 1 FROM responses
                       WHERE conversation = ?1 AND ended = 0 AND boot = (SELECT number FROM boot)";
            if db.prepare_cached(sql)?.exists([&response.conversation])? {
                return Ok(BeginResponseOutcome::ConversationLocked);
            }
            insert_response(db, &response)?;
            Ok(BeginResponseOutcome::Begun)
        })
    }

    fn find_abandoned(&self, conversation: String) -> StoreFuture<'_, Vec<StoredResponse>> {
        self.read(move |db| {
            let sql = concat!(
                "SELECT ",
                response_columns!(),
                " FROM responses WHERE conversation = ?1 AND ended = 0 AND boot <> (SELECT number FROM boot)
                 ORDER BY id"
            );
            db.prepare_cached(sql)?.query_map([&conversation], response_from_row)?.collect()
        })
    }

    fn find(&self, id: String, now: i64) -> StoreFuture<'_, Option<StoredResponse>> {
        self.read(move |db| {
            let sql = concat!("SELECT ", response_columns!(), " FROM responses WHERE id = ?1 AND expires_at > ?2");
            db.prepare_cached(sql)?.query_row(params![id, now], response_from_row).optional()
        })
    }

    fn events(&self, id: String) -> StoreFuture<'_, Option<String>> {
        self.read(move |db| {
            let sql = "SELECT events FROM responses WHERE id = ?1";
            Ok(db.prepare_cached(sql)?.query_row([&id], |row| row.get(0)).optional()?.flatten())
        })
    }

    fn end(&self, ended: EndedResponse) -> StoreFuture<'_, bool> {
        self.write(move |db| {
            let EndedResponse { id, response, events, conversation_items } = &ended;
            let sql = "UPDATE responses SET ended = 1, response = ?2, events = ?3 WHERE id = ?1 AND ended = 0
                       RETURNING conversation";
            let conversation: Option<Option<String>> =
                db.prepare_cached(sql)?.query_row(params![id, response, events], |row| row.get(0)).optional()?;
            let Some(conversation) = conversation else { return Ok(false) };
            append_items(db, conversation.as_deref(), conversation_items)?;
            Ok(true)
        })
    }

    fn delete(&self, id: String) -> StoreFuture<'_, bool> {
        self.write(move |db| Ok(db.prepare_cached("DELETE FROM responses WHERE id = ?1")?.execute([&id])? > 0))
    }

    fn delete_expired(&self, now: i64) -> StoreFuture<'_, DeletedResponses> {
        self.write(move |db| {
            let responses = db.prepare_cached("DELETE FROM responses WHERE expires_at <= ?1")?.execute([now])?;
            let sql = "DELETE FROM conversations WHERE created_at <= ?1
                       AND id NOT IN (SELECT conversation FROM responses WHERE conversation IS NOT NULL)";
            let oldest = now.saturating_sub(RESPONSE_RETENTION_SECONDS);
            let conversations = db.prepare_cached(sql)?.execute([oldest])?;
            Ok(DeletedResponses { responses: responses as u64, conversations: conversations as u64 })
        })
    }

    fn delete_older(&self, time: i64) -> StoreFuture<'_, u64> {
        self.write(move |db| {
            let responses = "DELETE FROM responses WHERE created_at < ?1 AND ended = 1";
            let conversations = "DELETE FROM conversations WHERE created_at < ?1
                                 AND id NOT IN (SELECT conversation FROM responses WHERE conversation IS NOT NULL)";
            let deleted = db.prepare_cached(responses)?.execute([time])?;
            Ok((deleted + db.prepare_cached(conversations)?.execute([time])?) as u64)
        })
    }

    fn delete_oldest(&self, of: ResponseOwner, count: u32) -> StoreFuture<'_, u64> {
        self.write(move |db| {
            let of_anybody = "DELETE FROM responses WHERE id IN
                (SELECT id FROM responses WHERE ended = 1 AND ?1 IS NULL ORDER BY expires_at LIMIT ?2)";
            let of_one = "DELETE FROM responses WHERE id IN
                (SELECT id FROM responses WHERE ended = 1 AND owner = ?1 ORDER BY expires_at LIMIT ?2)";
            let sql = if of.name().is_none() { of_anybody } else { of_one };
            Ok(db.prepare_cached(sql)?.execute(params![of.name(), count])? as u64)
        })
    }

    fn delete_oldest_conversations(&self, count: u32) -> StoreFuture<'_, u64> {
        self.write(move |db| {
            let sql = "DELETE FROM conversations WHERE id IN
                (SELECT id FROM conversations WHERE id NOT IN
                    (SELECT conversation FROM responses WHERE ended = 0 AND conversation IS NOT NULL)
                 ORDER BY created_at LIMIT ?1)";
            Ok(db.prepare_cached(sql)?.execute([count])? as u64)
        })
    }

    fn used_bytes(&self, owner: Principal) -> StoreFuture<'_, u64> {
        self.read(move |db| {
            let sql = "SELECT (SELECT ifnull(sum(bytes), 0) FROM responses WHERE owner = ?1)
                            + (SELECT ifnull(sum(bytes), 0) FROM conversations WHERE owner = ?1)
                            + (SELECT ifnull(sum(items.bytes), 0) FROM conversations
                               JOIN conversation_items AS items ON items.conversation = conversations.id
                               WHERE owner = ?1)";
            db.prepare_cached(sql)?.query_row([owner.as_str()], |row| row.get(0)).map(to_unsigned)
        })
    }

    fn create_conversation(
        &self,
        conversation: StoredConversation,
        items: Vec<ConversationItem>,
    ) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let StoredConversation { id, owner, created_at, metadata } = &conversation;
            let sql = "INSERT INTO conversations (id, owner, created_at, metadata) VALUES (?1, ?2, ?3, ?4)";
            db.prepare_cached(sql)?.execute(params![id, owner.as_str(), created_at, metadata])?;
            append_items(db, Some(id), &items)
        })
    }

    fn find_conversation(&self, id: String) -> StoreFuture<'_, Option<StoredConversation>> {
        self.read(move |db| {
            let sql = "SELECT id, owner, created_at, metadata FROM conversations WHERE id = ?1";
            let row = |row: &Row<'_>| {
                Ok(StoredConversation {
                    id: row.get(0)?,
                    owner: parse_id_column(row, 1, Principal::parse)?,
                    created_at: row.get(2)?,
                    metadata: row.get(3)?,
                })
            };
            db.prepare_cached(sql)?.query_row([&id], row).optional()
        })
    }

    fn conversation_bytes(&self, id: String) -> StoreFuture<'_, u64> {
        self.read(move |db| {
            let sql = "SELECT ifnull(sum(bytes), 0) FROM conversation_items WHERE conversation = ?1";
            db.prepare_cached(sql)?.query_row([&id], |row| row.get(0)).map(to_unsigned)
        })
    }

    fn conversation_items(&self, id: String) -> StoreFuture<'_, Vec<ConversationItem>> {
        self.read(move |db| {
            let sql = "SELECT id, item FROM conversation_items WHERE conversation = ?1 ORDER BY seq";
            db.prepare_cached(sql)?.query_map([&id], item_from_row)?.collect()
        })
    }

    fn item_page(&self, id: String, query: ItemQuery) -> StoreFuture<'_, Option<Vec<ConversationItem>>> {
        self.read(move |db| {
            // Clients may have given the same id to two items: reading on leads to the end all the same.
            let (at, rest) = match query.order {
                ItemOrder::OldestFirst => ("max(seq)", "seq > ?2 ORDER BY seq"),
                ItemOrder::NewestFirst => ("min(seq)", "seq < ?2 ORDER BY seq DESC"),
            };
            let after: Option<i64> = match (&query.after, query.order) {
                (Some(after), _) => {
                    let sql = format!("SELECT {at} FROM conversation_items WHERE conversation = ?1 AND id = ?2");
                    db.prepare_cached(&sql)?.query_row([&id, after], |row| row.get(0))?
                }
                (None, ItemOrder::OldestFirst) => Some(i64::MIN),
                (None, ItemOrder::NewestFirst) => Some(i64::MAX),
            };
            let Some(after) = after else { return Ok(None) };
            let sql = format!("SELECT id, item FROM conversation_items WHERE conversation = ?1 AND {rest} LIMIT ?3");
            let mut statement = db.prepare_cached(&sql)?;
            let items = statement.query_map(params![id, after, query.limit], item_from_row)?;
            items.collect::<Result<_, _>>().map(Some)
        })
    }

    fn find_item(&self, conversation: String, id: String) -> StoreFuture<'_, Option<ConversationItem>> {
        self.read(move |db| {
            let sql =
                "SELECT id, item FROM conversation_items WHERE conversation = ?1 AND id = ?2 ORDER BY seq LIMIT 1";
            db.prepare_cached(sql)?.query_row([&conversation, &id], item_from_row).optional()
        })
    }

    fn add_items(&self, conversation: String, items: Vec<ConversationItem>) -> StoreFuture<'_, ()> {
        self.write(move |db| append_items(db, Some(&conversation), &items))
    }

    fn delete_item(&self, conversation: String, id: String) -> StoreFuture<'_, bool> {
        self.write(move |db| {
            let sql = "DELETE FROM conversation_items WHERE conversation = ?1 AND id = ?2";
            Ok(db.prepare_cached(sql)?.execute([&conversation, &id])? > 0)
        })
    }

    fn set_metadata(&self, conversation: String, metadata: String) -> StoreFuture<'_, bool> {
        self.write(move |db| {
            let sql = "UPDATE conversations SET metadata = ?2 WHERE id = ?1";
            Ok(db.prepare_cached(sql)?.execute([&conversation, &metadata])? > 0)
        })
    }

    fn delete_conversation(&self, id: String) -> StoreFuture<'_, bool> {
        self.write(move |db| Ok(db.prepare_cached("DELETE FROM conversations WHERE id = ?1")?.execute([&id])? > 0))
    }
}

fn insert_response(db: &Connection, response: &StoredResponse) -> rusqlite::Result<()> {
    let StoredResponse { id, owner, run, previous, conversation, background, .. } = response;
    let sql = "INSERT INTO responses (id, owner, run, previous, conversation, background, boot, ended,
                                      created_at, expires_at, response, input)
               SELECT ?1, ?2, ?3, ?4, ?5, ?6, number, ?7, ?8, ?9, ?10, ?11 FROM boot";
    db.prepare_cached(sql)?
        .execute(params![
            id,
            owner.as_str(),
            run.as_str(),
            previous,
            conversation,
            background,
            response.state == StoredResponseState::Ended,
            response.created_at,
            response.expires_at,
            response.response,
            response.input,
        ])
        .map(drop)
}

/// Does nothing if the conversation is gone.
fn append_items(db: &Connection, conversation: Option<&str>, items: &[ConversationItem]) -> rusqlite::Result<()> {
    let sql =
        "INSERT INTO conversation_items (conversation, id, item) SELECT id, ?2, ?3 FROM conversations WHERE id = ?1";
    let mut insert = db.prepare_cached(sql)?;
    items.iter().try_for_each(|item| insert.execute(params![conversation, item.id, item.item]).map(drop))
}

fn item_from_row(row: &Row<'_>) -> rusqlite::Result<ConversationItem> {
    Ok(ConversationItem { id: row.get(0)?, item: row.get(1)? })
}

fn response_from_row(row: &Row<'_>) -> rusqlite::Result<StoredResponse> {
    let (has_ended, is_of_earlier_daemon) = (row.get(6)?, row.get(7)?);
    Ok(StoredResponse {
        id: row.get(0)?,
        owner: parse_id_column(row, 1, Principal::parse)?,
        run: parse_id_column(row, 2, RunId::parse)?,
        previous: row.get(3)?,
        conversation: row.get(4)?,
        background: row.get(5)?,
        state: StoredResponseState::from_columns(has_ended, is_of_earlier_daemon),
        created_at: row.get(8)?,
        expires_at: row.get(9)?,
        response: row.get(10)?,
        input: row.get(11)?,
    })
}
