//! `list_files`: what is in a directory, sorted, without what git ignores.

use std::ops::ControlFlow;
use std::path::Path;

use globset::{Glob, GlobBuilder, GlobMatcher};
use rustix::fs::FileType;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::tools::arguments::Arguments;
use crate::tools::confine::{Root, shown};
use crate::tools::text::quoted;
use crate::tools::walk::{Entry, Omitted, walk};
use crate::tools::{Fault, FileTool, Ground, Stop};

/// Levels shown when neither a pattern nor a depth is given.
const DEFAULT_DEPTH: usize = 2;
/// Left free for the notes at the end.
const NOTE_ROOM: usize = 300;

/// Arguments of `list_files`.
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

impl Arguments for ListFiles {
    const NAME: &'static str = "list_files";
    const ABOUT: &'static str =
        "Lists files and directories (these end in /), sorted, one path per line. What .gitignore hides is left out.";
    const EXAMPLE: &'static str = r#"{"path": "src", "pattern": "*.rs", "depth": 3}"#;
}

impl FileTool for ListFiles {
    fn subject(&self) -> &str {
        self.path.as_deref().unwrap_or(".")
    }

    fn work(self, ground: &Ground, stop: &Stop<'_>) -> Result<String, Fault> {
        let root = Root::open(ground)?;
        let start = root.relative(self.subject())?;
        let pattern = self.pattern.as_deref().map(Pattern::parse).transpose()?;
        let depth = match (self.depth, &pattern) {
            (Some(depth), _) => usize::try_from(depth.max(1)).unwrap_or(usize::MAX),
            (None, Some(_)) => usize::MAX,
            (None, None) => DEFAULT_DEPTH,
        };
        let mut listing = Listing { room: ground.output_limit.saturating_sub(NOTE_ROOM), text: String::new(), more: 0 };
        let omitted = walk(&root, &start, depth, stop, &mut |entry| {
            if pattern.as_ref().is_none_or(|p| p.matches(entry.path, &start)) {
                listing.add(entry);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(listing.finish(&start, depth, &omitted))
    }
}

/// A glob: without a slash it is matched with names, with one with paths below the start.
pub(super) struct Pattern {
    glob: GlobMatcher,
    on_names: bool,
}

impl Pattern {
    pub(super) fn parse(text: &str) -> Result<Self, Fault> {
        let bad = |e: globset::Error| Fault::told(format!("{} is not a glob: {}", quoted(text), e.kind()));
        let plain = text.strip_prefix("./").unwrap_or(text);
        let glob: Glob = GlobBuilder::new(plain).literal_separator(true).build().map_err(bad)?;
        Ok(Self { glob: glob.compile_matcher(), on_names: !plain.contains('/') })
    }

    pub(super) fn matches(&self, path: &Path, start: &Path) -> bool {
        if self.on_names {
            return path.file_name().is_some_and(|name| self.glob.is_match(name));
        }
        self.glob.is_match(path.strip_prefix(start).unwrap_or(path))
    }
}

struct Listing {
    room: usize,
    text: String,
    /// How many did not fit.
    more: usize,
}

impl Listing {
    fn add(&mut self, entry: &Entry<'_>) {
        let name = entry.path.to_string_lossy();
        let sign = match entry.kind {
            FileType::Directory => "/",
            FileType::Symlink => " (symlink)",
            FileType::RegularFile => "",
            _ => " (special file)",
        };
        if self.more > 0 || self.text.len() + name.len() + sign.len() + 1 > self.room {
            self.more += 1;
            return;
        }
        // A line break in a name must not look like a second file.
        self.text.extend(name.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }));
        self.text.push_str(sign);
        self.text.push('\n');
    }

    fn finish(mut self, start: &Path, depth: usize, omitted: &Omitted) -> String {
        if self.text.is_empty() && self.more == 0 {
            self.text = format!("[nothing to list in {}]\n", shown(start));
        }
        if self.more > 0 {
            self.text += &format!("[{} more do not fit; narrow it with path, pattern or depth]\n", self.more);
        }
        self.text += &notes(omitted);
        if depth == DEFAULT_DEPTH {
            self.text += &format!("[{depth} levels deep]\n");
        }
        self.text
    }
}

/// What a walk left out, in words.
pub(super) fn notes(omitted: &Omitted) -> String {
    let mut text = String::new();
    if omitted.directories > 0 {
        text += &format!("[{} directories could not be read or lie too deep]\n", omitted.directories);
    }
    if omitted.rest {
        text += "[the tree has too many entries; the rest was not looked at]\n";
    }
    text
}
