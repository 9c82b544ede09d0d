//! Chat networks for tests: real servers where one can be installed, strict fakes elsewhere, and test users in them.

pub mod discord;
pub mod irc;
pub mod matrix;
mod multipart;
pub mod slack;
pub mod telegram;
pub mod webhook;
