//! The words of Quell: ids, messages, events, receipts.
//!
//! Everything that crosses a process border is spelled out here once. This crate holds data and its JSON form; it decides
//! nothing, reads no clock and does no IO; what everybody reads in the same words is worded here, too. Field names are the public contract of HTTP, SSE and the CLI's `--json`.

pub mod api;
pub mod approval;
pub mod archive;
pub mod audit;
pub mod background;
pub mod channel;
pub mod error;
pub mod event;
pub mod hook;
pub mod ids;
pub mod memory;
pub mod object;
pub mod page;
pub mod receipt;
pub mod session;
pub mod society;
pub mod verdict;
pub mod words;

pub use channel::{Attachment, AttachmentKind, ChannelMessage, InterruptionScope};
pub use error::{ErrorCode, Problem};
pub use event::{CallEnd, EventKind, RunEvent, ToolOutputStream};
pub use hook::{HookBody, HookEvent, RunFacts, SessionFacts};
pub use ids::{AgentId, BadId, CallId, Principal, RunId, SessionKey};
pub use object::Object;
pub use receipt::{
    Amendment, AmendmentKind, Instant, Leftover, Receipt, Resource, ResourceKind, Rung, TurnRecord, Usage,
};
pub use verdict::{By, StopReason, Surface, Verdict};
