//! Tests of complete messages: output, hostile input, properties.

mod golden;
mod hostile;
mod html_reader;
mod properties;
mod samples;

use super::unfinished_markup;

/// True if all markup in the text is closed.
fn has_no_open_markup(source: &str) -> bool {
    unfinished_markup::close_open_markup(source) == source
}
