//! The built-in tools and the set through which the agent loop calls them.
//!
//! A failure of a tool is a [`ToolOutput`] that the model can read; [`Cancelled`] means a stop and nothing else. The
//! text of an output is never longer than [`ToolContext::output_limit`]. This module does not know runs, sessions or
//! approvals.

pub mod arguments;
mod atomic_write;
pub mod attachment;
pub mod background;
mod confined_fs;
mod edit;
mod fetch;
mod image_file;
mod list;
mod process;
mod protected_paths;
mod read;
mod search;
mod shell;
mod skills;
mod text;
mod walk;
mod write;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_kernel::turn::CallResult;
use quell_net::AddressPolicy;
use quell_process::{Isolate, OutputSink, Wardens};
use quell_protocol::CallEnd;
use quell_scope::{Cancelled, Point, Scope};
use serde_json::Value;

use arguments::ToolArguments;
use background::{BackgroundWork, RunIdentity};
pub use fetch::FetchSettings;
use fetch::Fetcher;
pub use image_file::{AllowedImages, read_image};
pub use protected_paths::ProtectedPaths;
use quell_kernel::ToolSpec;
pub use skills::{LoadedSkills, read_skills};

/// The environment of one call, borrowed from the run that makes it.
pub struct ToolContext<'a> {
    /// The scope of the run. A stop of it ends every wait of the call, and its ledger holds everything that the call
    /// opens.
    pub scope: &'a Scope,
    pub owner: &'a RunIdentity,
    /// Background commands, which outlive their call.
    pub background: &'a BackgroundWork,
    /// The base of relative paths. The file tools do not leave it unless they are unconfined.
    pub workdir: &'a Path,
    pub wardens: &'a Wardens,
    /// The environment variables of commands.
    pub environment: &'a [(OsString, OsString)],
    /// The maximum size of the output text, in bytes.
    pub output_limit: usize,
    /// Timeout of a foreground command whose call gives none, in seconds.
    pub shell_timeout_s: u64,
    /// How commands are isolated.
    pub isolate: Isolate,
    /// Receives the output of a command while it runs.
    pub sink: &'a mut dyn OutputSink,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOutput {
    pub end: CallEnd,
    /// The exit code, if the call was a command that exited.
    pub code: Option<i32>,
    /// The text for the model.
    pub text: String,
}

/// The tool settings of the configuration.
#[derive(Debug, Clone, Default)]
pub struct ToolSettings {
    /// Allows the file tools to leave the workdir.
    pub unconfined: bool,
    pub fetch: FetchSettings,
    /// Files of Quell itself, which no tool opens.
    pub protected: ProtectedPaths,
}

/// A configured tool list names a tool that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no tool {name:?}; there are: {}", known.join(", "))]
pub struct UnknownTool {
    pub name: String,
    pub known: Vec<&'static str>,
}

/// All tools with their settings.
#[derive(Debug)]
pub struct ToolSet {
    settings: ToolSettings,
    fetcher: Fetcher,
}

type ToolFuture<'c> = Pin<Box<dyn Future<Output = Result<ToolOutput, Cancelled>> + Send + 'c>>;

/// One row of the table of tools.
struct ToolEntry {
    name: &'static str,
    spec: fn() -> ToolSpec,
    call: for<'c, 'd> fn(&'c ToolSet, &'c Value, &'c mut ToolContext<'d>) -> ToolFuture<'c>,
}

/// Every tool, in the order in which models see them. To add a tool, add a row here.
static ALL_TOOLS: &[ToolEntry] = &[
    ToolEntry::for_file_tool::<read::ReadFile>(),
    ToolEntry::for_file_tool::<write::WriteFile>(),
    ToolEntry::for_file_tool::<edit::EditFile>(),
    ToolEntry::for_file_tool::<list::ListFiles>(),
    ToolEntry::for_file_tool::<search::SearchFiles>(),
    ToolEntry { name: shell::NAME, spec: shell::spec, call: |_, given, cx| Box::pin(shell::call(given, cx)) },
    ToolEntry { name: process::NAME, spec: process::spec, call: |_, given, cx| Box::pin(process::call(given, cx)) },
    ToolEntry {
        name: fetch::NAME,
        spec: fetch::spec,
        call: |tools, given, cx| Box::pin(tools.fetcher.fetch_url(given, cx)),
    },
];

impl ToolSet {
    #[must_use]
    pub fn new(settings: ToolSettings) -> Self {
        let fetcher = Fetcher::new(settings.fetch.clone());
        Self { settings, fetcher }
    }

    /// The addresses that `fetch_url` may reach. The same policy applies to the endpoints that sessions bring along.
    #[must_use]
    pub fn address_policy(&self) -> AddressPolicy {
        if self.settings.fetch.allow_private { AddressPolicy::Any } else { AddressPolicy::PublicOnly }
    }

    #[must_use]
    pub fn protected_paths(&self) -> &ProtectedPaths {
        &self.settings.protected
    }

    /// Checks a configured tool list: `*`, or names. The error names the first unknown one.
    pub fn check_tool_list(allowed: &[String]) -> Result<(), UnknownTool> {
        let known = || ALL_TOOLS.iter().map(|row| row.name).collect::<Vec<_>>();
        match allowed.iter().find(|name| *name != "*" && !ALL_TOOLS.iter().any(|row| row.name == *name)) {
            Some(name) => Err(UnknownTool { name: name.clone(), known: known() }),
            None => Ok(()),
        }
    }

