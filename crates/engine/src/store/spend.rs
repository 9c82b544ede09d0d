//! What agents spend in a day: counted with the end of each run, in its transaction.

use quell_kernel::spend::minus;
use quell_protocol::{AgentId, RunId, Usage};
use rusqlite::{Connection, OptionalExtension, params};

use super::runs::id;
use super::{Store, StoreError};

/// What a run that is over has used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spent {
    /// Its agent.
    pub agent: AgentId,
    /// The UTC day that it counts on, `YYYY-MM-DD`.
    pub day: String,
    /// All that it used.
    pub usage: Usage,
    /// What of that was counted before, for a run that was deleted since; of any other the database knows.
    pub counted: Usage,
}

impl Store {
    /// Adds what an agent has used on a day outside of its runs.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be written.
    ///
    /// # Cancel safety
    /// Safe: once asked for, it is written whether or not the caller waits.
    pub async fn spend(&self, agent: AgentId, day: String, usage: Usage) -> Result<(), StoreError> {
        self.write(move |db| add(db, &agent, &day, usage)).await
    }

    /// What each agent has spent on a day.
    ///
    /// # Errors
    /// [`StoreError`] when it could not be read.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn spent_on(&self, day: String) -> Result<Vec<(AgentId, Usage)>, StoreError> {
        self.read(move |db| {
            let mut rows = db.prepare_cached("SELECT agent, input, output FROM spend WHERE day = ?1")?;
            let rows = rows.query_map([day], |row| {
                let usage =
                    Usage { input_tokens: tokens(row.get(1)?), output_tokens: tokens(row.get(2)?), estimated: false };
                Ok((id(row, 0, AgentId::parse)?, usage))
            })?;
            rows.collect()
        })
        .await
    }
}

fn add(db: &Connection, agent: &AgentId, day: &str, usage: Usage) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO spend (agent, day, input, output) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (agent, day) DO UPDATE SET input = input + excluded.input, output = output + excluded.output",
    )?
    .execute(params![agent.as_str(), day, whole(usage.input_tokens), whole(usage.output_tokens)])
    .map(drop)
}

/// Counts what a run has used and what is not counted of it yet.
pub(super) fn count(db: &Connection, run: &RunId, spent: &Spent) -> rusqlite::Result<()> {
    let known = db
        .prepare_cached("SELECT counted_input, counted_output FROM runs WHERE id = ?1")?
        .query_row([run.as_str()], |row| {
            Ok(Usage { input_tokens: tokens(row.get(0)?), output_tokens: tokens(row.get(1)?), estimated: false })
        })
        .optional()?;
    let new = minus(spent.usage, known.unwrap_or(spent.counted));
    let (input, output) = (whole(new.input_tokens), whole(new.output_tokens));
    if (input, output) == (0, 0) {
        return Ok(());
    }
    add(db, &spent.agent, &spent.day, new)?;
    db.prepare_cached(
        "UPDATE runs SET counted_input = counted_input + ?2, counted_output = counted_output + ?3 WHERE id = ?1",
    )?
    .execute(params![run.as_str(), input, output])
    .map(drop)
}

/// The store writes no negative number.
fn tokens(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or_default()
}

/// A sum of many of these stays below what an integer of SQLite holds.
fn whole(tokens: u64) -> i64 {
    const MOST: u64 = 1 << 48;
    i64::try_from(tokens.min(MOST)).unwrap_or_default()
}
