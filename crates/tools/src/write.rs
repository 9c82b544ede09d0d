//! The `write_file` tool.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::atomic_write::AtomicWriteTarget;
use crate::confined_fs::{WorkdirRoot, quoted_path};
use crate::definition::ToolArguments;
use crate::file_tool::{FileTool, FileToolContext, FileToolError, StopFlag, failed_call};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFile {
    /// File to write, relative to the working directory. Missing directories are made.
    path: String,
    /// The whole new content.
    content: String,
}

impl ToolArguments for WriteFile {
    const NAME: &'static str = "write_file";
    const ABOUT: &'static str =
        "Writes a file: creates it, or replaces all of it. To change a part of a file, use edit_file.";
    const EXAMPLE: &'static str = r#"{"path": "notes/today.md", "content": "A line\n"}"#;
    const IS_SANDBOXED: bool = true;
}

impl FileTool for WriteFile {
    fn ledger_subject(&self) -> &str {
        &self.path
    }

    fn execute(self, context: &FileToolContext, stop: &StopFlag<'_>) -> Result<String, FileToolError> {
        stop.check()?;
        let root = WorkdirRoot::open(context)?;
        let path = root.relative_path(&self.path)?;
        if self.path.ends_with('/') {
            return Err(failed_call(format!("{} names a directory, not a file", quoted_path(&path))));
        }
        let target = AtomicWriteTarget::resolve(&root, &path)?;
        let verb = if target.exists() { "Replaced" } else { "Created" };
        target.replace_content(self.content.as_bytes(), stop)?;
        Ok(format!("{verb} {} ({} bytes)", quoted_path(&path), self.content.len()))
    }
}
