//! HTTP and WebSocket server of the daemon. Translates between protocols and the engine, and decides nothing itself.

mod auth_failures;
mod budget;
pub mod http;
pub mod serve;
pub mod state;
mod web_assets;
mod ws;

pub use http::{STOP_BUCKETS, STOP_SECONDS, describe_metrics, router};
pub use serve::serve;
pub use state::{ServerSettings, ServerState};
