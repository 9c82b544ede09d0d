//! The trait of every tool that a model can call, and what a call gets and returns.
//!
//! `docs/add-a-tool.md` shows how to add a tool.

use std::ffi::OsString;
use std::marker::PhantomData;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use quell_kernel::network_access::NetworkAccess;
use quell_process::{Isolate, OutputSink, SandboxSpec, SessionNetwork, Wardens};
use quell_protocol::CallEnd;
use quell_protocol::sandbox::SandboxMode;
use quell_scope::{Cancelled, Scope};
use serde_json::Value;

use crate::background::{BackgroundWork, RunIdentity};
use crate::definition::{ToolArguments, ToolDefinition, parse_arguments};
use crate::file_edit::FileBackup;
use crate::text;
use crate::toolbox::Toolbox;

pub trait Tool: Send + Sync {
    fn definition(&self) -> ToolDefinition<'_>;

    /// Calls the tool. A failure is an output that the model can read.
    ///
    /// Every wait is raced against the stop, with the scope of the context.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope was cancelled first. The ledger of the scope names what the call still holds.
    ///
    /// # Cancel safety
    /// Dropping the future leaks nothing: what the call opened is in the ledger and is told to end. It is not known
    /// whether an effect happened before the drop.
    fn call<'c>(&'c self, arguments: &'c Value, context: &'c mut ToolContext<'_>) -> ToolFuture<'c>;
}

pub type ToolFuture<'c> = Pin<Box<dyn Future<Output = Result<ToolOutput, Cancelled>> + Send + 'c>>;

impl<T: Tool + ?Sized> Tool for &T {
    fn definition(&self) -> ToolDefinition<'_> {
        (**self).definition()
    }

    fn call<'c>(&'c self, arguments: &'c Value, context: &'c mut ToolContext<'_>) -> ToolFuture<'c> {
        (**self).call(arguments, context)
    }
}

/// The arguments of a tool that needs nothing but its context.
pub(crate) trait ContextTool: ToolArguments {
    /// Calls the tool, as [`Tool::call`] does.
    fn call(self, cx: &mut ToolContext<'_>) -> impl Future<Output = Result<ToolOutput, Cancelled>> + Send;
}

pub(crate) struct BuiltInTool<T>(PhantomData<fn() -> T>);

impl<T: ContextTool> BuiltInTool<T> {
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T: ContextTool> Tool for BuiltInTool<T> {
    fn definition(&self) -> ToolDefinition<'_> {
        ToolDefinition::of::<T>()
    }

    fn call<'c>(&'c self, arguments: &'c Value, cx: &'c mut ToolContext<'_>) -> ToolFuture<'c> {
        Box::pin(async move {
            match parse_arguments::<T>(arguments) {
                // waits: raced in the tool, with the scope of the context.
                Ok(tool) => tool.call(cx).await,
                Err(problem) => Ok(ToolOutput::error(problem)),
            }
        })
    }
}

/// Calls a tool and bounds the text of its output. The caller has checked that the agent may use the tool.
///
/// # Errors
/// As [`Tool::call`].
///
/// # Cancel safety
/// As [`Tool::call`].
pub async fn call_tool(
    tool: &dyn Tool,
    arguments: &Value,
    context: &mut ToolContext<'_>,
) -> Result<ToolOutput, Cancelled> {
    let limit = context.output_limit;
    // waits: raced in the tool, with the scope of the context.
    Ok(tool.call(arguments, context).await?.truncated(limit))
}

/// The environment of one call, borrowed from the run that makes it.
pub struct ToolContext<'a> {
    /// The scope of the run. A stop of it ends every wait of the call, and its ledger holds everything that the call
    /// opens.
    pub scope: &'a Scope,
    pub owner: &'a RunIdentity,
    /// What the tools of the engine share.
    pub toolbox: &'a Toolbox,
    /// Background commands, which outlive their call.
    pub background: &'a BackgroundWork,
    /// The base of relative paths. The file tools do not leave it unless they are unconfined.
    pub workdir: &'a Path,
    pub wardens: &'a Wardens,
    pub environment: &'a [(OsString, OsString)],
    /// The maximum size of the output text, in bytes.
    pub output_limit: usize,
    /// Timeout of a foreground command whose call gives none, in seconds.
    pub shell_timeout_s: u64,
    pub isolate: Isolate,
    /// What commands and file tools may reach; commands have no sandbox if `None`.
    pub sandbox: Option<Arc<SandboxSpec>>,
    /// The network that the commands of the session share, where it is not that of the daemon.
    pub session_network: Option<Arc<SessionNetwork>>,
    /// Whether a call may ask to run outside of the sandbox, which a refused one is told.
    pub may_escalate: bool,
    /// Whether a person has let this call out of the sandbox. It then acts on the paths that were shown: file tools follow
    /// no symbolic link, and Git runs no file watcher and no hook of a repository.
    pub is_let_out: bool,
    /// The servers that commands and `fetch_url` may reach.
    pub network: &'a NetworkAccess,
    /// Keeps files before a call changes them.
    pub file_backup: &'a dyn FileBackup,
    /// Receives the output of a command while it runs.
    pub sink: &'a mut dyn OutputSink,
}

impl ToolContext<'_> {
    /// The mode of the sandbox. Without one the file tools keep to the workdir, as in `workspace`.
    pub(crate) fn sandbox_mode(&self) -> SandboxMode {
        self.sandbox.as_ref().map_or(SandboxMode::Workspace, |sandbox| sandbox.mode)
    }

    /// The user that commands run as, if it is not that of the daemon.
    pub(crate) fn user(&self) -> Option<u32> {
        self.sandbox.as_ref().and_then(|sandbox| sandbox.user)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOutput {
    pub end: CallEnd,
    /// The exit code, if the call was a command that exited.
    pub code: Option<i32>,
    /// The text for the model.
    pub text: String,
    /// Images for models with vision, each as base64, not validated.
    pub images: Vec<String>,
    /// Unified diffs of the files that the call has changed, for people.
    pub diff: Option<String>,
}

impl ToolOutput {
    #[must_use]
    pub fn ok(text: String) -> Self {
        Self { end: CallEnd::Ok, code: None, text, images: Vec::new(), diff: None }
    }

    #[must_use]
    pub fn error(text: String) -> Self {
        Self { end: CallEnd::Error, ..Self::ok(text) }
    }

    #[must_use]
    pub fn truncated(self, limit: usize) -> Self {
        Self { text: text::truncate_with_note(self.text, limit), ..self }
    }
}
