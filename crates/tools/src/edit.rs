//! The `edit_file` tool: replace a text that stands in one place, or say what does not match.

use std::fmt::Write as _;
use std::path::Path;

use quell_kernel::text_edit::{
    EditProblem, EditedText, MAX_TOLERANT_BYTES, MatchTolerance, NearestLines, ReplaceMode, TextEdit, edit_text,
    nearest_lines,
};
use quell_scope::Cancelled;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::confined_fs::{OpenedFile, quoted_path};
use crate::definition::ToolArguments;
use crate::file_edit::{EditPlan, EditedWorkdir, FileEditTool, execute_file_edit};
use crate::file_tool::{FileToolError, StopFlag, failed_call, read_at_most};
use crate::text::{quoted, truncate};
use crate::tool::{ContextTool, ToolContext, ToolOutput};

/// The largest file that can be edited. It is held in memory twice: before and after.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;
/// The maximum size of the file after the edit.
const MAX_NEW_BYTES: usize = 64 * 1024 * 1024;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EditFile {
    /// File to edit, relative to the working directory.
    path: String,
    /// The text to replace, exactly as it is in the file, with enough around it to stand there only once.
    old: String,
    /// What to put there instead.
    new: String,
    /// True to replace every place where `old` stands.
    all: Option<bool>,
}

impl ToolArguments for EditFile {
    const NAME: &'static str = "edit_file";
    const ABOUT: &'static str = "Replaces a piece of text in a file. The old text must match exactly and stand there only once, unless all is true.";
    const EXAMPLE: &'static str = r#"{"path": "src/main.rs", "old": "let a = 1;", "new": "let a = 2;"}"#;
    const IS_SANDBOXED: bool = true;
}

impl ContextTool for EditFile {
    async fn call(self, cx: &mut ToolContext<'_>) -> Result<ToolOutput, Cancelled> {
        // waits: raced in `execute_file_edit`, with the scope of the context.
        execute_file_edit(self, cx).await
    }
}

impl FileEditTool for EditFile {
    fn edited_subject(&self) -> String {
        quoted(&self.path)
    }

    fn plan(self, files: &EditedWorkdir<'_>) -> Result<EditPlan, FileToolError> {
        if self.old.is_empty() {
            return Err(failed_call("`old` is empty: give the text to replace, or use write_file for a whole file"));
        }
        if self.old == self.new {
            return Err(failed_call("`old` and `new` are the same, so there is nothing to change"));
        }
        let path = files.root.relative_path(&self.path)?;
        let text = read_whole_file(files.root.open_file(&path)?, &path, files.stop)?;
        let mode = if self.all.unwrap_or(false) { ReplaceMode::Everywhere } else { ReplaceMode::Unique };
        let edit = TextEdit { old: &self.old, new: &self.new, mode };
        let edited = edit_text(&text, edit, MAX_NEW_BYTES)
            .map_err(|problem| failed_call(problem_message(&problem, &text, &self.old, &path)))?;
        files.stop.check()?;
        let message = success_message(&edited, mode, &path);
        let write = files.plan_write(&self.path, Some(edited.text.into_bytes()), None)?;
        write.check_replaces(&text)?;
        Ok(EditPlan { writes: vec![write], text: message })
    }
}

/// Reads a text file that is going to be changed.
pub(super) fn read_whole_file(source: OpenedFile, path: &Path, stop: &StopFlag<'_>) -> Result<String, FileToolError> {
    let too_large =
        || failed_call(format!("{} is too large to edit: more than {MAX_FILE_BYTES} bytes", quoted_path(path)));
    if source.bytes > MAX_FILE_BYTES {
        return Err(too_large());
    }
    let read = read_at_most(&source.file, MAX_FILE_BYTES, stop);
    stop.check()?;
    let bytes = read.map_err(|e| failed_call(format!("{} cannot be read: {e}", quoted_path(path))))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(too_large());
    }
    String::from_utf8(bytes).map_err(|_| {
        failed_call(format!("{} is not valid UTF-8 text, so it cannot be edited this way", quoted_path(path)))
    })
}

fn success_message(edited: &EditedText, mode: ReplaceMode, path: &Path) -> String {
    let places = if edited.places == 1 { "1 place".to_owned() } else { format!("{} places", edited.places) };
    let at = if mode == ReplaceMode::Everywhere { "first at" } else { "at" };
    let mut out = format!("Replaced {places} in {} ({at} line {})", quoted_path(path), edited.first_line);
    if edited.tolerance != MatchTolerance::Exact {
        let _ = write!(out, ". `old` matched only after {}", edited.tolerance.description());
    }
    out
}

fn problem_message(problem: &EditProblem, text: &str, old: &str, path: &Path) -> String {
    let path = quoted_path(path);
    match problem {
        EditProblem::TooLarge { places } => {
            format!("`old` stands {places} times or more: the file would become too large")
        }
        EditProblem::Ambiguous { lines, places, tolerance } => {
            let lines = lines.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let how = match tolerance {
                MatchTolerance::Exact => String::new(),
                tolerant => format!(" if it is searched {}", tolerant.description()),
            };
            format!(
                "`old` stands {places} times in {path} (lines {lines}){how}: give more of the text around it so that it is \
                 unique, or set all to true"
            )
        }
        EditProblem::NotFound => {
            let compared = truncate(text, MAX_TOLERANT_BYTES);
            not_found_message(nearest_lines(compared, old).as_ref(), &path)
        }
    }
}

/// Says that `old` was not found and shows the nearest match in the file.
fn not_found_message(nearest: Option<&NearestLines>, path: &str) -> String {
    let mut out = format!("`old` does not stand in {path}; nothing was changed.");
    let Some(NearestLines { numbered, first_difference }) = nearest else {
        out.push_str(" No line of it comes near; read the file first.");
        return out;
    };
    let _ = write!(out, " The nearest lines, with their numbers, are:\n{numbered}");
    match first_difference {
        Some(line) => {
            let _ = write!(out, "The first line of `old` that differs there is: {line}");
        }
        None => out.push_str("They differ in white space only, but not in the same way on all lines."),
    }
    out
}
