//! Tools that change files: plan all writes, keep what they replace, then write.
//!
//! Nothing is written before the files as they were are stored, so that the changes of a run can be undone even if the
//! daemon dies in between.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;

use quell_scope::{Cancelled, Point};
use sha2::{Digest, Sha256};

use crate::atomic_write::AtomicWriteTarget;
use crate::confined_fs::{OpenedFile, WorkdirRoot, quoted_path};
use crate::definition::ToolArguments;
use crate::file_diff::FileDiff;
use crate::file_tool::{FileToolContext, FileToolError, StopFlag, StoppableReader, failed_call, failed_output};
use crate::tool::{ToolContext, ToolOutput};

/// A file that is replaced is read and hashed, which takes about a second for this much, while other writes to the
/// workdir wait.
const MAX_REPLACED_BYTES: u64 = 256 << 20;
/// The largest content that is kept for an undo.
pub(crate) const MAX_KEPT_FILE_BYTES: u64 = 1024 * 1024;

/// A file that a call is about to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedFile {
    pub workdir: PathBuf,
    /// Without symlinks: relative to the workdir, or absolute outside of it.
    pub path: PathBuf,
    /// The user that files of the agent get, if it is not that of the daemon.
    pub owner: Option<u32>,
    /// `None`: there is no file yet.
    pub before: Option<ReplacedFile>,
    /// SHA-256 of the new content, hexadecimal. `None`: the file is deleted.
    pub after_sha256: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplacedFile {
    /// SHA-256 of the content, hexadecimal.
    pub sha256: String,
    /// The permission bits.
    pub mode: u32,
    /// `None` if it has more than [`MAX_KEPT_FILE_BYTES`].
    pub content: Option<Vec<u8>>,
}

pub type BackupFuture<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// Keeps files before a call changes them.
pub trait FileBackup: Send + Sync {
    /// Stores what the call replaces. The error says why that is impossible; nothing is written then.
    ///
    /// # Cancel safety
    /// Safe to drop: changes that were stored and not made are no changes for an undo.
    fn keep_files(&self, files: Vec<ChangedFile>) -> BackupFuture<'_>;
}

/// The arguments of a tool that changes files.
pub(crate) trait FileEditTool: ToolArguments {
    /// The object of the call, for its ledger row.
    fn edited_subject(&self) -> String;

    /// Decides what is written, and checks every file. Nothing is written yet.
    fn plan(self, files: &EditedWorkdir<'_>) -> Result<EditPlan, FileToolError>;
}

/// What a call is going to write.
pub(crate) struct EditPlan {
    pub(crate) writes: Vec<PlannedWrite>,
    /// The result for the model.
    pub(crate) text: String,
}

/// One file that a call is going to change.
pub(crate) struct PlannedWrite {
    target: AtomicWriteTarget,
    /// The path as the model wrote it.
    shown_path: PathBuf,
    real_path: PathBuf,
    before: Option<ReplacedFile>,
    /// `None`: the file is deleted.
    after: Option<Vec<u8>>,
}

/// The workdir of a call that changes files.
pub(crate) struct EditedWorkdir<'a> {
    pub(crate) root: WorkdirRoot,
    pub(crate) stop: &'a StopFlag<'a>,
}

impl EditedWorkdir<'_> {
    /// Plans a new content of a file; `None` deletes it. `mode` is that of a file that was moved here.
    pub(crate) fn plan_write(
        &self,
        path: &str,
        after: Option<Vec<u8>>,
        mode: Option<u32>,
    ) -> Result<PlannedWrite, FileToolError> {
        self.stop.check()?;
        let shown_path = self.root.relative_path(path)?;
        if path.ends_with('/') {
            return Err(failed_call(format!("{} names a directory, not a file", quoted_path(&shown_path))));
        }
        let mut target = AtomicWriteTarget::resolve(&self.root, &shown_path)?;
        let before = match target.open_existing()? {
            Some(opened) => {
                let opened = self.root.check_not_protected(&shown_path, opened)?;
                Some(self.read_replaced(opened, target.mode().unwrap_or_default(), &shown_path)?)
            }
            None => None,
        };
        if let Some(mode) = mode.filter(|_| before.is_none()) {
            target.set_mode(mode);
        }
        let real_path = target.real_path(&self.root)?;
        Ok(PlannedWrite { target, shown_path, real_path, before, after })
    }

    fn read_replaced(
        &self,
        opened: OpenedFile,
        mode: u32,
        path: &std::path::Path,
    ) -> Result<ReplacedFile, FileToolError> {
        use std::io::Read as _;

        let failed = |e: std::io::Error| failed_call(format!("{} cannot be read: {e}", quoted_path(path)));
        let check_size = |bytes: u64| match bytes {
            0..=MAX_REPLACED_BYTES => Ok(()),
            _ => Err(failed_call(format!(
                "{} was not changed: it has more than {MAX_REPLACED_BYTES} bytes, and this tool reads what it replaces. \
                 Delete it with `shell`, or write another file",
                quoted_path(path)
            ))),
        };
        check_size(opened.bytes)?;
        let mut read_bytes = 0_u64;
        let (mut hasher, mut content) = (Sha256::new(), Some(Vec::new()));
        let mut reader = StoppableReader { source: &opened.file, stop: self.stop };
        let mut buffer = vec![0; crate::file_tool::READ_CHUNK_BYTES];
        loop {
            let got = reader.read(&mut buffer);
            self.stop.check()?;
            let piece = &buffer[..got.map_err(failed)?];
            if piece.is_empty() {
                break;
            }
            // It may grow meanwhile.
            read_bytes += piece.len() as u64;
            check_size(read_bytes)?;
            hasher.update(piece);
            let is_kept = |kept: &Vec<u8>| (kept.len() + piece.len()) as u64 <= MAX_KEPT_FILE_BYTES;
            content = content.filter(is_kept);
            if let Some(kept) = &mut content {
                kept.extend_from_slice(piece);
            }
        }
        Ok(ReplacedFile { sha256: to_hex(&hasher.finalize()), mode, content })
    }
}

