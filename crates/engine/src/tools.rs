//! The tools that agents may call, and the toolbox through which the agent loop calls any of them.
//!
//! A tool's mistake is a [`ToolOutput`] that the model can read; a stop is [`Cancelled`] and nothing else. What a tool says is
//! never longer than [`Workbench::output_limit`]. This module knows no runs, no sessions and no approvals.

pub(crate) mod arguments;
pub mod attachment;
pub mod background;
mod confine;
mod edit;
mod fetch;
mod list;
mod picture;
mod process;
mod protected;
mod read;
mod replace;
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
use quell_protocol::CallEnd;
use serde_json::Value;

use crate::address::AddressPolicy;
use crate::llm::ToolSpec;
use crate::proc::{Isolate, OutputSink, Wardens};
use crate::scope::{Cancelled, Point, Scope};
use arguments::Arguments;
use background::{Background, Owner};
pub use fetch::FetchSettings;
use fetch::Fetcher;
pub(crate) use picture::{Within, picture};
pub use protected::Protected;
pub use skills::{Shelf, read_skills};

/// What a call works with, lent by the run that makes it.
pub struct Workbench<'a> {
    /// The run's scope: it ends every wait and holds everything that the call opens.
    pub scope: &'a Scope,
    /// The run, its session, and for whom it works.
    pub owner: &'a Owner,
    /// Commands that go on after their call.
    pub background: &'a Background,
    /// Where relative paths start, and the border of the file tools.
    pub workdir: &'a Path,
    /// Starts processes.
    pub wardens: &'a Wardens,
    /// The environment of processes.
    pub environment: &'a [(OsString, OsString)],
    /// The most bytes that the model will read of this call.
    pub output_limit: usize,
    /// How long a command may take in the foreground when its call says nothing, seconds.
    pub shell_timeout_s: u64,
    /// How processes are set apart.
    pub isolate: Isolate,
    /// Takes what a process prints while it runs.
    pub sink: &'a mut dyn OutputSink,
}

/// What a call came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOutput {
    /// `Ok`, `Error` or `Stopped`.
    pub end: CallEnd,
    /// Exit code, where the call was a command that exited.
    pub code: Option<i32>,
    /// What the model reads.
    pub text: String,
}

/// What the tools may do, from the configuration.
#[derive(Debug, Clone, Default)]
pub struct ToolSettings {
    /// Lets the file tools leave the workdir.
    pub unconfined: bool,
    /// What `fetch_url` may do.
    pub fetch: FetchSettings,
    /// Quell's own files, which no tool opens.
    pub protected: Protected,
}

/// A tool list names something that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no tool {name:?}; there are: {}", known.join(", "))]
pub struct UnknownTool {
    /// The name.
    pub name: String,
    /// The tools that there are.
    pub known: Vec<&'static str>,
}

/// All tools, ready to be called.
#[derive(Debug)]
pub struct Toolbox {
    settings: ToolSettings,
    fetcher: Fetcher,
}

type Calling<'c> = Pin<Box<dyn Future<Output = Result<ToolOutput, Cancelled>> + Send + 'c>>;

/// One tool: its name, how it is described, how it is called.
struct Row {
    name: &'static str,
    spec: fn() -> ToolSpec,
    call: for<'c, 'd> fn(&'c Toolbox, &'c Value, &'c mut Workbench<'d>) -> Calling<'c>,
}

/// Every tool in the order in which models see them. A new tool is one line here.
static TOOLS: &[Row] = &[
    Row::of_files::<read::ReadFile>(),
    Row::of_files::<write::WriteFile>(),
    Row::of_files::<edit::EditFile>(),
    Row::of_files::<list::ListFiles>(),
    Row::of_files::<search::SearchFiles>(),
    Row { name: shell::NAME, spec: shell::spec, call: |_, given, cx| Box::pin(shell::call(given, cx)) },
    Row { name: process::NAME, spec: process::spec, call: |_, given, cx| Box::pin(process::call(given, cx)) },
    Row { name: fetch::NAME, spec: fetch::spec, call: |tools, given, cx| Box::pin(tools.fetcher.fetch_url(given, cx)) },
];

impl Toolbox {
    /// A toolbox that keeps to `settings`.
    #[must_use]
    pub fn new(settings: ToolSettings) -> Self {
        let fetcher = Fetcher::new(settings.fetch.clone());
        Self { settings, fetcher }
    }

    /// Where `fetch_url` may go, and so the endpoints that sessions bring along.
    #[must_use]
    pub fn reach(&self) -> AddressPolicy {
        if self.settings.fetch.allow_private { AddressPolicy::Any } else { AddressPolicy::PublicOnly }
    }

    /// Quell's own files.
    #[must_use]
    pub fn protected(&self) -> &Protected {
        &self.settings.protected
    }

    /// Checks a configured tool list: `*`, or names.
    ///
    /// # Errors
    /// [`UnknownTool`] for the first name that is no tool.
    pub fn check(allowed: &[String]) -> Result<(), UnknownTool> {
        let known = || TOOLS.iter().map(|row| row.name).collect::<Vec<_>>();
        match allowed.iter().find(|name| *name != "*" && !TOOLS.iter().any(|row| row.name == *name)) {
            Some(name) => Err(UnknownTool { name: name.clone(), known: known() }),
            None => Ok(()),
        }
    }

