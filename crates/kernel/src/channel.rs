//! Rules for chat channels: session keys, inbox, commands, buttons, reply sanitiser, tool calls, and the languages of
//! texts.

pub mod approval_button;
pub mod chat_language;
pub mod chat_text;
pub mod commands;
pub mod inbox;
pub mod sanitise;
pub mod session_keys;
pub mod tool_notice;
