//! Agents that were created at run time.

use quell_protocol::{AgentId, Principal};
use tokio_postgres::Row;

use super::columns::{Text, get, parse_id, text};
use super::{PostgresStore, notes};
use crate::{AgentStore, NoteScope, StoreError, StoreFuture, StoredAgent};

impl AgentStore for PostgresStore {
    fn create(&self, agent: StoredAgent) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            let sql = "INSERT INTO agents (id, config, created_at, created_by) VALUES ($1, $2, $3, $4)";
            let by = agent.created_by.as_str();
            db.execute(sql, &[&agent.id.as_str(), &Text(&agent.config), &agent.created_at, &by]).map(drop)
        })
    }

    fn list(&self) -> StoreFuture<'_, Vec<StoredAgent>> {
        self.read(|db| {
            let sql = "SELECT id, config, created_at, created_by FROM agents ORDER BY id";
            db.query(sql, &[])?.iter().map(agent_from_row).collect()
        })
    }

    fn delete(&self, ids: Vec<AgentId>) -> StoreFuture<'_, ()> {
        self.write(move |db| {
            ids.iter().try_for_each(|id| {
                notes::delete_notes(db, &NoteScope::Agent(id.clone()))?;
                db.execute("DELETE FROM agents WHERE id = $1", &[&id.as_str()]).map(drop)
            })
        })
    }
}

fn agent_from_row(row: &Row) -> Result<StoredAgent, StoreError> {
    Ok(StoredAgent {
        id: parse_id(row, 0, AgentId::parse)?,
        config: text(row, 1)?,
        created_at: get(row, 2)?,
        created_by: parse_id(row, 3, Principal::parse)?,
    })
}
