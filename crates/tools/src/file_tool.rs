//! Tools that work on files below the workdir: they run on a blocking thread and check a flag for a stop.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use quell_protocol::sandbox::SandboxMode;
use quell_scope::{Cancelled, Interrupted, Point};

use crate::definition::ToolArguments;
use crate::protected_paths::ProtectedPaths;
use crate::sandbox_note;
use crate::text::quoted;
use crate::tool::{ContextTool, ToolContext, ToolOutput};

/// Bytes read between two checks of the stop flag.
pub(crate) const READ_CHUNK_BYTES: usize = 64 * 1024;

/// The arguments of a tool that works on files.
pub(crate) trait FileTool: ToolArguments {
    /// The object of the call, for its ledger row.
    fn ledger_subject(&self) -> &str;

    /// Executes the call and checks `stop` often.
    fn execute(self, context: &FileToolContext, stop: &StopFlag<'_>) -> Result<String, FileToolError>;
}

#[derive(Debug, Clone)]
pub(crate) struct FileToolContext {
    pub(crate) workdir: PathBuf,
    pub(crate) unconfined: bool,
    /// Symbolic links are followed, inside of what may be reached.
    pub(crate) follows_links: bool,
    /// The sandbox of the agent permits no changes.
    pub(crate) is_read_only: bool,
    /// The user and group id that new files and directories get; those of the daemon if `None`.
    pub(crate) owner: Option<u32>,
    pub(crate) output_limit: usize,
    pub(crate) protected: ProtectedPaths,
}

/// The flag that tells a blocking thread to stop.
pub(crate) struct StopFlag<'a>(pub(crate) &'a AtomicBool);

/// A reader that fails after a stop, which ends whatever reads from it. It checks before each chunk.
pub(crate) struct StoppableReader<'a> {
    pub(crate) source: &'a File,
    pub(crate) stop: &'a StopFlag<'a>,
}

impl Read for StoppableReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_raised() {
            return Err(io::Error::other("stopped"));
        }
        let most = buffer.len().min(READ_CHUNK_BYTES);
        self.source.read(&mut buffer[..most])
    }
}

/// Reads a file; of a file with more than `max_bytes` bytes, one byte more than that.
pub(crate) fn read_at_most(source: &File, max_bytes: u64, stop: &StopFlag<'_>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    StoppableReader { source, stop }.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A failure is the error text for the model.
pub(crate) type FileToolError = Interrupted<String>;

impl<T: FileTool> ContextTool for T {
    async fn call(self, cx: &mut ToolContext<'_>) -> Result<ToolOutput, Cancelled> {
        let context = FileToolContext::of_call(cx);
        let label = format!("{} {}", T::NAME, quoted(self.ledger_subject()));
        let execute = move |flag: &AtomicBool| self.execute(&context, &StopFlag(flag));
        match cx.scope.blocking(Point::Blocking, &label, execute).await? {
            Ok(text) => Ok(ToolOutput::ok(text)),
            Err(error) => failed_output(cx, error),
        }
    }
}

/// The failure as the model reads it.
pub(crate) fn failed_output(cx: &ToolContext<'_>, error: FileToolError) -> Result<ToolOutput, Cancelled> {
    let text = error.into_failure()?;
    let text = if cx.may_escalate { sandbox_note::with_escalation_advice(text) } else { text };
    Ok(ToolOutput::error(text))
}

impl FileToolContext {
    pub(crate) fn of_call(cx: &ToolContext<'_>) -> Self {
        Self {
            workdir: cx.workdir.to_path_buf(),
            // They run as the daemon: where commands run as another user, they keep to the workdir.
            unconfined: cx.user().is_none()
                && (cx.toolbox.settings.unconfined || cx.sandbox_mode() == SandboxMode::Off),
            follows_links: !cx.is_let_out,
            owner: cx.user(),
            is_read_only: cx.sandbox_mode() == SandboxMode::ReadOnly,
            output_limit: cx.output_limit,
            protected: cx.toolbox.settings.protected.clone(),
        }
    }

    /// A context for reads and writes that never leave the workdir.
    pub(crate) fn confined(workdir: &Path) -> Self {
        let protected = ProtectedPaths::default();
        Self {
            workdir: workdir.to_path_buf(),
            unconfined: false,
            follows_links: true,
            is_read_only: false,
            owner: None,
            output_limit: 0,
            protected,
        }
    }
}

impl StopFlag<'_> {
    pub(crate) fn check(&self) -> Result<(), Cancelled> {
        if self.is_raised() { Err(Cancelled) } else { Ok(()) }
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

pub(crate) fn failed_call(text: impl Into<String>) -> FileToolError {
    FileToolError::Failed(text.into())
}
