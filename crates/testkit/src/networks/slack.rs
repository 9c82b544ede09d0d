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

use std::collections::VecDeque;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{broadcast, watch};

use super::FakeChatFile;
use crate::fake_server::{FakePort, serve_http, update_state, wait_for_state};
use socket_mode::SocketModeCommand;

pub use chat_data::{FakeSlackData, FakeSlackMessage};
pub use state::{FakeSlackFault, FakeSlackState, SlackCall};

/// The bot token that the server accepts.
pub const BOT_TOKEN: &str = "xoxb-1111-2222-fakeTokenOfTheTests";
/// The app-level token that the server accepts.
pub const APP_TOKEN: &str = "xapp-1-A1111-3333-fakeTokenOfTheTests";
/// User id of the bot under test.
pub const BOT: &str = "U0QUELL";

/// Commands that a connection may have to take yet; more than any test sends.
const MAX_COMMANDS: usize = 1024;

/// The server. Dropping it closes every connection.
#[derive(Debug)]
pub struct FakeSlack {
    shared: Arc<FakeSlackShared>,
    api: FakePort,
    sockets: FakePort,
}

#[derive(Debug)]
struct FakeSlackShared {
    state: watch::Sender<FakeSlackState>,
    /// Commands for every open connection.
    commands: broadcast::Sender<SocketModeCommand>,
}

impl FakeSlack {
    pub async fn start() -> Self {
        let state = watch::Sender::new(FakeSlackState::new());
        let shared = Arc::new(FakeSlackShared { state, commands: broadcast::Sender::new(MAX_COMMANDS) });
        let api = FakePort::start(&shared, |stream, shared| {
            serve_http(stream, move |incoming| {
                ready(shared.update_state(|state| web_api::answer_request(state, &incoming)).into())
            })
        });
        let sockets = FakePort::start(&shared, socket_mode::serve_connection);
        shared.update_state(|state| {
            state.api_url = api.url();
            state.socket_url = format!("ws://{}", sockets.address());
        });
        Self { shared, api, sockets }
    }

    /// Base URL of the Web API.
    pub fn base_url(&self) -> String {
        self.api.url() + "/api"
    }

    /// Adds a person; returns the id.
    pub fn add_person(&self, name: &str) -> String {
        self.update_state(|state| state.chat_data.add_person(name))
    }

    /// Adds a channel that the app is in; returns the id.
    pub fn add_channel(&self) -> String {
        self.update_state(|state| state.chat_data.add_channel('C'))
    }

    /// Opens a direct chat with the app.
    pub fn add_direct_channel(&self) -> String {
        self.update_state(|state| state.chat_data.add_channel('D'))
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
        let id = self.update_state(|state| state.chat_data.new_id('F'));
        let file = FakeChatFile { id, name: name.to_owned(), media_type: media_type.to_owned(), bytes: bytes.to_vec() };
        self.add_message(channel, user, text, FakeSlackMessage { files: vec![file], ..FakeSlackMessage::default() })
    }

    /// A user runs a slash command of the app.
    pub fn send_slash_command(&self, channel: &str, user: &str, command: &str, text: &str) {
        self.update_state(|state| state.send_slash_command(channel, user, (command, &chat_data::escape_text(text))));
    }

    pub fn send_event(&self, event: Value) {
        self.update_state(|state| state.send_event(event));
    }

    /// Sends the last event again, as if it had not been acknowledged.
    pub fn resend_last_event(&self) {
        self.update_state(FakeSlackState::resend_last);
    }

    pub fn delete_message(&self, channel: &str, ts: &str) {
        self.update_state(|state| state.chat_data.messages_mut(channel).retain(|message| message.ts != ts));
    }

    /// The messages that a channel shows now.
    pub fn messages(&self, channel: &str) -> Vec<FakeSlackMessage> {
        self.shared.state.borrow().chat_data.messages(channel).to_vec()
    }

    /// A copy of the server's state.
    pub fn state(&self) -> FakeSlackState {
        self.shared.state.borrow().clone()
    }

    /// Waits until the server's state fulfils a condition.
    pub async fn wait_for(&self, what: &str, condition: impl Fn(&FakeSlackState) -> bool) -> FakeSlackState {
        wait_for_state(&self.shared.state, what, condition).await
    }

    /// Injects a fault into the next call of a method. `files` and `upload` count as methods here.
    pub fn inject_fault(&self, method: &str, fault: FakeSlackFault) {
        self.update_state(|state| state.faults.entry(method.to_owned()).or_insert_with(VecDeque::new).push_back(fault));
    }

    /// Replaces Slack's rate limit of a method: this many calls within a time.
    pub fn set_rate_limit(&self, method: &str, calls: usize, within: Duration) {
        self.update_state(|state| state.limits.insert(method.to_owned(), (calls, within)));
    }

    /// Replaces the scopes of the bot.
    pub fn set_scopes(&self, scopes: &str) {
        self.update_state(|state| state.scopes = scopes.to_owned());
    }

    /// Switches Socket Mode off: tells all connections, and opens no new one.
    pub fn disable_socket_mode(&self) {
        self.update_state(|state| state.socket_mode_enabled = false);
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

    /// Closes its ports and all connections.
    pub async fn stop_listening(&self) {
        self.api.stop().await;
        self.sockets.stop().await;
    }

    pub fn resume_listening(&self) {
        self.api.listen_again();
        self.sockets.listen_again();
    }

    fn add_message(&self, channel: &str, user: &str, text: &str, message: FakeSlackMessage) -> String {
        let message = FakeSlackMessage { author: user.to_owned(), text: chat_data::escape_text(text), ..message };
        self.update_state(|state| state.add_message(channel, message))
    }

    fn update_state<T>(&self, change: impl FnOnce(&mut FakeSlackState) -> T) -> T {
        self.shared.update_state(change)
    }

    fn send_command(&self, command: SocketModeCommand) {
        // Without a connection nobody receives it.
        let _ = self.shared.commands.send(command);
    }
}

impl FakeSlackShared {
    fn update_state<T>(&self, change: impl FnOnce(&mut FakeSlackState) -> T) -> T {
        update_state(&self.state, change)
    }
}
