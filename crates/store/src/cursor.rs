//! Encode, parse and check the cursors of paged lists: the number of the last returned row, opaque to clients.

use crate::{StoreError, StorePage};

/// The list that a cursor belongs to, so that a cursor of another list is refused instead of misread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PagedList {
    Runs,
    Sessions,
    History,
    Notes,
    Senders,
}

impl PagedList {
    fn prefix(self) -> char {
        match self {
            Self::Runs => 'r',
            Self::Sessions => 's',
            Self::History => 'h',
            Self::Notes => 'n',
            Self::Senders => 'w',
        }
    }

    /// Returns the number below which the page begins.
    pub(crate) fn parse_cursor(self, cursor: Option<&str>) -> Result<i64, StoreError> {
        let Some(cursor) = cursor else { return Ok(i64::MAX) };
        let digits = cursor.strip_prefix(self.prefix()).ok_or(StoreError::BadCursor)?;
        // Formatting the number again checks length and lower case.
        let number = i64::from_str_radix(digits, 16).map_err(|_| StoreError::BadCursor)?;
        if number > 0 && self.format_cursor(number) == cursor { Ok(number) } else { Err(StoreError::BadCursor) }
    }

    /// Splits off the extra row that was queried to learn whether there is a next page. Returns the page and its
    /// cursor.
    pub(crate) fn split_page<T>(self, mut rows: Vec<(i64, T)>, limit: usize) -> StorePage<T> {
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(|(number, _)| self.format_cursor(*number));
        (rows.into_iter().map(|(_, row)| row).collect(), next)
    }

    /// As [`PagedList::split_page`], each row with the cursor of a page that begins behind it.
    pub(crate) fn split_page_with_cursors<T>(self, rows: Vec<(i64, T)>, limit: usize) -> StorePage<(T, String)> {
        let with_cursor = |(number, row)| (number, (row, self.format_cursor(number)));
        self.split_page(rows.into_iter().map(with_cursor).collect(), limit)
    }

    fn format_cursor(self, number: i64) -> String {
        format!("{}{number:016x}", self.prefix())
    }
}

/// One row more than the page, to learn whether there is a next page.
pub(crate) fn limit_plus_one(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1)
}
