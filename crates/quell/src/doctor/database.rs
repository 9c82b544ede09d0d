//! Check the database file and report a hold.

use quell_store::StoreError;
use quell_store::sqlite::{DatabaseInspection, DatabaseState};

use super::ConfiguredInput;
use super::finding::DoctorFinding;

/// The database must open, be intact, and have a schema that this version supports.
pub(super) fn database(input: &ConfiguredInput<'_>) -> Vec<DoctorFinding> {
    let place = input.data_dir.join(input.loaded.store_file());
    let place = place.display();
    vec![match input.inspection() {
        Ok(DatabaseInspection { database: DatabaseState::Absent, .. }) => {
            DoctorFinding::ok(format!("{place} will be made at the first start"))
        }
        Ok(DatabaseInspection { database: DatabaseState::Readable(_), .. }) => {
            DoctorFinding::ok(format!("{place} is whole"))
        }
        Ok(DatabaseInspection { database: DatabaseState::LockedByDaemon, .. }) => DoctorFinding::warn(
            format!("{place} is kept by the daemon alone, because the disk was full when it started"),
            "restart the daemon once there is room, if other programs have to read the database",
        ),
        Err(error) => DoctorFinding::fail(error.to_string(), store_error_remedy(error)),
    }]
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
