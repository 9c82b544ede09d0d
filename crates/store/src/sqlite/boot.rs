//! The boot number of the database, which fences off the writes of earlier daemons.
//!
//! Each start takes the next number, and writes of earlier starts are refused from then on. A start that finds the
//! database unwritable takes its number later; until then it writes nothing.

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use crate::StoreError;

/// The number found when the database was opened, and the own number once it is taken.
#[derive(Debug)]
pub(super) struct BootNumber {
    previous: i64,
    own: Option<i64>,
}

impl BootNumber {
    /// Reads the number of the previous start.
    pub(super) fn read_previous(connection: &Connection) -> Result<Self, StoreError> {
        let found = connection.query_row("SELECT number FROM boot", [], |row| row.get(0))?;
        Ok(Self { previous: found, own: None })
    }

    /// Returns the own number. Takes it now if that was not done before.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] when another start took a number in between; the database's error when it cannot be
    /// written.
    pub(super) fn claim(&mut self, connection: &mut Connection) -> Result<i64, StoreError> {
        if let Some(own) = self.own {
            return Ok(own);
        }
        // A transaction, because SQLite does not report a commit that fails at the end of a query.
        let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let next = "UPDATE boot SET number = number + 1 WHERE number = ?1 RETURNING number";
        let own: Option<i64> = step.query_row(next, params![self.previous], |row| row.get(0)).optional()?;
        step.commit()?;
        self.own = own;
        own.ok_or(StoreError::Fenced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema;

    #[test]
    fn a_start_that_waited_does_not_overtake_a_later_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("quell.db");
        let (mut waits, _) = schema::open_writer(&path).unwrap();
        let (mut later, _) = schema::open_writer(&path).unwrap();
        let mut boot = BootNumber::read_previous(&waits).unwrap();
        let own = BootNumber::read_previous(&later).unwrap().claim(&mut later).unwrap();
        assert_eq!(boot.claim(&mut waits), Err(StoreError::Fenced));
        assert_eq!(boot.claim(&mut waits), Err(StoreError::Fenced), "it was refused once only");
        assert_eq!(BootNumber::read_previous(&later).unwrap().previous, own, "the refused one has taken a number");
    }
}
