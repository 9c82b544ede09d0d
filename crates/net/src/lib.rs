//! HTTP clients: TLS settings, connection reuse, and which addresses a client may connect to. Also the decoder of
//! server-sent events.

mod address;
mod http_client;
mod sse;

pub use address::{AddressFilter, AddressPolicy, AddressRefused, CheckedResolver, check_url, is_public};
pub use http_client::{
    HttpClients, PRIVATE_ADDRESS_HINT, build_http_client, error_sources, is_loopback, root_cause, without_secrets,
};
pub use sse::{SseDecoder, SseEvent, SseLimitError};
