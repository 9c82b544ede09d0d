//! Chat networks for tests: real servers where one can be installed, strict fakes elsewhere, and test users in them.

pub mod discord;
pub mod irc;
pub mod matrix;
pub(crate) mod multipart;
pub mod slack;
mod socket_network;
pub mod telegram;
pub mod webhook;

/// A file of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FakeChatFile {
    pub id: String,
    pub name: String,
    pub media_type: String,
    pub bytes: Vec<u8>,
}

/// A button below a message of the bot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeButton {
    pub label: String,
    /// What the network keeps with it and sends with a press.
    pub data: String,
}
