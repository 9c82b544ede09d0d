//! Token usage per agent and UTC day, and per token of the API.

use quell_kernel::daily_spend::{PricedUsage, SpendAmount};
use quell_protocol::{AgentId, Principal, RunId, Usage};
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

    fn by_key(&self, first_day: String, last_day: String) -> StoreFuture<'_, Vec<(Principal, PricedUsage)>> {
        self.read(move |db| {
            let sql = "SELECT principal, sum(input)::bigint, sum(output)::bigint, sum(cost)::bigint FROM key_spend
                       WHERE day BETWEEN $1 AND $2 GROUP BY principal ORDER BY principal";
            let rows = db.query(sql, &[&first_day, &last_day])?;
            let entry = |row: &Row| Ok((parse_id(row, 0, Principal::parse)?, priced_usage_from_row(row, 1)?));
            rows.iter().map(entry).collect()
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

/// Three columns, the first at `at`.
fn priced_usage_from_row(row: &Row, at: usize) -> Result<PricedUsage, StoreError> {
    Ok(PricedUsage { usage: usage_from_row(row, at)?, cost_nanos: to_unsigned(get(row, at + 2)?) })
}

fn add_daily_spend(db: &PgConnection, agent: &AgentId, day: &str, usage: Usage) -> Result<(), StoreError> {
    let sql = "INSERT INTO node_spend (agent, day, node, input, output)
               VALUES ($1, $2, coalesce((SELECT name FROM nodes WHERE epoch = $5), ''), $3, $4)
               ON CONFLICT (day, agent, node) DO UPDATE SET
                   input = node_spend.input + excluded.input, output = node_spend.output + excluded.output";
    let (input, output) = (count_to_sql(usage.input_tokens), count_to_sql(usage.output_tokens));
    db.execute(sql, &[&agent.as_str(), &day, &input, &output, &db.writer()?.number()]).map(drop)
}

fn add_key_spend(db: &PgConnection, key: &Principal, day: &str, new: PricedUsage) -> Result<(), StoreError> {
    let sql = "INSERT INTO key_spend (principal, day, node, input, output, cost)
               VALUES ($1, $2, coalesce((SELECT name FROM nodes WHERE epoch = $6), ''), $3, $4, $5)
               ON CONFLICT (day, principal, node) DO UPDATE SET
                   input = key_spend.input + excluded.input, output = key_spend.output + excluded.output,
                   cost = key_spend.cost + excluded.cost";
    let PricedUsage { usage, cost_nanos } = new;
    let (input, output) = (count_to_sql(usage.input_tokens), count_to_sql(usage.output_tokens));
    let cost = count_to_sql(cost_nanos);
    db.execute(sql, &[&key.as_str(), &day, &input, &output, &cost, &db.writer()?.number()]).map(drop)
}

/// Counts the part of a run's usage that is not counted yet.
pub(super) fn count_run_spend(db: &PgConnection, run: &RunId, spent: &RunSpend) -> Result<(), StoreError> {
    let sql = "SELECT counted_input, counted_output, counted_cost FROM runs WHERE id = $1 FOR UPDATE";
    let known = db.query_optional(sql, &[&run.as_str()])?.map(|row| priced_usage_from_row(&row, 0)).transpose()?;
    let new = spent.total().subtract(known.unwrap_or(spent.counted_before()));
    let (input, output) = (count_to_sql(new.usage.input_tokens), count_to_sql(new.usage.output_tokens));
    let cost = count_to_sql(new.cost_nanos);
    if (input, output, cost) == (0, 0, 0) {
        return Ok(());
    }
    add_daily_spend(db, &spent.agent, &spent.day, new.usage)?;
    if let Some(key) = &spent.key {
        add_key_spend(db, key, &spent.day, new)?;
    }
    let sql = "UPDATE runs SET counted_input = counted_input + $2, counted_output = counted_output + $3,
                               counted_cost = counted_cost + $4 WHERE id = $1";
    db.execute(sql, &[&run.as_str(), &input, &output, &cost]).map(drop)
}

/// Caps the value, so that a sum of many of them fits the integers of the database.
fn count_to_sql(count: u64) -> i64 {
    const MAX_COUNT: u64 = 1 << 48;
    i64::try_from(count.min(MAX_COUNT)).unwrap_or_default()
}