    /// The descriptions of the allowed tools for the model.
    #[must_use]
    pub fn specs(&self, allowed: &[String]) -> Vec<ToolSpec> {
        let is_allowed = |row: &&ToolEntry| allowed.iter().any(|name| name == "*" || name == row.name);
        ALL_TOOLS.iter().filter(is_allowed).map(|row| (row.spec)()).collect()
    }

    /// As [`ToolSet::specs`], with the foreground timeout of the agent (in seconds) in the description of `shell`.
    #[must_use]
    pub fn specs_of_agent(&self, allowed: &[String], shell_timeout_s: u64) -> Vec<ToolSpec> {
        let with_shell_limit = |spec: ToolSpec| match spec.name.as_str() {
            shell::NAME => shell::with_limit(spec, shell_timeout_s),
            _ => spec,
        };
        self.specs(allowed).into_iter().map(with_shell_limit).collect()
    }

    /// Calls a tool. The caller has checked that the agent may use it.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope was cancelled first. The ledger of the scope names what the call still holds.
    ///
    /// # Cancel safety
    /// Dropping the future leaks nothing: requests close, and blocking work stops when the scope is cancelled and stays
    /// in the ledger until then. It is not known whether a write happened before the drop.
    pub async fn call(&self, tool: &str, given: &Value, cx: &mut ToolContext<'_>) -> Result<ToolOutput, Cancelled> {
        let limit = cx.output_limit;
        let Some(row) = ALL_TOOLS.iter().find(|row| row.name == tool) else {
            let known: Vec<_> = ALL_TOOLS.iter().map(|row| row.name).collect();
            let text = format!("There is no tool {}. There are: {}.", text::quoted(tool), known.join(", "));
            return Ok(ToolOutput::error(text).truncated(limit));
        };
        // waits: the tool context passes the scope on.
        let output = (row.call)(self, given, cx).await?;
        Ok(output.truncated(limit))
    }
}

impl ToolEntry {
    const fn for_file_tool<T: FileTool>() -> Self {
        Self {
            name: T::NAME,
            spec: arguments::tool_spec::<T>,
            call: |tools, given, cx| Box::pin(call_file_tool::<T>(tools, given, cx)),
        }
    }
}

impl ToolOutput {
    pub fn ok(text: String) -> Self {
        Self { end: CallEnd::Ok, code: None, text }
    }

    /// An error text for the model.
    pub fn error(text: String) -> Self {
        Self { end: CallEnd::Error, code: None, text }
    }

    pub fn truncated(self, limit: usize) -> Self {
        Self { text: text::truncate_with_note(self.text, limit), ..self }
    }
}

impl From<ToolOutput> for CallResult {
    fn from(ToolOutput { end, code, text }: ToolOutput) -> Self {
        Self { code, ..Self::new(end, text) }
    }
}

/// A tool that works on files. It runs on a blocking thread.
trait FileTool: ToolArguments {
    /// The object of the call, for its ledger row.
    fn ledger_subject(&self) -> &str;

    /// Executes the call and checks `stop` often.
    fn execute(self, context: &FileToolContext, stop: &StopFlag<'_>) -> Result<String, FileToolError>;
}

/// The environment of a file tool.
#[derive(Debug, Clone)]
struct FileToolContext {
    workdir: PathBuf,
    unconfined: bool,
    output_limit: usize,
    protected: ProtectedPaths,
}

/// The flag that tells a blocking thread to stop.
struct StopFlag<'a>(&'a AtomicBool);

#[derive(Debug, PartialEq, Eq)]
enum FileToolError {
    Stopped,
    /// The error text for the model.
    Failed(String),
}

impl StopFlag<'_> {
    fn check(&self) -> Result<(), FileToolError> {
        if self.is_raised() { Err(FileToolError::Stopped) } else { Ok(()) }
    }

    fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl FileToolError {
    fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }
}

impl fmt::Debug for ToolContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext").field("owner", self.owner).field("workdir", &self.workdir).finish_non_exhaustive()
    }
}

async fn call_file_tool<T: FileTool>(
    tools: &ToolSet,
    given: &Value,
    cx: &mut ToolContext<'_>,
) -> Result<ToolOutput, Cancelled> {
    let tool = match arguments::parse_arguments::<T>(given) {
        Ok(tool) => tool,
        Err(problem) => return Ok(ToolOutput::error(problem)),
    };
    let context = FileToolContext {
        workdir: cx.workdir.to_path_buf(),
        unconfined: tools.settings.unconfined,
        output_limit: cx.output_limit,
        protected: tools.settings.protected.clone(),
    };
    let label = format!("{} {}", T::NAME, text::quoted(tool.ledger_subject()));
    match cx.scope.blocking(Point::Blocking, &label, move |flag| tool.execute(&context, &StopFlag(flag))).await? {
        Ok(text) => Ok(ToolOutput::ok(text)),
        Err(FileToolError::Failed(text)) => Ok(ToolOutput::error(text)),
        Err(FileToolError::Stopped) => Err(Cancelled),
    }
}
