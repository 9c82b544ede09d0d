//! Rules for chat channels: session keys, inbox, commands, buttons and reply sanitiser.

pub mod approval_button;
pub mod commands;
pub mod inbox;
pub mod sanitise;
pub mod session_keys;
