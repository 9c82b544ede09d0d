//! The database and what it says of the hold.

use quell_engine::store::{Database, Inspection, StoreError};

use super::Setup;
use super::finding::Finding;

/// Opens, is whole, and is not of a newer version.
pub(super) fn database(setup: &Setup<'_>) -> Vec<Finding> {
    let place = setup.data_dir.join(setup.loaded.store_file());
    let place = place.display();
    let finding = match setup.inspection() {
        Ok(Inspection { database: Database::Absent, .. }) => {
            Finding::ok(format!("{place} will be made at the first start"))
        }
        Ok(Inspection { database: Database::Whole(_), .. }) => Finding::ok(format!("{place} is whole")),
        Ok(Inspection { database: Database::Kept, .. }) => Finding::warn(
            format!("{place} is kept by the daemon alone, because the disk was full when it started"),
            "restart the daemon once there is room, if other programs have to read the database",
        ),
        Err(error) => Finding::fail(error.to_string(), remedy(error)),
    };
    vec![finding]
}

fn remedy(error: &StoreError) -> &'static str {
    match error {
        StoreError::Corrupt(_) => "restore it from a backup, or move it away to start with an empty one",
        StoreError::Newer { .. } => "upgrade quell, or restore an older backup",
        StoreError::Foreign(_) => "give quell a file of its own: url = \"sqlite:quell.db\" in [store]",
        StoreError::Locked(_) => "end the other program that has the file open",
        _ => "mend the rights of the file and of its directory, or choose another directory with QUELL_HOME",
    }
}

/// A hold survives a restart, so it is easily forgotten.
pub(super) fn hold(setup: &Setup<'_>) -> Vec<Finding> {
    let Ok(found) = setup.inspection() else { return Vec::new() };
    let hold = match &found.database {
        Database::Kept => return vec![Finding::ok("the daemon knows; `quell hold` asks it")],
        Database::Whole(hold) if hold.held => hold,
        Database::Whole(_) | Database::Absent => return vec![Finding::ok("off; new runs are taken")],
    };
    let since = hold.since.as_ref().map(|since| format!(" since {since}")).unwrap_or_default();
    let by = hold.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let reason = hold.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    vec![Finding::warn(format!("on{since}{by}{reason}; new runs are refused"), "quell hold off")]
}
