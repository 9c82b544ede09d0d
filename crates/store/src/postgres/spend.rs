//! Token usage per agent and UTC day.

use quell_kernel::daily_spend::subtract_usage;
use quell_protocol::{AgentId, RunId, Usage};
use tokio_postgres::Row;

use super::PostgresStore;
use super::columns::{get, parse_id, to_unsigned};
use super::connection::PgConnection;
use crate::{RunSpend, SpendStore, StoreError, StoreFuture};

impl SpendStore for PostgresStore {
    fn add(&self, agent: AgentId, day: String, usage: Usage) -> StoreFuture<'_, ()> {
        self.write(move |db| add_daily_spend(db, &agent, &day, usage))
    }

    fn on_day(&self, day: String) -> StoreFuture<'_, Vec<(AgentId, Usage)>> {
        self.read(move |db| {
            let rows =
                db.query("SELECT agent, input, output FROM total_spend WHERE day = $1 ORDER BY agent", &[&day])?;
            rows.iter().map(|row| Ok((parse_id(row, 0, AgentId::parse)?, usage_from_row(row, 1)?))).collect()
        })
    }
}

/// Two columns, the first at `at`.
fn usage_from_row(row: &Row, at: usize) -> Result<Usage, StoreError> {
    Ok(Usage {
        input_tokens: to_unsigned(get(row, at)?),
        output_tokens: to_unsigned(get(row, at + 1)?),
        cached_tokens: 0,
        estimated: false,
    })
}

fn add_daily_spend(db: &PgConnection, agent: &AgentId, day: &str, usage: Usage) -> Result<(), StoreError> {
    let sql = "INSERT INTO node_spend (agent, day, node, input, output)
               VALUES ($1, $2, coalesce((SELECT name FROM nodes WHERE epoch = $5), ''), $3, $4)
               ON CONFLICT (day, agent, node) DO UPDATE SET
                   input = node_spend.input + excluded.input, output = node_spend.output + excluded.output";
    let (input, output) = (tokens_to_sql(usage.input_tokens), tokens_to_sql(usage.output_tokens));
    db.execute(sql, &[&agent.as_str(), &day, &input, &output, &db.writer()?.number()]).map(drop)
}

/// Counts the part of a run's usage that is not counted yet.
pub(super) fn count_run_spend(db: &PgConnection, run: &RunId, spent: &RunSpend) -> Result<(), StoreError> {
    let sql = "SELECT counted_input, counted_output FROM runs WHERE id = $1 FOR UPDATE";
    let known = db.query_optional(sql, &[&run.as_str()])?.map(|row| usage_from_row(&row, 0)).transpose()?;
    let new = subtract_usage(spent.usage, known.unwrap_or(spent.already_counted));
    let (input, output) = (tokens_to_sql(new.input_tokens), tokens_to_sql(new.output_tokens));
    if (input, output) == (0, 0) {
        return Ok(());
    }
    add_daily_spend(db, &spent.agent, &spent.day, new)?;
    let sql = "UPDATE runs SET counted_input = counted_input + $2, counted_output = counted_output + $3 WHERE id = $1";
    db.execute(sql, &[&run.as_str(), &input, &output]).map(drop)
}

/// Caps the value, so that a sum of many of them fits the integers of the database.
fn tokens_to_sql(tokens: u64) -> i64 {
    const MAX_TOKENS: u64 = 1 << 48;
    i64::try_from(tokens.min(MAX_TOKENS)).unwrap_or_default()
}
