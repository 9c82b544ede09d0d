//! What networks share: HTTP, WebSocket, TCP and TLS, failed calls, saved positions, attachments, text.

pub(crate) mod attachments;
pub(crate) mod byte_stream;
pub(crate) mod call_error;
pub(crate) mod cursor_saver;
pub(crate) mod http_client;
pub(crate) mod text;
pub(crate) mod websocket;
