//! The `list_files` tool.

use std::ops::ControlFlow;
use std::path::Path;

use quell_kernel::call_batch::CallConcurrency;
use rustix::fs::FileType;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::confined_fs::{WorkdirRoot, quoted_path};
use crate::definition::ToolArguments;
use crate::file_tool::{FileTool, FileToolContext, FileToolError, StopFlag};
use crate::glob_pattern::GlobPattern;
use crate::walk::{WalkEntry, WalkOmissions, walk};

/// Levels listed when neither a pattern nor a depth is given.
const DEFAULT_DEPTH: usize = 2;
/// Bytes reserved for the notes at the end.
const NOTE_ROOM: usize = 300;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListFiles {
    /// Directory to list, relative to the working directory; the working directory itself when absent.
    path: Option<String>,
    /// Glob that a file must match, such as `*.rs` (any directory) or `src/**/*.rs` (from `path`).
    pattern: Option<String>,
    /// How many levels deep; 2 when absent, without end when there is a pattern.
    depth: Option<u64>,
}

impl ToolArguments for ListFiles {
    const NAME: &'static str = "list_files";
    const ABOUT: &'static str =
        "Lists files and directories (these end in /), sorted, one path per line. What .gitignore hides is left out.";
    const EXAMPLE: &'static str = r#"{"path": "src", "pattern": "*.rs", "depth": 3}"#;
    const IS_SANDBOXED: bool = true;
    const CONCURRENCY: CallConcurrency = CallConcurrency::Concurrent;
}

impl FileTool for ListFiles {
    fn ledger_subject(&self) -> &str {
        self.path.as_deref().unwrap_or(".")
    }

    fn execute(self, context: &FileToolContext, stop: &StopFlag<'_>) -> Result<String, FileToolError> {
        let root = WorkdirRoot::open(context)?;
        let start = root.relative_path(self.ledger_subject())?;
        let pattern = self.pattern.as_deref().map(GlobPattern::parse).transpose()?;
        let depth = match (self.depth, &pattern) {
            (Some(depth), _) => usize::try_from(depth.max(1)).unwrap_or(usize::MAX),
            (None, Some(_)) => usize::MAX,
            (None, None) => DEFAULT_DEPTH,
        };
        let mut listing =
            FileListing { room: context.output_limit.saturating_sub(NOTE_ROOM), text: String::new(), omitted_count: 0 };
        let omitted = walk(&root, &start, depth, stop, &mut |entry| {
            if pattern.as_ref().is_none_or(|p| p.matches(entry.path, &start)) {
                listing.add(entry);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(listing.into_text(&start, depth, &omitted))
    }
}

struct FileListing {
    room: usize,
    text: String,
    omitted_count: usize,
}

impl FileListing {
    fn add(&mut self, entry: &WalkEntry<'_>) {
        let name = entry.path.to_string_lossy();
        let sign = match entry.kind {
            FileType::Directory => "/",
            FileType::Symlink => " (symlink)",
            FileType::RegularFile => "",
            _ => " (special file)",
        };
        if self.omitted_count > 0 || self.text.len() + name.len() + sign.len() + 1 > self.room {
            self.omitted_count += 1;
            return;
        }
        // A line break in a name must not look like a second file.
        self.text.extend(name.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }));
        self.text.push_str(sign);
        self.text.push('\n');
    }

    fn into_text(mut self, start: &Path, depth: usize, omitted: &WalkOmissions) -> String {
        if self.text.is_empty() && self.omitted_count == 0 {
            self.text = format!("[nothing to list in {}]\n", quoted_path(start));
        }
        if self.omitted_count > 0 {
            self.text += &format!("[{} more do not fit; narrow it with path, pattern or depth]\n", self.omitted_count);
        }
        self.text += &omission_notes(omitted);
        if depth == DEFAULT_DEPTH {
            self.text += &format!("[{depth} levels deep]\n");
        }
        self.text
    }
}

pub(super) fn omission_notes(omitted: &WalkOmissions) -> String {
    let mut text = String::new();
    if omitted.directories > 0 {
        text += &format!("[{} directories could not be read or lie too deep]\n", omitted.directories);
    }
    if omitted.has_more {
        text += "[the tree has too many entries; the rest was not looked at]\n";
    }
    text
}
