//! Agents that were created at run time.

use quell_protocol::{AgentId, Principal};
use rusqlite::{Row, params};

use super::columns::parse_id_column;
use super::{SqliteStore, notes};
use crate::{AgentStore, NoteScope, StoreFuture, StoredAgent};

impl AgentStore for SqliteStore {
    fn create(&self, agent: StoredAgent) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let sql = "INSERT INTO agents (id, config, created_at, created_by) VALUES (?1, ?2, ?3, ?4)";
            let by = agent.created_by.as_str();
            let values = params![agent.id.as_str(), agent.config, agent.created_at, by];
            db.prepare_cached(sql)?.execute(values).map(drop)
        })
    }

    fn list(&self) -> StoreFuture<'_, Vec<StoredAgent>> {
        self.read(|db| {
            let sql = "SELECT id, config, created_at, created_by FROM agents ORDER BY id";
            db.prepare_cached(sql)?.query_map([], agent_from_row)?.collect()
        })
    }

    fn delete(&self, ids: Vec<AgentId>) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let mut delete = db.prepare_cached("DELETE FROM agents WHERE id = ?1")?;
            ids.iter().try_for_each(|id| {
                notes::delete_notes(db, &NoteScope::Agent(id.clone()))?;
                delete.execute([id.as_str()]).map(drop)
            })
        })
    }
}

fn agent_from_row(row: &Row<'_>) -> rusqlite::Result<StoredAgent> {
    Ok(StoredAgent {
        id: parse_id_column(row, 0, AgentId::parse)?,
        config: row.get(1)?,
        created_at: row.get(2)?,
        created_by: parse_id_column(row, 3, Principal::parse)?,
    })
}
