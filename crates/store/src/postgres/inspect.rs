//! Inspect a database without changing it, for diagnostics.

use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use quell_kernel::clock_skew::clock_skew_ms;

use super::connection::PgConnection;
use super::settings::{Connector, PostgresSettings};
use super::{hold, membership, on_own_thread, schema};
use crate::location::{DatabaseInspection, DatabaseServer, DatabaseState};
use crate::{StoreError, find_running_daemon};

/// Inspects the lock of a data directory, and the database on the server. Blocks until the server has answered.
///
/// # Errors
/// [`StoreError`] when a daemon could not open the database: unreachable, of an unsupported version or schema, of another
/// program.
pub fn inspect_database(settings: &PostgresSettings, data_dir: &Path) -> Result<DatabaseInspection, StoreError> {
    let holder = find_running_daemon(data_dir)?;
    let connector = Arc::new(Connector::new(settings)?);
    on_own_thread(move || {
        let db = PgConnection::new(connector);
        db.ensure_connected()?;
        let version = schema::check_server(&db)?;
        let begin = Instant::now();
        db.run("SELECT 1")?;
        let round_trip = begin.elapsed();
        let sent_ms = wall_clock_ms();
        let clock_ms = membership::read_clock(&db)?;
        let clock_skew_ms = clock_skew_ms(sent_ms, wall_clock_ms(), clock_ms);
        let database = match schema::check_schema(&db)? {
            0 => DatabaseState::Absent,
            _ => DatabaseState::Readable(hold::read_hold(&db)?),
        };
        let nodes = if schema::has_nodes(&db)? { membership::list_nodes(&db)? } else { Vec::new() };
        let server = Some(DatabaseServer { version, round_trip, clock_skew_ms, nodes });
        Ok(DatabaseInspection { holder, database, server })
    })
}

/// Milliseconds since 1970.
fn wall_clock_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
