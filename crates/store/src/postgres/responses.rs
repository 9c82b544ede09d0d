//! Responses of the Responses API, and conversations.

use quell_protocol::{Principal, RunId};
use tokio_postgres::Row;

use super::PostgresStore;
use super::channels::is_stale;
use super::columns::{Text, get, optional_text, parse_id, text};
use super::connection::PgConnection;
use crate::{
    ConversationItem, DeletedResponses, EndedResponse, RESPONSE_RETENTION_SECONDS, ResponseStore, StoreError,
    StoreFuture, StoredConversation, StoredResponse, StoredResponseState,
};

impl ResponseStore for PostgresStore {
    fn create(&self, response: StoredResponse, conversation_items: Vec<ConversationItem>) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let StoredResponse { id, owner, run, previous, conversation, background, .. } = &response;
            let sql = "INSERT INTO responses (id, owner, run, previous, conversation, background, boot, ended,
                                              created_at, expires_at, response, input)
                       VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
            db.execute(
                sql,
                &[
                    id,
                    &owner.as_str(),
                    &run.as_str(),
                    previous,
                    conversation,
                    background,
                    &db.writer()?.number(),
                    &(response.state == StoredResponseState::Ended),
                    &response.created_at,
                    &response.expires_at,
                    &Text(&response.response),
                    &Text(&response.input),
                ],
            )?;
            append_items(db, conversation.as_deref(), &conversation_items)
        })
    }

    fn find(&self, id: String, now: i64) -> StoreFuture<'_, Option<StoredResponse>> {
        self.read(move |db| {
            let sql = concat!(
                "SELECT id, owner, run, previous, conversation, background, ended, ",
                is_stale!(),
                ", created_at, expires_at, response, input FROM responses WHERE id = $1 AND expires_at > $2"
            );
            db.query_optional(sql, &[&id, &now])?.as_ref().map(response_from_row).transpose()
        })
    }

    fn events(&self, id: String) -> StoreFuture<'_, Option<String>> {
        self.read(move |db| {
            let Some(row) = db.query_optional("SELECT events FROM responses WHERE id = $1", &[&id])? else {
                return Ok(None);
            };
            optional_text(&row, 0)
        })
    }

    fn end(&self, ended: EndedResponse) -> StoreFuture<'_, bool> {
        self.write(move |db| {
            let EndedResponse { id, response, events, conversation_items } = &ended;
            let sql = "UPDATE responses SET ended = true, response = $2, events = $3 WHERE id = $1 AND NOT ended
                       RETURNING conversation";
            let row = db.query_optional(sql, &[id, &Text(response), &events.as_deref().map(Text)])?;
            let Some(row) = row else { return Ok(false) };
            let conversation: Option<String> = get(&row, 0)?;
            append_items(db, conversation.as_deref(), conversation_items)?;
            Ok(true)
        })
    }

    fn delete(&self, id: String) -> StoreFuture<'_, bool> {
        self.write(move |db| Ok(db.execute("DELETE FROM responses WHERE id = $1", &[&id])? > 0))
    }

    fn delete_expired(&self, now: i64) -> StoreFuture<'_, DeletedResponses> {
        self.write(move |db| {
            let responses = db.execute("DELETE FROM responses WHERE expires_at <= $1", &[&now])?;
            let sql = "DELETE FROM conversations WHERE created_at <= $1
                       AND id NOT IN (SELECT conversation FROM responses WHERE conversation IS NOT NULL)";
            let conversations = db.execute(sql, &[&now.saturating_sub(RESPONSE_RETENTION_SECONDS)])?;
            Ok(DeletedResponses { responses, conversations })
        })
    }

    fn create_conversation(
        &self,
        conversation: StoredConversation,
        items: Vec<ConversationItem>,
    ) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let StoredConversation { id, owner, created_at, metadata } = &conversation;
            let sql = "INSERT INTO conversations (id, owner, created_at, metadata) VALUES ($1, $2, $3, $4)";
            db.execute(sql, &[id, &owner.as_str(), created_at, &Text(metadata)])?;
            append_items(db, Some(id), &items)
        })
    }

    fn find_conversation(&self, id: String) -> StoreFuture<'_, Option<StoredConversation>> {
        self.read(move |db| {
            let sql = "SELECT id, owner, created_at, metadata FROM conversations WHERE id = $1";
            let Some(row) = db.query_optional(sql, &[&id])? else { return Ok(None) };
            Ok(Some(StoredConversation {
                id: get(&row, 0)?,
                owner: parse_id(&row, 1, Principal::parse)?,
                created_at: get(&row, 2)?,
                metadata: text(&row, 3)?,
            }))
        })
    }

    fn conversation_items(&self, id: String) -> StoreFuture<'_, Vec<ConversationItem>> {
        self.read(move |db| {
            let sql = "SELECT id, item FROM conversation_items WHERE conversation = $1 ORDER BY seq";
            let item = |row: &Row| Ok(ConversationItem { id: text(row, 0)?, item: text(row, 1)? });
            db.query(sql, &[&id])?.iter().map(item).collect()
        })
    }

    fn delete_conversation(&self, id: String) -> StoreFuture<'_, bool> {
        self.write(move |db| Ok(db.execute("DELETE FROM conversations WHERE id = $1", &[&id])? > 0))
    }
}

/// Does nothing if the conversation is gone.
fn append_items(db: &PgConnection, conversation: Option<&str>, items: &[ConversationItem]) -> Result<(), StoreError> {
    // Locked, so that a deletion comes before all items or after them.
    let sql = "WITH parent AS (SELECT id FROM conversations WHERE id = $1 FOR KEY SHARE)
               INSERT INTO conversation_items (conversation, id, item) SELECT id, $2, $3 FROM parent";
    items.iter().try_for_each(|item| db.execute(sql, &[&conversation, &Text(&item.id), &Text(&item.item)]).map(drop))
}

fn response_from_row(row: &Row) -> Result<StoredResponse, StoreError> {
    let (has_ended, is_of_earlier_daemon) = (get(row, 6)?, get(row, 7)?);
    Ok(StoredResponse {
        id: get(row, 0)?,
        owner: parse_id(row, 1, Principal::parse)?,
        run: parse_id(row, 2, RunId::parse)?,
        previous: get(row, 3)?,
        conversation: get(row, 4)?,
        background: get(row, 5)?,
        state: StoredResponseState::from_columns(has_ended, is_of_earlier_daemon),
        created_at: get(row, 8)?,
        expires_at: get(row, 9)?,
        response: text(row, 10)?,
        input: text(row, 11)?,
    })
}
