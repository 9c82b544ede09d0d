//! The official test server.
