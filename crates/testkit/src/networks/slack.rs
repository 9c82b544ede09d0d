//! Slack on two loopback ports: Web API and Socket Mode, as strict as their documentation, with test users.
//!
//! Sources: the public documentation of Slack (Socket Mode, Events API, Web API and its methods, rate limits, uploading
//! files).

mod chat_data;
mod socket_mode;
mod state;
#[cfg(test)]
mod tests;
mod web_api;

use std::ops::Deref;

use serde_json::Value;

use super::FakeChatFile;
use super::socket_network::{FakeSocketNetwork, SocketNetworkState};
use socket_mode::SocketModeCommand;

pub use chat_data::{FakeSlackData, FakeSlackMessage};
pub use state::{FakeEphemeralMessage, FakeSlackFault, FakeSlackState, SlackCall};

/// The bot token that the server accepts.
pub const BOT_TOKEN: &str = "xoxb-1111-2222-fakeTokenOfTheTests";
/// The app-level token that the server accepts.
pub const APP_TOKEN: &str = "xapp-1-A1111-3333-fakeTokenOfTheTests";
/// User id of the bot under test.
pub const BOT: &str = "U0QUELL";

/// The server. Dropping it closes every connection.
#[derive(Debug)]
pub struct FakeSlack(FakeSocketNetwork<FakeSlackState, SocketModeCommand>);

type FakeSlackShared = SocketNetworkState<FakeSlackState, SocketModeCommand>;

impl Deref for FakeSlack {
    type Target = FakeSocketNetwork<FakeSlackState, SocketModeCommand>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl FakeSlack {
    pub async fn start() -> Self {
        let network =
            FakeSocketNetwork::start(FakeSlackState::new(), web_api::answer_request, socket_mode::serve_connection);
        network.update(|state| {
            state.api_url = network.api.url();
            state.socket_url = format!("ws://{}", network.sockets.address());
        });
        Self(network)
    }

    /// Base URL of the Web API.
    pub fn base_url(&self) -> String {
        self.api.url() + "/api"
    }

    /// Adds a person; returns the id.
    pub fn add_person(&self, name: &str) -> String {
        self.update(|state| state.chat_data.add_person(name))
    }

    /// Adds a channel that the app is in; returns the id.
    pub fn add_channel(&self) -> String {
        self.update(|state| state.chat_data.add_channel('C'))
    }

    /// Opens a direct chat with the app.
    pub fn add_direct_channel(&self) -> String {
        self.update(|state| state.chat_data.add_channel('D'))
    }

    /// A user writes a message; `<@ID>` in the text mentions a user, the rest is taken as typed. Returns the timestamp.
    pub fn post_message(&self, channel: &str, user: &str, text: &str) -> String {
        self.add_message(channel, user, text, FakeSlackMessage::default())
    }

    /// A user writes in a thread.
    pub fn post_in_thread(&self, (channel, thread): (&str, &str), user: &str, text: &str) -> String {
        let thread = Some(thread.to_owned());
        self.add_message(channel, user, text, FakeSlackMessage { thread, ..FakeSlackMessage::default() })
    }

    /// A user writes a message with a file: its name, media type and content.
    pub fn post_message_with_file(&self, channel: &str, user: &str, text: &str, file: (&str, &str, &[u8])) -> String {
        let (name, media_type, bytes) = file;
        let id = self.update(|state| state.chat_data.new_id('F'));
        let file = FakeChatFile { id, name: name.to_owned(), media_type: media_type.to_owned(), bytes: bytes.to_vec() };
        self.add_message(channel, user, text, FakeSlackMessage { files: vec![file], ..FakeSlackMessage::default() })
    }

    /// A user runs a slash command of the app.
    pub fn send_slash_command(&self, channel: &str, user: &str, command: &str, text: &str) {
        self.update(|state| state.send_slash_command(channel, user, (command, &chat_data::escape_text(text))));
    }

    /// A user presses a button with this value below a message of the app.
    pub fn press_button(&self, channel: &str, user: &str, message: &str, data: &str) {
        self.update(|state| state.press_button(channel, user, (message, data)));
    }

    pub fn send_event(&self, event: Value) {
        self.update(|state| state.send_event(event));
    }

    /// Sends the last event again, as if it had not been acknowledged.
    pub fn resend_last_event(&self) {
        self.update(FakeSlackState::resend_last);
    }

    pub fn delete_message(&self, channel: &str, ts: &str) {
        self.update(|state| state.chat_data.messages_mut(channel).retain(|message| message.ts != ts));
    }

    /// The messages that a channel shows now.
    pub fn messages(&self, channel: &str) -> Vec<FakeSlackMessage> {
        self.with_state(|state| state.chat_data.messages(channel).to_vec())
    }

    /// Injects a fault into the next call of a method. `files` and `upload` count as methods here.
    pub fn inject_fault(&self, method: &str, fault: FakeSlackFault) {
        self.update(|state| state.faults.entry(method.to_owned()).or_default().push_back(fault));
    }

    /// Switches Socket Mode off: tells all connections, and opens no new one.
    pub fn disable_socket_mode(&self) {
        self.update(|state| state.socket_mode_enabled = false);
        self.send_command(SocketModeCommand::Disconnect("link_disabled"));
    }

    /// Asks all connections to reconnect; each is closed when there is another one.
    pub fn request_reconnect(&self) {
        self.send_command(SocketModeCommand::Disconnect("refresh_requested"));
    }

    /// Breaks all connections without a close frame.
    pub fn drop_connections(&self) {
        self.send_command(SocketModeCommand::Drop);
    }

    /// Keeps all connections open but stops reading and writing on them.
    pub fn freeze_connections(&self) {
        self.send_command(SocketModeCommand::Freeze);
    }

    pub fn close_connections(&self) {
        self.send_command(SocketModeCommand::Close);
    }

    /// Sends an arbitrary frame on all connections.
    pub fn send_raw_frame(&self, text: &str) {
        self.send_command(SocketModeCommand::Send(text.to_owned()));
    }

    /// Stops and listens again on the same ports. Unacknowledged envelopes are sent again.
    ///
    /// # Cancel safety
    /// Not safe: the server may stay stopped.
    pub async fn restart(&self) {
        self.stop_listening().await;
        self.resume_listening();
    }

    fn add_message(&self, channel: &str, user: &str, text: &str, message: FakeSlackMessage) -> String {
        let message = FakeSlackMessage { author: user.to_owned(), text: chat_data::escape_text(text), ..message };
        self.update(|state| state.add_message(channel, message))
    }
}
