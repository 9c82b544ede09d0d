//! Token usage per agent and UTC day, and per token of the API.

use quell_kernel::daily_spend::{PricedUsage, SpendAmount};
use quell_protocol::{AgentId, Principal, RunId, Usage};
use rusqlite::{Connection, OptionalExtension, Row, params};

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
            let rows =
                rows.query_map([day], |row| Ok((parse_id_column(row, 0, AgentId::parse)?, usage_from_row(row, 1)?)))?;
            rows.collect()
        })
    }

    fn by_key(&self, first_day: String, last_day: String) -> StoreFuture<'_, Vec<(Principal, PricedUsage)>> {
        self.read(move |db| {
            let sql = "SELECT principal, sum(input), sum(output), sum(cost) FROM key_spend
                       WHERE day BETWEEN ?1 AND ?2 GROUP BY principal ORDER BY principal";
            let mut rows = db.prepare_cached(sql)?;
            let rows = rows.query_map([first_day, last_day], |row| {
                Ok((parse_id_column(row, 0, Principal::parse)?, priced_usage_from_row(row, 1)?))
            })?;
            rows.collect()
        })
    }
}

/// Two columns, the first at `at`.
fn usage_from_row(row: &Row<'_>, at: usize) -> rusqlite::Result<Usage> {
    let (input_tokens, output_tokens) = (to_unsigned(row.get(at)?), to_unsigned(row.get(at + 1)?));
    Ok(Usage { input_tokens, output_tokens, cached_tokens: 0, estimated: false })
}

/// Three columns, the first at `at`.
fn priced_usage_from_row(row: &Row<'_>, at: usize) -> rusqlite::Result<PricedUsage> {
    Ok(PricedUsage { usage: usage_from_row(row, at)?, cost_nanos: to_unsigned(row.get(at + 2)?) })
}

fn add_daily_spend(db: &Connection, agent: &AgentId, day: &str, usage: Usage) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO spend (agent, day, input, output) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (agent, day) DO UPDATE SET input = input + excluded.input, output = output + excluded.output",
    )?
    .execute(params![agent.as_str(), day, count_to_sql(usage.input_tokens), count_to_sql(usage.output_tokens)])
    .map(drop)
}

fn add_key_spend(db: &Connection, key: &Principal, day: &str, new: PricedUsage) -> rusqlite::Result<()> {
    let PricedUsage { usage, cost_nanos } = new;
    db.prepare_cached(
        "INSERT INTO key_spend (principal, day, node, input, output, cost) VALUES (?1, ?2, '', ?3, ?4, ?5)
         ON CONFLICT (day, principal, node) DO UPDATE SET
             input = input + excluded.input, output = output + excluded.output, cost = cost + excluded.cost",
    )?
    .execute(params![
        key.as_str(),
        day,
        count_to_sql(usage.input_tokens),
        count_to_sql(usage.output_tokens),
        count_to_sql(cost_nanos)
    ])
    .map(drop)
}

/// Counts the part of a run's usage that is not counted yet.
pub(super) fn count_run_spend(db: &Connection, run: &RunId, spent: &RunSpend) -> rusqlite::Result<()> {
    let known = db
        .prepare_cached("SELECT counted_input, counted_output, counted_cost FROM runs WHERE id = ?1")?
        .query_row([run.as_str()], |row| priced_usage_from_row(row, 0))
        .optional()?;
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
    db.prepare_cached(
        "UPDATE runs SET counted_input = counted_input + ?2, counted_output = counted_output + ?3,
                         counted_cost = counted_cost + ?4 WHERE id = ?1",
    )?
    .execute(params![run.as_str(), input, output, cost])
    .map(drop)
}

/// Caps the value, so that a sum of many of them fits SQLite's integers.
fn count_to_sql(count: u64) -> i64 {
    const MAX_COUNT: u64 = 1 << 48;
    i64::try_from(count.min(MAX_COUNT)).unwrap_or_default()
}
