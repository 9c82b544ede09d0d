//! Types that cross a process boundary: ids, messages, events, receipts and API bodies.
//!
//! This crate holds data, its JSON form, and the texts that every surface shows in the same words. It decides nothing,
//! reads no clock and does no IO. Field names are the public contract of HTTP, of event streams (SSE) and of the CLI's
//! `--json`.

pub mod agents;
pub mod api;
pub mod approval;
pub mod archive;
pub mod audit;
pub mod background;
pub mod channel;
pub mod cluster;
pub mod display_text;
pub mod error;
pub mod event;
pub mod hook;
pub mod ids;
pub mod json_object;
pub mod mcp;
pub mod memory;
pub mod question;
pub mod receipt;
pub mod sandbox;
pub mod schedule;
pub mod session;
pub mod undo;
pub mod verdict;
pub mod web_ui;
mod word_enum;

pub use channel::{Attachment, AttachmentKind, ChannelMessage, InterruptionScope};
pub use error::{ErrorCode, Problem};
pub use event::{CallEnd, EventKind, RunEvent, ToolOutputStream};
pub use hook::{HookBody, HookEvent, RunFacts, SessionFacts};
pub use ids::{AgentId, BadId, CallId, NodeName, Principal, RunId, SessionKey};
pub use json_object::Object;
pub use receipt::{
    Amendment, AmendmentKind, Instant, Leftover, Receipt, Resource, ResourceKind, Rung, TurnRecord, Usage,
};
pub use sandbox::{MissingLayer, SandboxFacts, SandboxLayer, SandboxMode};
pub use verdict::{Requester, StopReason, Surface, Verdict};
