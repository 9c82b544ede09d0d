//! The running total of the room that the responses and conversations of an owner take.

use quell_protocol::Principal;

use super::*;

/// Rows as they come and go, some of them with their conversation.
const CHANGES: &str = "
    INSERT INTO responses (id, owner, run, background, boot, ended, created_at, expires_at, response, input)
        SELECT 'r' || value, 'ann', 'r', 0, 1, 1, 1, 2, printf('%.*c', value, 'x'), 'in' FROM generate_numbers;
    INSERT INTO conversations (id, owner, created_at, metadata)
        SELECT 'c' || value, iif(value % 2, 'ann', 'bob'), 1, '{}' FROM generate_numbers;
    INSERT INTO conversation_items (conversation, id, item)
        SELECT 'c' || (value % 100), 'i' || value, printf('%.*c', value, 'y') FROM generate_numbers;
    UPDATE responses SET events = '[1, 2, 3]' WHERE rowid % 3 = 0;
    UPDATE conversations SET metadata = '{\"a\": \"b\"}' WHERE rowid % 3 = 0;
    DELETE FROM responses WHERE rowid % 5 = 0;
    DELETE FROM conversation_items WHERE seq % 7 = 0;
    DELETE FROM conversations WHERE rowid % 11 = 0;";

const NUMBERS: &str = "CREATE TEMP TABLE generate_numbers AS
    WITH RECURSIVE numbers (value) AS (VALUES (0) UNION ALL SELECT value + 1 FROM numbers WHERE value < 999)
    SELECT value FROM numbers";

const SUM: &str = "SELECT (SELECT sum(bytes) FROM responses WHERE owner = ?1)
    + (SELECT sum(bytes) FROM conversations WHERE owner = ?1)
    + (SELECT sum(items.bytes) FROM conversations
       JOIN conversation_items AS items ON items.conversation = conversations.id WHERE owner = ?1)";

#[tokio::test]
async fn the_total_is_the_sum_after_all_changes_and_after_the_migration() {
    let (store, home) = new_store();
    store.close().await;
    let db = Connection::open(home.path().join(FILE)).unwrap();
    db.execute_batch("PRAGMA foreign_keys = ON").unwrap();
    db.execute_batch(NUMBERS).unwrap();
    db.execute_batch(CHANGES).unwrap();
    let sum: i64 = db.query_row(SUM, ["ann"], |row| row.get(0)).unwrap();
    assert!(sum > 500_000, "{sum}");
    let total = "SELECT bytes FROM response_room WHERE owner = 'ann'";
    assert_eq!(db.query_row(total, [], |row| row.get::<_, i64>(0)), Ok(sum));
    // As it was before the total.
    let triggers = "SELECT group_concat('DROP TRIGGER ' || name, ';') FROM sqlite_schema
                    WHERE type = 'trigger' AND sql LIKE '%response_room%'";
    let drop_triggers: String = db.query_row(triggers, [], |row| row.get(0)).unwrap();
    db.execute_batch(&format!("{drop_triggers}; DROP TABLE response_room; PRAGMA user_version = 23")).unwrap();
    drop(db);
    let store = open_store(&home);
    let used = store.responses().used_bytes(Principal::parse("ann").unwrap()).await;
    assert_eq!(used.map(|bytes| i64::try_from(bytes).unwrap()), Ok(sum));
}
