//! Rules for chat channels: session keys, inbox, commands and reply sanitiser.

pub mod commands;
pub mod inbox;
pub mod sanitise;
pub mod session_keys;
