//! Responses of the Responses API, and conversations.

use quell_protocol::{Principal, RunId};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::SqliteStore;
use super::columns::parse_id_column;
use crate::{
    ConversationItem, DeletedResponses, EndedResponse, RESPONSE_RETENTION_SECONDS, ResponseStore, StoreFuture,
    StoredConversation, StoredResponse, StoredResponseState,
};

impl ResponseStore for SqliteStore {
    fn create(&self, response: StoredResponse, conversation_items: Vec<ConversationItem>) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let StoredResponse { id, owner, run, previous, conversation, background, .. } = &response;
            let sql = "INSERT INTO responses (id, owner, run, previous, conversation, background, boot, ended,
                                              created_at, expires_at, response, input)
                       SELECT ?1, ?2, ?3, ?4, ?5, ?6, number, ?7, ?8, ?9, ?10, ?11 FROM boot";
            db.prepare_cached(sql)?.execute(params![
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
            ])?;
            append_items(db, conversation.as_deref(), &conversation_items)
        })
    }

    fn find(&self, id: String, now: i64) -> StoreFuture<'_, Option<StoredResponse>> {
        self.read(move |db| {
            let sql = "SELECT id, owner, run, previous, conversation, background, ended,
                              boot <> (SELECT number FROM boot), created_at, expires_at, response, input
                       FROM responses WHERE id = ?1 AND expires_at > ?2";
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

    fn conversation_items(&self, id: String) -> StoreFuture<'_, Vec<ConversationItem>> {
        self.read(move |db| {
            let sql = "SELECT id, item FROM conversation_items WHERE conversation = ?1 ORDER BY seq";
            let row = |row: &Row<'_>| Ok(ConversationItem { id: row.get(0)?, item: row.get(1)? });
            db.prepare_cached(sql)?.query_map([&id], row)?.collect()
        })
    }

    fn delete_conversation(&self, id: String) -> StoreFuture<'_, bool> {
        self.write(move |db| Ok(db.prepare_cached("DELETE FROM conversations WHERE id = ?1")?.execute([&id])? > 0))
    }
}

/// Does nothing if the conversation is gone.
fn append_items(db: &Connection, conversation: Option<&str>, items: &[ConversationItem]) -> rusqlite::Result<()> {
    let sql =
        "INSERT INTO conversation_items (conversation, id, item) SELECT id, ?2, ?3 FROM conversations WHERE id = ?1";
    let mut insert = db.prepare_cached(sql)?;
    items.iter().try_for_each(|item| insert.execute(params![conversation, item.id, item.item]).map(drop))
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
