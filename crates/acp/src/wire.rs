//! The types of the protocol: the only module that names the crate's paths.

pub(crate) use agent_client_protocol::schema::ProtocolVersion;
pub(crate) use agent_client_protocol::v1::schema::{
    AgentCapabilities, CancelNotification, CloseSessionRequest, CloseSessionResponse, ConfigOptionUpdate, Content,
    ContentBlock, ContentChunk, CurrentModeUpdate, Diff, EmbeddedResourceResource, Implementation, InitializeRequest,
    InitializeResponse, ListSessionsRequest, ListSessionsResponse, LoadSessionRequest, LoadSessionResponse, McpServer,
    Meta, NewSessionRequest, NewSessionResponse, PermissionOption, PermissionOptionKind, Plan, PlanEntry,
    PlanEntryPriority, PlanEntryStatus, PromptCapabilities, PromptRequest, PromptResponse, RequestPermissionOutcome,
    RequestPermissionRequest, ResumeSessionRequest, ResumeSessionResponse, SessionCapabilities,
    SessionCloseCapabilities, SessionConfigOption, SessionConfigOptionCategory, SessionConfigOptionValue,
    SessionConfigSelectOption, SessionId, SessionInfo, SessionListCapabilities, SessionMode, SessionModeState,
    SessionNotification, SessionResumeCapabilities, SessionUpdate, SetSessionConfigOptionRequest,
    SetSessionConfigOptionResponse, SetSessionModeRequest, SetSessionModeResponse, StopReason as PromptStopReason,
    ToolCall, ToolCallContent, ToolCallLocation, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};
pub(crate) use agent_client_protocol::v1::{ConnectionTo, Responder};
pub(crate) use agent_client_protocol::{
    Agent, Client as Editor, Error as RpcError, Lines, on_receive_notification, on_receive_request,
};

/// A connection to the editor.
pub(crate) type EditorConnection = ConnectionTo<Editor>;
