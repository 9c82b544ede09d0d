//! Agents that were created at run time.

use quell_protocol::{AgentId, Principal};
use rusqlite::{Row, params};

use super::runs::parse_id_column;
use super::{NoteScope, Store, StoreError, notes};

/// An agent that was created at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAgent {
    pub id: AgentId,
    /// JSON.
    pub config: String,
    /// RFC 3339.
    pub created_at: String,
    pub created_by: Principal,
}

impl Store {
    /// Stores a new agent. Its id must not be in use. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then the agent is not stored.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn create_agent(&self, agent: StoredAgent) -> Result<(), StoreError> {
        self.write(move |db| {
            let sql = "INSERT INTO agents (id, config, created_at, created_by) VALUES (?1, ?2, ?3, ?4)";
            let by = agent.created_by.as_str();
            let values = params![agent.id.as_str(), agent.config, agent.created_at, by];
            db.prepare_cached(sql)?.execute(values).map(drop)
        })
        .await
    }

    /// Lists all stored agents, ordered by id.
    ///
    /// # Cancel safety
    /// Safe: only reads.
    pub async fn list_agents(&self) -> Result<Vec<StoredAgent>, StoreError> {
        self.read(|db| {
            let sql = "SELECT id, config, created_at, created_by FROM agents ORDER BY id";
            db.prepare_cached(sql)?.query_map([], agent_from_row)?.collect()
        })
        .await
    }

    /// Deletes agents and their notes in one transaction. Ignores unknown ids.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then none is deleted.
    ///
    /// # Cancel safety
    /// Safe: see [`Store`].
    pub async fn delete_agents(&self, ids: Vec<AgentId>) -> Result<(), StoreError> {
        self.write(move |db| {
            let mut delete = db.prepare_cached("DELETE FROM agents WHERE id = ?1")?;
            ids.iter().try_for_each(|id| {
                // A later agent with the same id must not inherit the notes.
                notes::delete_notes(db, &NoteScope::Agent(id.clone()))?;
                delete.execute([id.as_str()]).map(drop)
            })
        })
        .await
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
