//! Responses of the Responses API, and conversations.

use quell_protocol::{Principal, RunId};
use tokio_postgres::Row;

use super::PostgresStore;
use super::channels::is_stale;
use super::columns::{Text, get, optional_text, parse_id, text, to_unsigned};
use super::connection::PgConnection;
use crate::{
    BeginResponseOutcome, ConversationItem, DeletedResponses, EndedResponse, ItemOrder, ItemQuery,
    RESPONSE_RETENTION_SECONDS, ResponseOwner, ResponseStore, StoreError, StoreFuture, StoredConversation,
    StoredResponse, StoredResponseState,
};

macro_rules! response_columns {
    () => {
        concat!(
            "id, owner, run, previous, conversation, background, ended, ",
            is_stale!(),
            ", created_at, expires_at, response, input"
        )
    };
}

impl ResponseStore for PostgresStore {
    fn create(&self, response: StoredResponse, conversation_items: Vec<ConversationItem>) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            insert_response(db, &response)?;
            append_items(db, response.conversation.as_deref(), &conversation_items)
        })
    }

    fn begin(&self, response: StoredResponse) -> StoreFuture<'_, BeginResponseOutcome> {
        self.write(move |db| {
            // Locked, so that of two nodes the second one sees the response of the first.
            db.execute("SELECT 1 FROM conversations WHERE id = $1 FOR UPDATE", &[&response.conversation])?;
            let open =
                concat!("SELECT 1 FROM responses WHERE conversation = $1 AND NOT ended AND NOT (", is_stale!(), ")");
            if db.exists(open, &[&response.conversation])? {
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
                " FROM responses WHERE conversation = $1 AND NOT ended AND ",
                is_stale!(),
                " ORDER BY id"
            );
            db.query(sql, &[&conversation])?.iter().map(response_from_row).collect()
        })
    }

    fn find(&self, id: String, now: i64) -> StoreFuture<'_, Option<StoredResponse>> {
        self.read(move |db| {
            let sql = concat!("SELECT ", response_columns!(), " FROM responses WHERE id = $1 AND expires_at > $2");
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

    fn delete_older(&self, time: i64) -> StoreFuture<'_, u64> {
        self.write(move |db| {
            let responses = db.execute("DELETE FROM responses WHERE created_at < $1 AND ended", &[&time])?;
            let sql = "DELETE FROM conversations WHERE created_at < $1
                       AND id NOT IN (SELECT conversation FROM responses WHERE conversation IS NOT NULL)";
            Ok(responses + db.execute(sql, &[&time])?)
        })
    }

    fn delete_oldest(&self, of: ResponseOwner, count: u32) -> StoreFuture<'_, u64> {
        self.write(move |db| {
            let sql = "DELETE FROM responses WHERE id IN
                (SELECT id FROM responses WHERE ended AND ($1::text IS NULL OR owner = $1)
                 ORDER BY expires_at LIMIT $2)";
            db.execute(sql, &[&of.name(), &i64::from(count)])
        })
    }

    fn delete_oldest_conversations(&self, count: u32) -> StoreFuture<'_, u64> {
        self.write(move |db| {
            let sql = "DELETE FROM conversations WHERE id IN
                (SELECT id FROM conversations WHERE id NOT IN
                    (SELECT conversation FROM responses WHERE NOT ended AND conversation IS NOT NULL)
                 ORDER BY created_at LIMIT $1)";
            db.execute(sql, &[&i64::from(count)])
        })
    }

    fn used_bytes(&self, owner: Principal) -> StoreFuture<'_, u64> {
        self.read(move |db| {
            let sql = "SELECT ((SELECT coalesce(sum(bytes), 0) FROM responses WHERE owner = $1)
                             + (SELECT coalesce(sum(bytes), 0) FROM conversations WHERE owner = $1)
                             + (SELECT coalesce(sum(items.bytes), 0) FROM conversations
                                JOIN conversation_items AS items ON items.conversation = conversations.id
                                WHERE owner = $1))::bigint";
            get(&db.query_row(sql, &[&owner.as_str()])?, 0).map(to_unsigned)
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

    fn conversation_bytes(&self, id: String) -> StoreFuture<'_, u64> {
        self.read(move |db| {
            let sql = "SELECT coalesce(sum(bytes), 0)::bigint FROM conversation_items WHERE conversation = $1";
            get(&db.query_row(sql, &[&id])?, 0).map(to_unsigned)
        })
    }

    fn conversation_items(&self, id: String) -> StoreFuture<'_, Vec<ConversationItem>> {
        self.read(move |db| {
            let sql = "SELECT id, item FROM conversation_items WHERE conversation = $1 ORDER BY seq";
            db.query(sql, &[&id])?.iter().map(item_from_row).collect()
        })
    }

    fn item_page(&self, id: String, query: ItemQuery) -> StoreFuture<'_, Option<Vec<ConversationItem>>> {
        self.read(move |db| {
            // Clients may have given the same id to two items: reading on leads to the end all the same.
            let (at, rest) = match query.order {
                ItemOrder::OldestFirst => ("max(seq)", "seq > $2 ORDER BY seq"),
                ItemOrder::NewestFirst => ("min(seq)", "seq < $2 ORDER BY seq DESC"),
            };
            let after: Option<i64> = match (&query.after, query.order) {
                (Some(after), _) => {
                    let sql = format!("SELECT {at} FROM conversation_items WHERE conversation = $1 AND id = $2");
                    get(&db.query_row(&sql, &[&id, &Text(after)])?, 0)?
                }
                (None, ItemOrder::OldestFirst) => Some(i64::MIN),
                (None, ItemOrder::NewestFirst) => Some(i64::MAX),
            };
            let Some(after) = after else { return Ok(None) };
            let sql = format!("SELECT id, item FROM conversation_items WHERE conversation = $1 AND {rest} LIMIT $3");
            let rows = db.query(&sql, &[&id, &after, &i64::from(query.limit)])?;
            rows.iter().map(item_from_row).collect::<Result<_, _>>().map(Some)
        })
    }

    fn find_item(&self, conversation: String, id: String) -> StoreFuture<'_, Option<ConversationItem>> {
        self.read(move |db| {
            let sql =
                "SELECT id, item FROM conversation_items WHERE conversation = $1 AND id = $2 ORDER BY seq LIMIT 1";
            db.query_optional(sql, &[&conversation, &Text(&id)])?.as_ref().map(item_from_row).transpose()
        })
    }

    fn add_items(&self, conversation: String, items: Vec<ConversationItem>) -> StoreFuture<'_, ()> {
        self.write(move |db| append_items(db, Some(&conversation), &items))
    }

    fn delete_item(&self, conversation: String, id: String) -> StoreFuture<'_, bool> {
        self.write(move |db| {
            let sql = "DELETE FROM conversation_items WHERE conversation = $1 AND id = $2";
            Ok(db.execute(sql, &[&conversation, &Text(&id)])? > 0)
        })
    }

    fn set_metadata(&self, conversation: String, metadata: String) -> StoreFuture<'_, bool> {
        self.write(move |db| {
            let sql = "UPDATE conversations SET metadata = $2 WHERE id = $1";
            Ok(db.execute(sql, &[&conversation, &Text(&metadata)])? > 0)
        })
    }

    fn delete_conversation(&self, id: String) -> StoreFuture<'_, bool> {
        self.write(move |db| Ok(db.execute("DELETE FROM conversations WHERE id = $1", &[&id])? > 0))
    }
}

fn insert_response(db: &PgConnection, response: &StoredResponse) -> Result<(), StoreError> {
    let StoredResponse { id, owner, run, previous, conversation, background, .. } = response;
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
    )
    .map(drop)
}

/// Does nothing if the conversation is gone.
fn append_items(db: &PgConnection, conversation: Option<&str>, items: &[ConversationItem]) -> Result<(), StoreError> {
    // Locked, so that a deletion comes before all items or after them.
    let sql = "WITH parent AS (SELECT id FROM conversations WHERE id = $1 FOR KEY SHARE)
               INSERT INTO conversation_items (conversation, id, item) SELECT id, $2, $3 FROM parent";
    items.iter().try_for_each(|item| db.execute(sql, &[&conversation, &Text(&item.id), &Text(&item.item)]).map(drop))
}

fn item_from_row(row: &Row) -> Result<ConversationItem, StoreError> {
    Ok(ConversationItem { id: text(row, 0)?, item: text(row, 1)? })
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
