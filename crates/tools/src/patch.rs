//! The `apply_patch` tool: change several files with one patch, all or none.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use quell_kernel::patch::{PatchChunk, PatchOperation, apply_chunks, parse_patch};
use quell_scope::Cancelled;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::confined_fs::quoted_path;
use crate::definition::ToolArguments;
use crate::edit::read_whole_file;
use crate::file_edit::{EditPlan, EditedWorkdir, FileEditTool, PlannedWrite, execute_file_edit};
use crate::file_tool::{FileToolError, failed_call};
use crate::text::quoted;
use crate::tool::{ContextTool, ToolContext, ToolOutput};

/// Paths in the ledger row of a call.
const NAMED_PATHS: usize = 3;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ApplyPatch {
    /// The whole patch, from `*** Begin Patch` to `*** End Patch`. Paths are relative to the working directory.
    input: String,
}

impl ToolArguments for ApplyPatch {
    const NAME: &'static str = "apply_patch";
    const ABOUT: &'static str = "Changes files with a patch: `*** Begin Patch`, then for each file `*** Add File: PATH` with its lines after `+`, \
                                 `*** Delete File: PATH`, or `*** Update File: PATH` (with `*** Move to: PATH` below it to move it) and changed places: \
                                 `@@` with a line above the place, then lines that begin with a space (unchanged), `-` or `+`; at last `*** End Patch`. \
                                 Give three unchanged lines around a change. All files change, or none.";
    const EXAMPLE: &'static str = r#"{"input": "*** Begin Patch\n*** Update File: src/main.rs\n@@ fn main() {\n-    let a = 1;\n+    let a = 2;\n*** End Patch"}"#;
    const IS_SANDBOXED: bool = true;
}

impl ContextTool for ApplyPatch {
    async fn call(self, cx: &mut ToolContext<'_>) -> Result<ToolOutput, Cancelled> {
        // waits: raced in `execute_file_edit`, with the scope of the context.
        execute_file_edit(self, cx).await
    }
}

impl FileEditTool for ApplyPatch {
    fn edited_subject(&self) -> String {
        let Ok(operations) = parse_patch(&self.input) else { return String::new() };
        let paths: Vec<_> = operations.iter().take(NAMED_PATHS).map(|operation| quoted(path_of(operation))).collect();
        let more = if operations.len() > NAMED_PATHS { " …" } else { "" };
        paths.join(" ") + more
    }

    fn plan(self, files: &EditedWorkdir<'_>) -> Result<EditPlan, FileToolError> {
        let operations = parse_patch(&self.input)
            .map_err(|error| failed_call(format!("the patch cannot be read: {error}; nothing was changed")))?;
        let mut plan = PatchPlan::default();
        for operation in operations {
            plan.add(operation, files)?;
        }
        Ok(EditPlan { writes: plan.writes, text: format!("The patch was applied:{}", plan.summary) })
    }
}

fn path_of(operation: &PatchOperation) -> &str {
    match operation {
        PatchOperation::Add { path, .. } | PatchOperation::Delete { path } | PatchOperation::Update { path, .. } => {
            path
        }
    }
}

#[derive(Default)]
struct PatchPlan {
    writes: Vec<PlannedWrite>,
    summary: String,
    /// The files that the patch changes; each at most once, so that their order means nothing.
    seen: BTreeSet<PathBuf>,
}

impl PatchPlan {
    fn add(&mut self, operation: PatchOperation, files: &EditedWorkdir<'_>) -> Result<(), FileToolError> {
        match operation {
            PatchOperation::Add { path, content } => {
                let write = files.plan_write(&path, Some(content.into_bytes()), None)?;
                if !write.is_new() {
                    return Err(failed_call(format!(
                        "{} exists already: use *** Update File to change it; nothing was changed",
                        write.quoted_path()
                    )));
                }
                self.push('A', write)
            }
            PatchOperation::Delete { path } => self.delete(&path, files),
            PatchOperation::Update { path, move_to, chunks } => self.update(&path, move_to, &chunks, files),
        }
    }

    fn delete(&mut self, path: &str, files: &EditedWorkdir<'_>) -> Result<(), FileToolError> {
        let write = files.plan_write(path, None, None)?;
        if write.is_new() {
            return Err(failed_call(format!("{} does not exist; nothing was changed", write.quoted_path())));
        }
        self.push('D', write)
    }

    fn update(
        &mut self,
        path: &str,
        move_to: Option<String>,
        chunks: &[PatchChunk],
        files: &EditedWorkdir<'_>,
    ) -> Result<(), FileToolError> {
        let relative = files.root.relative_path(path)?;
        let opened = files.root.open_file(&relative)?;
        let mode = opened.file.metadata().map(|file| file.mode()).ok();
        let text = read_whole_file(opened, &relative, files.stop)?;
        let edited = apply_chunks(&text, chunks).map_err(|error| {
            failed_call(format!("the patch does not fit {}: {error}\nNothing was changed.", quoted_path(&relative)))
        })?;
        let Some(target) = move_to else {
            let write = files.plan_write(path, Some(edited.into_bytes()), None)?;
            write.check_replaces(&text)?;
            return self.push('M', write);
        };
        let moved = files.plan_write(&target, Some(edited.into_bytes()), mode)?;
        if !moved.is_new() {
            return Err(failed_call(format!(
                "{} exists already, so {} cannot be moved there; nothing was changed",
                moved.quoted_path(),
                quoted_path(&relative)
            )));
        }
        self.push('A', moved)?;
        self.delete(path, files)
    }

    fn push(&mut self, kind: char, write: PlannedWrite) -> Result<(), FileToolError> {
        if !self.seen.insert(write.real_path().to_owned()) {
            return Err(failed_call(format!(
                "the patch names {} twice: put all changes of a file into one part; nothing was changed",
                write.quoted_path()
            )));
        }
        let _ = write!(self.summary, "\n{kind} {}", write.quoted_path());
        self.writes.push(write);
        Ok(())
    }
}
