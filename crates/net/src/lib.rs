//! HTTP clients: TLS settings, connection reuse, and which addresses a client may connect to. Also the filtering proxy of
//! commands, forms with files, and the decoder of server-sent events.

mod address;
pub mod filtering_proxy;
mod http_client;
mod multipart;
mod sse;

pub use address::{AddressFilter, AddressPolicy, AddressRefused, CheckedResolver, check_url};
pub use http_client::{
    HttpClients, PRIVATE_ADDRESS_HINT, build_http_client, error_sources, is_loopback, root_cause, without_secrets,
};
pub use multipart::Multipart;
pub use quell_kernel::public_address::is_public;
pub use sse::{SseDecoder, SseEvent, SseLimitError};
