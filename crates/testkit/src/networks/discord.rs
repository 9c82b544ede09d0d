//! Discord on two loopback ports: REST API v10 and gateway v10, as strict as their documentation, with test users.
//!
//! Sources: the public documentation of Discord (API reference, gateway, rate limits, opcodes and status codes).

mod chat_data;
mod gateway;
mod gateway_sessions;
mod interactions;
mod rate_limits;
mod rest_api;
mod state;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Deref;

use serde_json::{Value, json};

use super::FakeChatFile;
use super::socket_network::{FakeSocketNetwork, SocketNetworkState};
use gateway::FakeGatewayCommand;

pub use chat_data::{FakeDiscordChannel, FakeDiscordData, FakeDiscordMessage};
pub use interactions::{FakeDiscordPress, FakeInteractionResponse};
pub use rate_limits::DiscordRoute;
pub use state::{DiscordCall, FakeDiscordFault, FakeDiscordState, RateLimitScope};

/// The bot's token, the only one that the server accepts.
pub const TOKEN: &str = "MTEwMDAwMDAwMDAwMDAwMDAwMQ.fake.token-of-the-tests";

/// The server. Dropping it closes every connection.
#[derive(Debug)]
pub struct FakeDiscord(FakeSocketNetwork<FakeDiscordState, FakeGatewayCommand>);

type FakeDiscordShared = SocketNetworkState<FakeDiscordState, FakeGatewayCommand>;

impl Deref for FakeDiscord {
    type Target = FakeSocketNetwork<FakeDiscordState, FakeGatewayCommand>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl FakeDiscord {
    pub async fn start() -> Self {
        let network =
            FakeSocketNetwork::start(FakeDiscordState::new(), rest_api::answer_request, gateway::serve_connection);
        network.update(|state| {
            state.gateway_url = format!("ws://{}", network.sockets.address());
            state.file_base_url = network.api.url() + "/attachments";
        });
        Self(network)
    }

    /// Base URL of the REST API.
    pub fn base_url(&self) -> String {
        self.api.url() + "/api/v10"
    }

    /// The id of the bot under test.
    pub fn bot_id(&self) -> String {
        chat_data::BOT.to_owned()
    }

    /// Adds a person; returns the id.
    pub fn add_person(&self, name: &str) -> String {
        self.update(|state| state.chat_data.add_user(name, false))
    }

    pub fn add_other_bot(&self, name: &str) -> String {
        self.update(|state| state.chat_data.add_user(name, true))
    }

    /// Adds a channel of the guild.
    pub fn add_channel(&self) -> String {
        self.update(|state| state.chat_data.add_channel(FakeDiscordChannel::default()))
    }

    pub fn add_thread(&self, channel: &str) -> String {
        let thread = FakeDiscordChannel { parent: Some(channel.to_owned()), ..FakeDiscordChannel::default() };
        self.update(|state| state.chat_data.add_channel(thread))
    }

    /// Opens a direct chat with a user.
    pub fn add_direct_channel(&self, user: &str) -> String {
        let direct = FakeDiscordChannel { recipient: Some(user.to_owned()), ..FakeDiscordChannel::default() };
        self.update(|state| state.chat_data.add_channel(direct))
    }

    /// A user writes a message; `<@id>` in the text mentions another user. Returns the message id.
    pub fn post_message(&self, channel: &str, user: &str, text: &str) -> String {
        self.add_message(channel, user, text, FakeDiscordMessage::default())
    }

    /// A user replies to a message.
    pub fn post_reply(&self, channel: &str, user: &str, to: &str, text: &str) -> String {
        let reply_to = Some(to.to_owned());
        self.add_message(channel, user, text, FakeDiscordMessage { reply_to, ..FakeDiscordMessage::default() })
    }

    /// A user writes a message with a file: its name, media type and content.
    pub fn post_message_with_file(&self, channel: &str, user: &str, text: &str, file: (&str, &str, &[u8])) -> String {
        let (name, media_type, bytes) = file;
        let id = self.update(|state| state.chat_data.new_id());
        let file = FakeChatFile { id, name: name.to_owned(), media_type: media_type.to_owned(), bytes: bytes.to_vec() };
        self.add_message(channel, user, text, FakeDiscordMessage { files: vec![file], ..FakeDiscordMessage::default() })
    }

    /// A user presses a button with this data below a message of the bot.
    pub fn press_button(&self, channel: &str, user: &str, message: &str, data: &str) {
        self.update(|state| state.press_button(channel, user, (message, data)));
    }

    pub fn delete_message(&self, channel: &str, id: &str) {
        self.update(|state| {
            if let Some(channel) = state.chat_data.channel_mut(channel) {
                channel.messages.retain(|message| message.id != id);
            }
        });
    }

    /// Sends an arbitrary event to every session.
    pub fn dispatch_event(&self, event: &str, data: &Value) {
        self.update(|state| state.send_event(event, data));
    }

    /// The messages that a channel shows now.
    pub fn messages(&self, channel: &str) -> Vec<FakeDiscordMessage> {
        self.with_state(|state| state.chat_data.channel(channel).map(|channel| channel.messages.clone()))
            .unwrap_or_default()
    }

    /// Number of typing indicators in a channel.
    pub fn typing_count(&self, channel: &str) -> usize {
        self.with_state(|state| state.chat_data.channel(channel).map_or(0, |channel| channel.typing))
    }

    /// Injects a fault into the next call of a route.
    pub fn inject_fault(&self, route: DiscordRoute, fault: FakeDiscordFault) {
        self.update(|state| match state.faults.iter_mut().find(|(of, _)| *of == route) {
            Some((_, faults)) => faults.push_back(fault),
            None => state.faults.push((route, VecDeque::from([fault]))),
        });
    }

    /// Breaks all gateway connections without a close frame.
    pub fn drop_connections(&self) {
        self.send_command(FakeGatewayCommand::Drop);
    }

    /// Closes all gateway connections with a code.
    pub fn close_connections(&self, code: u16) {
        self.send_command(FakeGatewayCommand::Close(code));
    }

    /// Asks all clients to reconnect: opcode 7.
    pub fn request_reconnect(&self) {
        self.send_command(FakeGatewayCommand::Send(json!({"op": 7, "d": null}).to_string()));
    }

    /// Asks all clients for a heartbeat: opcode 1.
    pub fn request_heartbeat(&self) {
        self.send_command(FakeGatewayCommand::Send(json!({"op": 1, "d": null}).to_string()));
    }

    /// Ends all sessions and tells the clients: opcode 9.
    pub fn end_sessions(&self) {
        self.update(|state| state.sessions.clear());
        self.send_command(FakeGatewayCommand::Send(json!({"op": 9, "d": false}).to_string()));
    }

    /// Sends an arbitrary frame on all gateway connections.
    pub fn send_raw_frame(&self, text: &str) {
        self.send_command(FakeGatewayCommand::Send(text.to_owned()));
    }

    /// Stops and listens again on the same ports, without its sessions.
    ///
    /// # Cancel safety
    /// Not safe: the server may stay stopped.
    pub async fn restart(&self) {
        self.stop_listening().await;
        self.update(|state| state.sessions.clear());
        self.resume_listening();
    }

    fn add_message(&self, channel: &str, user: &str, text: &str, message: FakeDiscordMessage) -> String {
        let message = FakeDiscordMessage { author: user.to_owned(), text: text.to_owned(), ..message };
        self.update(|state| state.add_message(channel, message))
    }
}
