//! Print a unified diff, with a colour for each kind of line.

use super::{SubcommandContext, SubcommandResult};
use crate::term::OutputStyle;
use crate::text_format::strip_terminal_controls;

pub(super) fn print_diff(cx: &mut SubcommandContext<'_>, diff: &str) -> SubcommandResult<()> {
    for line in diff.lines() {
        let style = match line.as_bytes().first() {
            Some(b'+') if !line.starts_with("+++ ") => OutputStyle::Done,
            Some(b'-') if !line.starts_with("--- ") => OutputStyle::Failure,
            _ => OutputStyle::Quiet,
        };
        cx.print_styled(style, &strip_terminal_controls(line))?;
    }
    Ok(())
}
