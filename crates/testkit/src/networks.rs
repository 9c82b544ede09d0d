//! Chat networks to talk to: real servers where there are any to install, strict imitations elsewhere, and people in them.

pub mod discord;
pub mod irc;
pub mod matrix;
mod port;
pub mod slack;
pub mod telegram;
pub mod webhook;
