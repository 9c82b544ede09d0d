//! Cursors of lists: opaque outside, the number of the last row that was given out inside.

use super::error::StoreError;

/// Which list a cursor belongs to, so that one of another list is refused instead of misread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listing {
    Runs,
    Sessions,
    History,
    Notes,
    Senders,
}

impl Listing {
    fn mark(self) -> char {
        match self {
            Self::Runs => 'r',
            Self::Sessions => 's',
            Self::History => 'h',
            Self::Notes => 'n',
            Self::Senders => 'w',
        }
    }

    /// The number below which the page begins.
    pub(super) fn before(self, cursor: Option<&str>) -> Result<i64, StoreError> {
        let Some(cursor) = cursor else { return Ok(i64::MAX) };
        let digits = cursor.strip_prefix(self.mark()).ok_or(StoreError::BadCursor)?;
        // The length and the lower case are checked by comparing with what would have been given out.
        let number = i64::from_str_radix(digits, 16).map_err(|_| StoreError::BadCursor)?;
        if number > 0 && self.cursor(number) == cursor { Ok(number) } else { Err(StoreError::BadCursor) }
    }

    /// Cuts rows, of which one more than `limit` was asked for, to the page and its cursor.
    pub(super) fn page<T>(self, mut rows: Vec<(i64, T)>, limit: usize) -> (Vec<T>, Option<String>) {
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(|(number, _)| self.cursor(*number));
        (rows.into_iter().map(|(_, row)| row).collect(), next)
    }

    fn cursor(self, number: i64) -> String {
        format!("{}{number:016x}", self.mark())
    }
}

/// How many rows to ask for so that it shows whether there are more.
pub(super) fn ask_for(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
}
