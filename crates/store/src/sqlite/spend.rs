//! Token usage per agent and UTC day.

use quell_kernel::daily_spend::subtract_usage;
use quell_protocol::{AgentId, RunId, Usage};
use rusqlite::{Connection, OptionalExtension, params};

use super::SqliteStore;
use super::columns::{parse_id_column, to_unsigned};
use crate::{RunSpend, SpendStore, StoreFuture};

impl SpendStore for SqliteStore {
    fn add(&self, agent: AgentId, day: String, usage: Usage) -> StoreFuture<'_, ()> {
        self.write(move |db| add_daily_spend(db, &agent, &day, usage))
    }

    fn on_day(&self, day: String) -> StoreFuture<'_, Vec<(AgentId, Usage)>> {
        self.read(move |db| {
            let sql = "SELECT agent, input, output FROM spend WHERE day = ?1 ORDER BY agent";
            let mut rows = db.prepare_cached(sql)?;
            let rows = rows.query_map([day], |row| {
                let usage = Usage {
                    input_tokens: to_unsigned(row.get(1)?),
                    output_tokens: to_unsigned(row.get(2)?),
                    cached_tokens: 0,
                    estimated: false,
                };
                Ok((parse_id_column(row, 0, AgentId::parse)?, usage))
            })?;
            rows.collect()
        })
    }
}

fn add_daily_spend(db: &Connection, agent: &AgentId, day: &str, usage: Usage) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO spend (agent, day, input, output) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (agent, day) DO UPDATE SET input = input + excluded.input, output = output + excluded.output",
    )?
    .execute(params![agent.as_str(), day, tokens_to_sql(usage.input_tokens), tokens_to_sql(usage.output_tokens)])
    .map(drop)
}

/// Counts the part of a run's usage that is not counted yet.
pub(super) fn count_run_spend(db: &Connection, run: &RunId, spent: &RunSpend) -> rusqlite::Result<()> {
    let known = db
        .prepare_cached("SELECT counted_input, counted_output FROM runs WHERE id = ?1")?
        .query_row([run.as_str()], |row| {
            Ok(Usage {
                input_tokens: to_unsigned(row.get(0)?),
                output_tokens: to_unsigned(row.get(1)?),
                cached_tokens: 0,
                estimated: false,
            })
        })
        .optional()?;
    let new = subtract_usage(spent.usage, known.unwrap_or(spent.already_counted));
    let (input, output) = (tokens_to_sql(new.input_tokens), tokens_to_sql(new.output_tokens));
    if (input, output) == (0, 0) {
        return Ok(());
    }
    add_daily_spend(db, &spent.agent, &spent.day, new)?;
    db.prepare_cached(
        "UPDATE runs SET counted_input = counted_input + ?2, counted_output = counted_output + ?3 WHERE id = ?1",
    )?
    .execute(params![run.as_str(), input, output])
    .map(drop)
}

/// Caps the value, so that a sum of many of them fits SQLite's integers.
fn tokens_to_sql(tokens: u64) -> i64 {
    const MAX_TOKENS: u64 = 1 << 48;
    i64::try_from(tokens.min(MAX_TOKENS)).unwrap_or_default()
}
