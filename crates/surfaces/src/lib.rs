//! The doors of Quell. They translate between foreign words and the engine's, and decide nothing.

mod attempts;
mod budget;
pub mod channels;
pub mod door;
pub mod http;
mod page;
pub mod serve;
mod ws;

pub use door::{Door, DoorSettings};
pub use http::{STOP_BUCKETS, STOP_SECONDS, describe_metrics, router};
pub use serve::serve;
