//! Chat networks to talk to: real servers where there are any to install, strict imitations elsewhere, and people in them.

pub mod irc;
pub mod telegram;
pub mod discord;
//! The other side of chat networks: real servers where there are any, strict local ones where there are none.

pub mod matrix;
