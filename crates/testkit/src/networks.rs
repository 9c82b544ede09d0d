//! Chat networks to talk to: real servers where there are any to install, strict imitations elsewhere, and people in them.

pub mod irc;
pub mod telegram;
pub mod discord;
