//! Check the database file and report a hold.

use std::path::Path;
use std::time::Duration;

use quell_store::{DatabaseInspection, DatabaseServer, DatabaseState, StoreError, StoreLocation};

use super::ConfiguredInput;
use super::finding::DoctorFinding;

/// A round trip to a server of the same network takes less. Each write of a run waits for at least two.
const SLOW_ROUND_TRIP: Duration = Duration::from_millis(20);

/// The database must open, be intact, and have a schema that this version supports.
pub(super) fn database(input: &ConfiguredInput<'_>) -> Vec<DoctorFinding> {
    match (input.loaded.config.store.location(), input.inspection()) {
        (StoreLocation::Sqlite { .. }, Err(error)) => {
            vec![DoctorFinding::fail(error.to_string(), store_error_remedy(error))]
        }
        (StoreLocation::Postgres(_), Err(error)) => {
            vec![DoctorFinding::fail(error.to_string(), server_error_remedy(error))]
        }
        (StoreLocation::Sqlite { file }, Ok(found)) => vec![database_file(&input.data_dir.join(file), found)],
        (StoreLocation::Postgres(_), Ok(found)) => found.server.iter().map(|server| on_server(server, found)).collect(),
    }
}

fn database_file(place: &Path, found: &DatabaseInspection) -> DoctorFinding {
    let place = place.display();
    match found.database {
        DatabaseState::Absent => DoctorFinding::ok(format!("{place} will be made at the first start")),
        DatabaseState::Readable(_) => DoctorFinding::ok(format!("{place} is whole")),
        DatabaseState::LockedByDaemon => DoctorFinding::warn(
            format!("{place} is kept by the daemon alone, because the disk was full when it started"),
            "restart the daemon once there is room, if other programs have to read the database",
        ),
    }
}

fn on_server(server: &DatabaseServer, found: &DatabaseInspection) -> DoctorFinding {
    let DatabaseServer { version, round_trip, .. } = server;
    let state = match found.database {
        DatabaseState::Absent => "the tables will be made at the first start",
        DatabaseState::Readable(_) | DatabaseState::LockedByDaemon => "the schema is known",
    };
    let text = format!("PostgreSQL {version}, {:.1} ms away; {state}", round_trip.as_secs_f64() * 1e3);
    if *round_trip > SLOW_ROUND_TRIP {
        return DoctorFinding::warn(
            text,
            "each message waits for several round trips: run the server closer to the daemon",
        );
    }
    DoctorFinding::ok(text)
}

fn server_error_remedy(error: &StoreError) -> &'static str {
    match error {
        StoreError::NewerServerSchema { .. } => "upgrade quell",
        StoreError::Settings(_) => "mend [store] in the configuration, or the server",
        _ => "look whether the server runs and lets this user in, with `psql` and the url of [store]",
    }
}

fn store_error_remedy(error: &StoreError) -> &'static str {
    match error {
        StoreError::Corrupt(_) => "restore it from a backup, or move it away to start with an empty one",
        StoreError::NewerSchema { .. } => "upgrade quell, or restore an older backup",
        StoreError::OlderSchema { .. } => "restore a newer backup, or move it away to start with an empty one",
        StoreError::ForeignDatabase(_) => "give quell a file of its own: url = \"sqlite:quell.db\" in [store]",
        StoreError::Locked(_) => "end the other program that has the file open",
        _ => "mend the rights of the file and of its directory, or choose another directory with QUELL_HOME",
    }
}

/// Reports a hold: it survives a restart, so people easily forget it.
pub(super) fn hold(input: &ConfiguredInput<'_>) -> Vec<DoctorFinding> {
    let Ok(found) = input.inspection() else { return Vec::new() };
    let hold = match &found.database {
        DatabaseState::LockedByDaemon => return vec![DoctorFinding::ok("the daemon knows; `quell hold` asks it")],
        DatabaseState::Readable(hold) if hold.held => hold,
        DatabaseState::Readable(_) | DatabaseState::Absent => {
            return vec![DoctorFinding::ok("off; new runs are taken")];
        }
    };
    let since = hold.since.as_ref().map(|since| format!(" since {since}")).unwrap_or_default();
    let by = hold.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let reason = hold.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    vec![DoctorFinding::warn(format!("on{since}{by}{reason}; new runs are refused"), "quell hold off")]
}
