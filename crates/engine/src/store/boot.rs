//! The number of a start. Each start takes the next one, and writers of earlier starts are refused from then on. A start that
//! finds the database unwritable takes its number later; until then it writes nothing.

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::error::StoreError;

/// The number that was found when the database was opened, and the own one once it is taken.
#[derive(Debug)]
pub(super) struct Boot {
    found: i64,
    own: Option<i64>,
}

impl Boot {
    /// Reads the number of the last start.
    pub(super) fn find(connection: &Connection) -> Result<Self, StoreError> {
        let found = connection.query_row("SELECT number FROM boot", [], |row| row.get(0))?;
        Ok(Self { found, own: None })
    }

    /// The own number, taken now if it was not before.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] when another start took one since this one looked; the database's error when it cannot be written.
    pub(super) fn take(&mut self, connection: &mut Connection) -> Result<i64, StoreError> {
        if let Some(own) = self.own {
            return Ok(own);
        }
        // A transaction, because a commit that fails at the end of a query is not told.
        let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let next = "UPDATE boot SET number = number + 1 WHERE number = ?1 RETURNING number";
        let own: Option<i64> = step.query_row(next, params![self.found], |row| row.get(0)).optional()?;
        step.commit()?;
        self.own = own;
        own.ok_or(StoreError::Fenced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::schema;

    #[test]
    fn a_start_that_waited_does_not_overtake_a_later_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("quell.db");
        let (mut waits, _) = schema::open_writer(&path).unwrap();
        let (mut later, _) = schema::open_writer(&path).unwrap();
        let mut boot = Boot::find(&waits).unwrap();
        let own = Boot::find(&later).unwrap().take(&mut later).unwrap();
        assert_eq!(boot.take(&mut waits), Err(StoreError::Fenced));
        assert_eq!(boot.take(&mut waits), Err(StoreError::Fenced), "it was refused once only");
        assert_eq!(Boot::find(&later).unwrap().found, own, "the refused one has taken a number");
    }
}
