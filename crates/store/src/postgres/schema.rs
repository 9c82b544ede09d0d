//! The schema, and the migrations to it.

use super::columns::get;
use super::connection::PgConnection;
use crate::StoreError;

/// Statements from each schema to the next one, beginning with an empty database.
const MIGRATIONS: [&str; 12] = [
    include_str!("schema.sql"),
    include_str!("cluster.sql"),
    include_str!("node_spend.sql"),
    include_str!("file_changes.sql"),
    include_str!("schedules.sql"),
    include_str!("file_change_nodes.sql"),
    include_str!("api_keys.sql"),
    include_str!("responses.sql"),
    include_str!("push_targets.sql"),
    include_str!("response_bytes.sql"),
    include_str!("writer_batches.sql"),
    include_str!("holds_and_room.sql"),
];

/// The advisory lock of migrations: the bytes of `quell`, and 2.
const MIGRATION_LOCK: i64 = 0x0071_7565_6c6c_0002;

/// The oldest supported version of the server, as in its setting `server_version_num`.
const OLDEST_SERVER: i32 = 150_000;

/// Brings the database to the newest schema. Daemons that start at the same moment do it one after the other.
///
/// # Errors
/// The database has tables of another program, or a newer schema; nothing was changed then.
pub(super) fn migrate(db: &PgConnection) -> Result<(), StoreError> {
    check_server(db)?;
    db.run(&format!("BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))?;
    match migrate_in_transaction(db) {
        Ok(()) => db.run("COMMIT"),
        Err(error) => {
            db.run("ROLLBACK")?;
            Err(error)
        }
    }
}

/// Returns the server's version.
///
/// # Errors
/// The server is too old, or the database has an encoding without all characters.
pub(super) fn check_server(db: &PgConnection) -> Result<String, StoreError> {
    let sql = "SELECT current_setting('server_version'), current_setting('server_version_num')::integer,
                      current_setting('server_encoding')";
    let row = db.query_row(sql, &[])?;
    let (version, number, encoding): (String, i32, String) = (get(&row, 0)?, get(&row, 1)?, get(&row, 2)?);
    if number < OLDEST_SERVER {
        return Err(StoreError::Settings(format!(
            "the server is PostgreSQL {version}, and quell needs 15 or newer; upgrade the server"
        )));
    }
    if encoding != "UTF8" {
        return Err(StoreError::Settings(format!(
            "the database has the encoding {encoding}, which has not all characters; \
             give quell one with UTF8 (`createdb --encoding=UTF8 --template=template0 quell`)"
        )));
    }
    Ok(version)
}

/// Returns the schema of the database; 0 if a migration would make it.
///
/// # Errors
/// The database has tables of another program, or a newer schema.
pub(super) fn check_schema(db: &PgConnection) -> Result<i32, StoreError> {
    let (found, known) = (schema_version(db)?, newest_schema_version());
    if found > known {
        return Err(StoreError::NewerServerSchema { found, known });
    }
    if found == 0 && has_other_tables(db)? {
        return Err(StoreError::Settings(
            "the database has tables of another program; give quell a database of its own (`createdb quell`)"
                .to_owned(),
        ));
    }
    Ok(found)
}

/// False for a database without the tables of a cluster: an empty one, or one of an older version.
pub(super) fn has_nodes(db: &PgConnection) -> Result<bool, StoreError> {
    Ok(!db.query_row("SELECT to_regclass('nodes') IS NULL", &[])?.get::<_, bool>(0))
}

fn migrate_in_transaction(db: &PgConnection) -> Result<(), StoreError> {
    let found = check_schema(db)?;
    if found == 0 {
        db.run("CREATE TABLE quell_schema (only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row), version integer NOT NULL); \
                INSERT INTO quell_schema (version) VALUES (0)")?;
    }
    for (number, statements) in (1..).zip(MIGRATIONS).skip_while(|(number, _)| *number <= found) {
        db.run(statements)?;
        db.run(&format!("UPDATE quell_schema SET version = {number}"))?;
        tracing::info!(schema = number, "database migrated");
    }
    Ok(())
}

/// 0 for a database without the tables of Quell.
fn schema_version(db: &PgConnection) -> Result<i32, StoreError> {
    if db.query_row("SELECT to_regclass('quell_schema') IS NULL", &[])?.get(0) {
        return Ok(0);
    }
    Ok(db.query_row("SELECT version FROM quell_schema", &[])?.get(0))
}

fn has_other_tables(db: &PgConnection) -> Result<bool, StoreError> {
    db.exists("SELECT 1 FROM pg_tables WHERE schemaname = current_schema() LIMIT 1", &[])
}

fn newest_schema_version() -> i32 {
    i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX)
}
