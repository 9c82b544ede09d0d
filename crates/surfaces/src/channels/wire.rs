//! What networks have in common on the wire: streams with or without TLS, WebSockets over them, HTTP calls. It knows no network.

pub(crate) mod http;
pub(crate) mod multipart;
pub(crate) mod socket;
pub(crate) mod stream;
