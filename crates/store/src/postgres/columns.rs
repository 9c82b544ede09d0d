//! Texts that may contain a zero byte, and columns that are parsed.

use std::borrow::Cow;
use std::error::Error;

use tokio_postgres::Row;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type};

use crate::StoreError;

/// Stands before an encoded character. It is of the private use area, so texts hardly contain it.
const ESCAPE: char = '\u{e000}';

/// A text as PostgreSQL stores it, whose texts have no zero byte: that is [`ESCAPE`] and `0`, and [`ESCAPE`] itself is
/// [`ESCAPE`] and `1`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Text<'a>(pub(super) &'a str);

impl Text<'_> {
    pub(super) fn encoded(&self) -> Cow<'_, str> {
        if !self.0.contains(['\0', ESCAPE]) {
            return Cow::Borrowed(self.0);
        }
        let mut encoded = String::with_capacity(self.0.len() + 8);
        for character in self.0.chars() {
            match character {
                '\0' => encoded.extend([ESCAPE, '0']),
                ESCAPE => encoded.extend([ESCAPE, '1']),
                other => encoded.push(other),
            }
        }
        Cow::Owned(encoded)
    }
}

impl ToSql for Text<'_> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.encoded().to_sql(ty, out)
    }

    fn accepts(ty: &Type) -> bool {
        <&str as ToSql>::accepts(ty)
    }

    tokio_postgres::types::to_sql_checked!();
}

fn decode(text: String) -> String {
    if !text.contains(ESCAPE) {
        return text;
    }
    let mut decoded = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (character, character == ESCAPE) {
            (_, true) => decoded.push(if characters.next() == Some('0') { '\0' } else { ESCAPE }),
            (other, false) => decoded.push(other),
        }
    }
    decoded
}

/// A column that was written as [`Text`].
pub(super) fn text(row: &Row, at: usize) -> Result<String, StoreError> {
    get(row, at).map(decode)
}

/// A column that was written as an optional [`Text`].
pub(super) fn optional_text(row: &Row, at: usize) -> Result<Option<String>, StoreError> {
    Ok(get::<Option<String>>(row, at)?.map(decode))
}

pub(super) fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, StoreError> {
    row.try_get(at).map_err(|error| StoreError::Corrupt(format!("column {at}: {error}")))
}

pub(super) fn parse_id<T, E: Error>(
    row: &Row,
    at: usize,
    parse: impl Fn(String) -> Result<T, E>,
) -> Result<T, StoreError> {
    parse(get(row, at)?).map_err(invalid_column)
}

/// The error for a value that this store would not have written.
pub(super) fn invalid_column(problem: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(problem.to_string())
}

pub(super) fn to_unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// A limit of rows for PostgreSQL.
pub(super) fn to_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back_as_it_was() {
        for text in ["", "plain", "nul \0 between", "\0", "\u{e000}", "\u{e000}0\0\u{e000}1", "snow \u{2603}"] {
            let encoded = Text(text).encoded().into_owned();
            assert!(!encoded.contains('\0'));
            assert_eq!(decode(encoded), text);
        }
    }
}
