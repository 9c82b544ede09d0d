//! Agents that were made at run time, until they are deleted.

use quell_protocol::{AgentId, Principal};
use rusqlite::{Row, params};

use super::runs::id;
use super::{NoteScope, Store, StoreError, notes};

/// An agent that was made at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAgent {
    /// Its id.
    pub id: AgentId,
    /// Its configuration, JSON.
    pub config: String,
    /// RFC 3339.
    pub created_at: String,
    /// Who made it.
    pub created_by: Principal,
}

impl Store {
    /// Keeps a new agent, whose id none has. Durable before it answers.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then it is not kept.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn create_agent(&self, agent: StoredAgent) -> Result<(), StoreError> {
        self.write(move |db| {
            let sql = "INSERT INTO agents (id, config, created_at, created_by) VALUES (?1, ?2, ?3, ?4)";
            let by = agent.created_by.as_str();
            let values = params![agent.id.as_str(), agent.config, agent.created_at, by];
            db.prepare_cached(sql)?.execute(values).map(drop)
        })
        .await
    }

    /// All kept agents by id.
    ///
    /// # Errors
    /// [`StoreError`] when they could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn agents(&self) -> Result<Vec<StoredAgent>, StoreError> {
        self.read(|db| {
            let sql = "SELECT id, config, created_at, created_by FROM agents ORDER BY id";
            db.prepare_cached(sql)?.query_map([], agent_row)?.collect()
        })
        .await
    }

    /// Forgets agents and what they remember, all in one transaction. Unknown ones are forgotten already.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written; then all of them are still kept.
    ///
    /// # Cancel safety
    /// Safe, as [`Store`] says.
    pub async fn delete_agents(&self, ids: Vec<AgentId>) -> Result<(), StoreError> {
        self.write(move |db| {
            let mut delete = db.prepare_cached("DELETE FROM agents WHERE id = ?1")?;
            ids.iter().try_for_each(|id| {
                // Another agent of that name is another agent.
                notes::clear(db, &NoteScope::Agent(id.clone()))?;
                delete.execute([id.as_str()]).map(drop)
            })
        })
        .await
    }
}

fn agent_row(row: &Row<'_>) -> rusqlite::Result<StoredAgent> {
    Ok(StoredAgent {
        id: id(row, 0, AgentId::parse)?,
        config: row.get(1)?,
        created_at: row.get(2)?,
        created_by: id(row, 3, Principal::parse)?,
    })
}
