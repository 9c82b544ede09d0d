//! The HTTP door: every route of interfaces.md that this version has, asked rightly and wrongly.

mod agents;
mod approvals;
mod auth;
mod closing;
mod contract;
mod input;
mod look;
mod page;
mod runs;
mod sse;
mod stop;
