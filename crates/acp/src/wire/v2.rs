//! The types of the draft of version 2.

pub(crate) use agent_client_protocol::v2::schema::{
    AbsolutePath, AgentCapabilities, AgentMessage, AgentThought, CancelSessionNotification, CloseSessionRequest,
    CloseSessionResponse, Content, ContentBlock, ContentChunk, Diff, DiffChange, EmbeddedResourceResource, Error,
    ErrorStopReason, IdleStateUpdate, Implementation, InitializeRequest, InitializeResponse, ListSessionsRequest,
    ListSessionsResponse, McpServer, NewSessionRequest, NewSessionResponse, PermissionOption, PermissionOptionKind,
    PlanEntry, PlanEntryPriority, PlanEntryStatus, PlanUpdate, PlanUpdateContent, PromptCapabilities,
    PromptEmbeddedContextCapabilities, PromptImageCapabilities, PromptRequest, PromptResponse, ReplayFrom,
    RequestPermissionOutcome, RequestPermissionRequest, RequestPermissionSubject, RequiresActionStateUpdate,
    ResumeSessionRequest, ResumeSessionResponse, RunningStateUpdate, SessionCapabilities, SessionConfigOption,
    SessionConfigOptionCategory, SessionConfigSelectOption, SessionId, SessionInfo, SessionListCursor, SessionUpdate,
    SetSessionConfigOptionRequest, SetSessionConfigOptionResponse, StateUpdate, StopReason, ToolCallContent,
    ToolCallLocation, ToolCallPermissionSubject, ToolCallStatus, ToolCallUpdate, ToolKind, UpdateSessionNotification,
    UserMessage,
};
pub(crate) use agent_client_protocol::v2::{ConnectionTo, Responder};

/// A connection to the editor.
pub(crate) type EditorConnection = ConnectionTo<super::Editor>;
