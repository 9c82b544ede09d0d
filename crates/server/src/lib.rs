//! HTTP and WebSocket server of the daemon. Translates between protocols and the engine, and decides nothing itself.

mod a2a;
mod access_rules;
mod answer_stream;
mod anthropic;
mod auth_failures;
mod budget;
mod client_run;
mod cluster_routes;
mod credential_end;
mod disconnect_stop;
mod gzip_cache;
mod host_name;
pub mod http;
mod json_rpc;
mod keep_alive;
mod mcp_server;
mod metrics_registry;
mod model_api_errors;
mod openai;
#[cfg(any(test, not(page_in_program)))]
mod page_files;
mod request_limits;
mod router;
mod sent_message;
pub mod serve;
pub mod state;
mod stream_end;
mod web_assets;
mod web_files;
mod ws;

pub use host_name::host_entry_problem;
pub use http::describe_metrics;
pub use metrics_registry::MetricsRegistry;
pub use router::router;
pub use serve::serve;
pub use state::{ServerSettings, ServerState};
