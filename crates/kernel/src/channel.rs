//! Rules for chat channels: session keys, inbox, commands, reply timeout and reply sanitiser.

pub mod commands;
pub mod inbox;
pub mod sanitise;
pub mod session_keys;
pub mod time_budget;
