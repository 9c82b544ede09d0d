//! The `write_file` tool.

use quell_scope::Cancelled;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::definition::ToolArguments;
use crate::file_edit::{EditPlan, EditedWorkdir, FileEditTool, execute_file_edit};
use crate::file_tool::FileToolError;
use crate::text::quoted;
use crate::tool::{ContextTool, ToolContext, ToolOutput};

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

impl ContextTool for WriteFile {
    async fn call(self, cx: &mut ToolContext<'_>) -> Result<ToolOutput, Cancelled> {
        // waits: raced in `execute_file_edit`, with the scope of the context.
        execute_file_edit(self, cx).await
    }
}

impl FileEditTool for WriteFile {
    fn edited_subject(&self) -> String {
        quoted(&self.path)
    }

    fn plan(self, files: &EditedWorkdir<'_>) -> Result<EditPlan, FileToolError> {
        let bytes = self.content.len();
        let write = files.plan_write(&self.path, Some(self.content.into_bytes()), None)?;
        let verb = if write.is_new() { "Created" } else { "Replaced" };
        let text = format!("{verb} {} ({bytes} bytes)", write.quoted_path());
        Ok(EditPlan { writes: vec![write], text })
    }
}
