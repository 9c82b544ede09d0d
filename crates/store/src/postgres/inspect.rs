//! Inspect a database without changing it, for diagnostics.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::connection::PgConnection;
use super::settings::{Connector, PostgresSettings};
use super::{hold, on_own_thread, schema};
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
        let server = Some(DatabaseServer { version, round_trip: begin.elapsed() });
        let database = match schema::check_schema(&db)? {
            0 => DatabaseState::Absent,
            _ => DatabaseState::Readable(hold::read_hold(&db)?),
        };
        Ok(DatabaseInspection { holder, database, server })
    })
}
