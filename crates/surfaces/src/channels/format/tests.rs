//! What networks are told, whole.

mod golden;
mod hostile;
mod properties;
mod samples;
mod tags;

use super::draft;

/// True where nothing was left open at the end.
fn is_closed(source: &str) -> bool {
    draft::closed(source) == source
}
