//! `write_file`: the whole content of a file, new or replaced.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::tools::arguments::Arguments;
use crate::tools::confine::{Root, shown};
use crate::tools::replace::Target;
use crate::tools::{Fault, FileTool, Ground, Stop};

/// Arguments of `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFile {
    /// File to write, relative to the working directory. Missing directories are made.
    path: String,
    /// The whole new content.
    content: String,
}

impl Arguments for WriteFile {
    const NAME: &'static str = "write_file";
    const ABOUT: &'static str =
        "Writes a file: creates it, or replaces all of it. To change a part of a file, use edit_file.";
    const EXAMPLE: &'static str = r#"{"path": "notes/today.md", "content": "A line\n"}"#;
}

impl FileTool for WriteFile {
    fn subject(&self) -> &str {
        &self.path
    }

    fn work(self, ground: &Ground, stop: &Stop<'_>) -> Result<String, Fault> {
        stop.check()?;
        let root = Root::open(ground)?;
        let path = root.relative(&self.path)?;
        if self.path.ends_with('/') {
            return Err(Fault::told(format!("{} names a directory, not a file", shown(&path))));
        }
        let target = Target::find(&root, &path)?;
        let verb = if target.exists() { "Replaced" } else { "Created" };
        target.fill(self.content.as_bytes(), stop)?;
        Ok(format!("{verb} {} ({} bytes)", shown(&path), self.content.len()))
    }
}
