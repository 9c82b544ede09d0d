//! Pure domain rules of Quell: run state machine, run registry, turns, prompts, and the rules of chat channels.
//!
//! Every function depends on its arguments alone: no clock, IO, async, randomness or logging. Time is passed in as a
//! [`Moment`]. Actions are returned as values, which the engine executes.

pub mod admission;
pub mod agent_tree;
pub mod api_key;
pub mod approval;
pub mod approval_rules;
pub mod attachment;
pub mod call_batch;
pub mod channel;
pub mod client_request;
pub mod clock_skew;
pub mod daily_spend;
pub mod escalation;
pub mod expiry;
pub mod file_undo;
pub mod hold_order;
pub mod image;
pub mod journal;
pub mod json_size;
pub mod lease;
pub mod memory;
pub mod model_chain;
pub mod network_access;
pub mod patch;
pub mod permissions;
pub mod placement;
pub mod project_instructions;
pub mod prompt;
pub mod public_address;
pub mod rate_limit;
pub mod registry;
pub mod retry;
pub mod routing;
pub mod run;
pub mod schedule;
pub mod secret_lifetime;
pub mod server_question;
pub mod session;
pub mod skill;
pub mod stop_text;
pub mod terminal_output;
pub mod text_edit;
pub mod time;
pub mod tool_spec;
pub mod turn;
pub mod visibility;

pub use registry::{RunLimits, RunRegistry, StopRequester, StopScope};
pub use run::{Debts, RunEffect, RunState, RunStateInput, StopLevel, WorkOutcome};
pub use time::{Moment, StopTimeouts};
pub use tool_spec::ToolSpec;
pub use turn::{Turn, TurnDraft};
