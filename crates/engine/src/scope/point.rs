//! The places where a stop can arrive, by name, and the probe with which tests stand at them.

use std::fmt;
use std::sync::Arc;

/// A place in the work of a run where a stop can arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Point {
    /// The session is being made, or somebody else who makes it or cleans it up is waited for.
    Session,
    /// A lifecycle hook is at work, and what it says is waited for.
    Hook,
    /// The agent's skills are being read.
    Skills,
    /// Loading the session's history.
    LoadHistory,
    /// Looking for what is remembered.
    Recall,
    /// Remembering something.
    Remember,
    /// A consolidation waits for its place among those that are at work.
    Consolidation,
    /// Before a step.
    BeforeStep,
    /// The step's context is built, the model not yet called.
    ContextBuilt,
    /// Pictures are being read for a model that sees them.
    Pictures,
    /// Older turns may have to be summarised, or have just been.
    Compaction,
    /// Connecting to the model, sending, waiting for headers.
    ModelSend,
    /// Waiting for the next bytes of the model's stream.
    ModelStream,
    /// Reading the body of a model's error answer.
    ModelError,
    /// Waiting before a retry.
    ModelBackoff,
    /// The model's answer is complete.
    AfterModel,
    /// Before a tool call starts.
    BeforeTool,
    /// A call waits for a person.
    Approval,
    /// A call is written down before it starts.
    Journal,
    /// A tool's process runs.
    Process,
    /// A background process is waited for, or written to.
    ProcessWait,
    /// A tool's blocking work runs.
    Blocking,
    /// A tool's HTTP request is out.
    Fetch,
    /// An MCP server starts.
    McpStart,
    /// A call is at an MCP server.
    McpCall,
    /// The pictures that a server answered with are being kept.
    KeepPictures,
    /// A sub-run is being let in.
    StartSubRun,
    /// A sub-run is at work.
    SubRun,
    /// A tool call has ended.
    AfterTool,
    /// What came with a message of a chat network is fetched.
    Attachments,
    /// An answer is carried to its chat network.
    Delivery,
}

impl Point {
    /// All of them; the sweep fails when one is never reached.
    pub const ALL: &'static [Self] = &[
        Self::Session,
        Self::Hook,
        Self::Skills,
        Self::LoadHistory,
        Self::Recall,
        Self::Remember,
        Self::Consolidation,
        Self::BeforeStep,
        Self::Pictures,
        Self::Compaction,
        Self::ContextBuilt,
        Self::ModelSend,
        Self::ModelStream,
        Self::ModelError,
        Self::ModelBackoff,
        Self::AfterModel,
        Self::BeforeTool,
        Self::Approval,
        Self::Journal,
        Self::Process,
        Self::ProcessWait,
        Self::Blocking,
        Self::Fetch,
        Self::McpStart,
        Self::McpCall,
        Self::KeepPictures,
        Self::StartSubRun,
        Self::SubRun,
        Self::AfterTool,
        Self::Attachments,
        Self::Delivery,
    ];
}

/// Called at every point that a run reaches; does nothing unless a test put a function there.
#[derive(Clone, Default)]
pub struct Probe(Option<Arc<dyn Fn(Point) + Send + Sync>>);

impl Probe {
    /// A probe that calls `look` at every point, on the task that reached it.
    #[must_use]
    pub fn new(look: impl Fn(Point) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(look)))
    }

    pub(super) fn reached(&self, point: Point) {
        if let Some(look) = &self.0 {
            look(point);
        }
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Probe(set)" } else { "Probe(none)" })
    }
}
