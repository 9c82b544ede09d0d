//! Set up logging to stderr. `QUELL_LOG` sets the filter; the default is `info` for the daemon and `error` for all
//! other commands.

use std::io::IsTerminal;

use quell_client::text_format::{log_text, log_value};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::debug_fn;

pub(crate) fn init_logging(default_filter: &str) {
    let filter = EnvFilter::try_from_env("QUELL_LOG").unwrap_or_else(|_| EnvFilter::new(default_filter));
    // Values can come from anybody: escape them, so that none ends its field or its line early.
    let fields = debug_fn(|writer, field, value| match field.name() {
        "message" => write!(writer, "{}", log_text(&format!("{value:?}"))),
        name => write!(writer, "{name}={}", log_value(&format!("{value:?}"))),
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .fmt_fields(fields.delimited(" "))
        .with_writer(std::io::stderr)
        // Drop lines that cannot be written: an error on the same stream would panic in the middle of a request.
        .log_internal_errors(false)
        .with_ansi(!no_color() && std::io::stderr().is_terminal())
        .init();
}

/// True when `NO_COLOR` is set to anything (no-color.org).
pub(crate) fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}
