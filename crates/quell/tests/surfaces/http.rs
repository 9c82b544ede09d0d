//! The HTTP API: every route, with valid and invalid requests.

mod agents;
mod approvals;
mod attached_runs;
mod auth;
mod bad_input;
mod contract;
mod queries;
mod request_limits;
mod runs;
mod sse;
mod stop;
mod web_page;