    /// The allowed tools as the model sees them.
    #[must_use]
    pub fn specs(&self, allowed: &[String]) -> Vec<ToolSpec> {
        let is_allowed = |row: &&Row| allowed.iter().any(|name| name == "*" || name == row.name);
        TOOLS.iter().filter(is_allowed).map(|row| (row.spec)()).collect()
    }

    /// The allowed tools as the model of an agent sees them whose commands may take so many seconds.
    #[must_use]
    pub fn specs_of_agent(&self, allowed: &[String], shell_timeout_s: u64) -> Vec<ToolSpec> {
        let told = |spec: ToolSpec| match spec.name.as_str() {
            shell::NAME => shell::with_limit(spec, shell_timeout_s),
            _ => spec,
        };
        self.specs(allowed).into_iter().map(told).collect()
    }

    /// Calls a tool. Whether the agent may is its caller's business.
    ///
    /// # Errors
    /// [`Cancelled`] when the scope was cancelled first; whatever the call still holds stands in the scope's ledger.
    ///
    /// # Cancel safety
    /// Safe in that nothing leaks: requests close, and blocking work is told to stop at the scope's cancel and held until then.
    /// Whether a write happened before the drop is not known.
    pub async fn call(&self, tool: &str, given: &Value, cx: &mut Workbench<'_>) -> Result<ToolOutput, Cancelled> {
        let limit = cx.output_limit;
        let Some(row) = TOOLS.iter().find(|row| row.name == tool) else {
            let known: Vec<_> = TOOLS.iter().map(|row| row.name).collect();
            let text = format!("There is no tool {}. There are: {}.", text::quoted(tool), known.join(", "));
            return Ok(ToolOutput::error(text).bounded(limit));
        };
        // waits: the bench holds the scope.
        let output = (row.call)(self, given, cx).await?;
        Ok(output.bounded(limit))
    }
}

impl Row {
    const fn of_files<T: FileTool>() -> Self {
        Self {
            name: T::NAME,
            spec: arguments::spec::<T>,
            call: |tools, given, cx| Box::pin(on_files::<T>(tools, given, cx)),
        }
    }
}

impl ToolOutput {
    /// A result.
    pub(crate) fn ok(text: String) -> Self {
        Self { end: CallEnd::Ok, code: None, text }
    }

    /// An error that the model can read.
    pub(crate) fn error(text: String) -> Self {
        Self { end: CallEnd::Error, code: None, text }
    }

    pub(crate) fn bounded(self, limit: usize) -> Self {
        Self { text: text::bounded(self.text, limit), ..self }
    }
}

impl From<ToolOutput> for CallResult {
    fn from(ToolOutput { end, code, text }: ToolOutput) -> Self {
        Self { code, ..Self::new(end, text) }
    }
}

/// A tool that works on files, on a thread.
trait FileTool: Arguments {
    /// What the call works on, for the ledger.
    fn subject(&self) -> &str;

    /// Does it all, looking at `stop` often.
    fn work(self, ground: &Ground, stop: &Stop<'_>) -> Result<String, Fault>;
}

/// Where a file tool works.
#[derive(Debug, Clone)]
struct Ground {
    workdir: PathBuf,
    unconfined: bool,
    output_limit: usize,
    protected: Protected,
}

/// The flag that tells a thread to end.
struct Stop<'a>(&'a AtomicBool);

/// Why a file tool has no result.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    /// It was told to end.
    Stopped,
    /// What went wrong, for the model.
    Told(String),
}

impl Stop<'_> {
    fn check(&self) -> Result<(), Fault> {
        if self.is_raised() { Err(Fault::Stopped) } else { Ok(()) }
    }

    fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Fault {
    fn told(text: impl Into<String>) -> Self {
        Self::Told(text.into())
    }
}

impl fmt::Debug for Workbench<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workbench").field("owner", self.owner).field("workdir", &self.workdir).finish_non_exhaustive()
    }
}

async fn on_files<T: FileTool>(
    tools: &Toolbox,
    given: &Value,
    cx: &mut Workbench<'_>,
) -> Result<ToolOutput, Cancelled> {
    let tool = match arguments::parse::<T>(given) {
        Ok(tool) => tool,
        Err(problem) => return Ok(ToolOutput::error(problem)),
    };
    let ground = Ground {
        workdir: cx.workdir.to_path_buf(),
        unconfined: tools.settings.unconfined,
        output_limit: cx.output_limit,
        protected: tools.settings.protected.clone(),
    };
    let label = format!("{} {}", T::NAME, text::quoted(tool.subject()));
    match cx.scope.blocking(Point::Blocking, &label, move |flag| tool.work(&ground, &Stop(flag))).await? {
        Ok(text) => Ok(ToolOutput::ok(text)),
        Err(Fault::Told(text)) => Ok(ToolOutput::error(text)),
        Err(Fault::Stopped) => Err(Cancelled),
    }
}
