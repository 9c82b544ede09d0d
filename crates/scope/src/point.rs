//! The named points at which a stop can arrive, and the probe with which tests wait there.

use std::fmt;
use std::sync::Arc;

/// Defines the points and the list of all of them.
macro_rules! points {
    ($($(#[$about:meta])* $name:ident,)*) => {
        /// A point in the work of a run at which a stop can arrive.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Point {
            $($(#[$about])* $name,)*
        }

        impl Point {
            /// The sweep test fails if one is never reached.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

points! {
    /// The session is being created, or the run waits for another caller that creates it or cleans it up.
    Session,
    /// Waiting for the result of a lifecycle hook.
    Hook,
    Skills,
    LoadHistory,
    Recall,
    Remember,
    Consolidation,
    BeforeStep,
    /// The context of the step is built, and the model is not called yet.
    ContextBuilt,
    /// Reading images for a model with vision.
    Pictures,
    /// Before and after the summary of older turns.
    Compaction,
    /// Connecting to the model, sending, waiting for headers.
    ModelSend,
    /// Waiting for the next bytes of the model's stream.
    ModelStream,
    /// Reading the body of a model's error response.
    ModelError,
    ModelBackoff,
    /// A provider has failed, and the next model of the chain is not asked yet.
    ModelFallback,
    AfterModel,
    BeforeTool,
    /// A call waits for a person.
    Approval,
    /// The start of a call is being stored in the journal.
    Journal,
    Process,
    /// Waiting for a background process, or writing to it.
    ProcessWait,
    /// Blocking work of a tool is running.
    Blocking,
    /// Waiting until nothing else changes files of the workdir.
    WorkdirLock,
    /// What a call replaces is being stored.
    FileBackup,
    /// An HTTP request of a tool is in flight.
    Fetch,
    /// Waiting for the start of an MCP server.
    McpStart,
    /// Waiting for the changed tool list of an MCP server.
    McpTools,
    /// Waiting for the result of an MCP call.
    McpCall,
    /// Saving the images of an MCP result.
    KeepPictures,
    /// Schedules are being read, made or deleted.
    Schedules,
    StartSubRun,
    SubRun,
    AfterTool,
    Attachments,
    /// A voice message is being transcribed.
    Transcription,
    /// An answer is being spoken.
    Speech,
    Delivery,
}

/// Called at every point that a run reaches; does nothing unless a test sets a callback.
#[derive(Clone, Default)]
pub struct PointProbe(Option<Arc<dyn Fn(Point) + Send + Sync>>);

impl PointProbe {
    /// Creates a probe that calls `callback` at every point, on the task that reached it.
    pub fn new(callback: impl Fn(Point) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(callback)))
    }

    pub(super) fn reached(&self, point: Point) {
        if let Some(callback) = &self.0 {
            callback(point);
        }
    }
}

impl fmt::Debug for PointProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Probe(set)" } else { "Probe(none)" })
    }
}