impl PlannedWrite {
    pub(crate) fn is_new(&self) -> bool {
        self.before.is_none()
    }

    /// Refuses if the file is not the one that was read before.
    pub(crate) fn check_replaces(&self, text: &str) -> Result<(), FileToolError> {
        let is_same = self.before.as_ref().is_some_and(|before| before.sha256 == sha256_hex(text.as_bytes()));
        if is_same { Ok(()) } else { Err(failed_call(format!("{} changed meanwhile; try again", self.quoted_path()))) }
    }

    pub(crate) fn quoted_path(&self) -> String {
        quoted_path(&self.shown_path)
    }

    pub(crate) fn real_path(&self) -> &std::path::Path {
        &self.real_path
    }

    fn changed_file(&self, root: &WorkdirRoot) -> ChangedFile {
        ChangedFile {
            workdir: root.workdir().to_owned(),
            path: self.real_path.clone(),
            owner: root.owner,
            before: self.before.clone(),
            after_sha256: self.after.as_deref().map(sha256_hex),
        }
    }

    fn diff(&self) -> FileDiff<'_> {
        FileDiff {
            path: &self.shown_path,
            before: self.before.as_ref().map(|before| before.content.as_deref()),
            after: self.after.as_deref(),
        }
    }
}

/// Executes a call that changes files.
pub(crate) async fn execute_file_edit<T: FileEditTool>(
    tool: T,
    cx: &mut ToolContext<'_>,
) -> Result<ToolOutput, Cancelled> {
    let context = FileToolContext::of_call(cx);
    let label = format!("{} {}", T::NAME, tool.edited_subject());
    let guard = cx.scope.race(Point::WorkdirLock, cx.toolbox.workdir_locks().lock(cx.workdir)).await?;
    let plan = move |flag: &AtomicBool| plan_edit(tool, &context, &StopFlag(flag));
    let (plan, changed) = match cx.scope.blocking(Point::Blocking, &label, plan).await? {
        Ok(planned) => planned,
        Err(error) => return failed_output(cx, error),
    };
    if let Err(problem) = cx.scope.race(Point::FileBackup, cx.file_backup.keep_files(changed)).await? {
        let text = format!("nothing was written, because what it replaces has to be stored first, and {problem}");
        return Ok(ToolOutput::error(text));
    }
    let write = move |flag: &AtomicBool| {
        // Until the thread is done, even if a forced stop drops this call.
        let _guard = guard;
        write_plan(plan, &StopFlag(flag))
    };
    match cx.scope.blocking(Point::Blocking, &label, write).await? {
        Ok(output) => Ok(output),
        Err(error) => failed_output(cx, error),
    }
}

fn plan_edit<T: FileEditTool>(
    tool: T,
    context: &FileToolContext,
    stop: &StopFlag<'_>,
) -> Result<(EditPlan, Vec<ChangedFile>), FileToolError> {
    let files = EditedWorkdir { root: WorkdirRoot::open(context)?, stop };
    let plan = tool.plan(&files)?;
    let changed = plan.writes.iter().map(|write| write.changed_file(&files.root)).collect();
    Ok((plan, changed))
}

/// Executes a call on this thread, and keeps nothing.
#[cfg(test)]
pub(crate) fn execute_without_backup<T: FileEditTool>(
    tool: T,
    context: &FileToolContext,
    stop: &StopFlag<'_>,
) -> Result<ToolOutput, FileToolError> {
    write_plan(plan_edit(tool, context, stop)?.0, stop)
}

/// Writes all new contents beside their files first. After a stop or an error up to there no file has changed.
fn write_plan(plan: EditPlan, stop: &StopFlag<'_>) -> Result<ToolOutput, FileToolError> {
    let EditPlan { mut writes, text } = plan;
    let diff = crate::file_diff::join_diffs(writes.iter().map(PlannedWrite::diff));
    for PlannedWrite { target, after, .. } in &mut writes {
        match after {
            Some(content) => target.prepare(content, stop)?,
            None => stop.check()?,
        }
    }
    writes.iter().try_for_each(|write| write.target.check_unchanged())?;
    stop.check()?;
    let mut done: Vec<String> = Vec::new();
    for PlannedWrite { target, shown_path, after, .. } in &mut writes {
        let written = if after.is_some() { target.commit() } else { target.remove() };
        match written {
            Ok(()) => done.push(quoted_path(shown_path)),
            Err(FileToolError::Failed(problem)) if !done.is_empty() => {
                return Err(failed_call(format!("{problem}; these files have changed already: {}", done.join(", "))));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(ToolOutput { diff: Some(diff).filter(|diff| !diff.is_empty()), ..ToolOutput::ok(text) })
}

pub(crate) fn sha256_hex(content: &[u8]) -> String {
    to_hex(&Sha256::digest(content))
}

fn to_hex(hash: &[u8]) -> String {
    use std::fmt::Write as _;

    hash.iter().fold(String::with_capacity(64), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}
