//! Telegram's Bot API on a loopback port: as strict as its documentation (<https://core.telegram.org/bots/api>), and
//! where that is silent as the server that Telegram publishes. Test users write in chats, and every action of the bot
//! there can be read.
//!
//! It is stricter than the real API in one point: it refuses unknown parameters of a method, so that a misspelt one is
//! found.

mod html;
mod methods;
mod server;
mod state;
mod test_users;
#[cfg(test)]
mod tests;

use std::ops::Deref;

use crate::fake_server::{FakePort, SharedState};

pub use state::{
    FakeTelegramChat, FakeTelegramChatKind, FakeTelegramFile, FakeTelegramMessage, FakeTelegramPress,
    FakeTelegramState, TelegramCall,
};
pub use test_users::TelegramTestUser;

pub const TOKEN: &str = "1234567:AAFakeTokenOfTheTestkit_0123456789ab";
pub const BOT_ID: i64 = 1_234_567;
/// Without the `@`.
pub const BOT_NAME: &str = "quell_test_bot";

/// Fault that is injected into one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FakeTelegramFault {
    /// Not executed; answered with this status and description.
    Refuse(u16, &'static str),
    /// Not executed; answered with 429 and `retry_after` in seconds.
    RateLimited(u64),
    /// Not executed; answered with a proxy's HTML page that names the request path, as proxies often do.
    HtmlPage(u16),
    /// Not executed; the connection is closed.
    Drop,
    /// Not executed; not answered until the client disconnects.
    Silent,
    /// Executed; the connection is closed without an answer.
    LoseAnswer,
    /// Executed; answered with a proxy's HTML page.
    ActThenHtmlPage(u16),
}

/// The server. Dropping it closes every connection.
#[derive(Debug)]
pub struct FakeTelegram {
    port: FakePort,
    state: SharedState<FakeTelegramState>,
}

impl Deref for FakeTelegram {
    type Target = SharedState<FakeTelegramState>;

    fn deref(&self) -> &Self::Target {
        &self.state
    }
}

impl FakeTelegram {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        let state = SharedState::<FakeTelegramState>::default();
        let port = FakePort::start(&state, server::serve_connection);
        Self { port, state }
    }

    /// Replaces `https://api.telegram.org`.
    pub fn base_url(&self) -> String {
        self.port.url()
    }

    /// Closes the port and every connection; new ones are refused.
    pub async fn stop(&self) {
        self.port.stop().await;
    }

    pub async fn start_again(&self) {
        self.port.listen_again();
    }

    /// Injects a fault into the next call of this method; several faults are queued.
    pub fn inject_fault(&self, method: &str, fault: FakeTelegramFault) -> &Self {
        self.update(|state| state.faults.entry(method.to_owned()).or_default().push_back(fault));
        self
    }

    /// The messages that a chat shows now: after edits and without deleted ones.
    pub fn messages(&self, chat: i64) -> Vec<FakeTelegramMessage> {
        self.with_state(|state| state.messages(chat).to_vec())
    }

    /// Whether a chat shows that the bot is typing.
    #[must_use]
    pub fn is_typing(&self, chat: i64) -> bool {
        self.with_state(|state| state.chats.get(&chat).is_some_and(FakeTelegramChat::is_typing))
    }

    /// The calls of a method so far.
    pub fn calls(&self, method: &str) -> Vec<TelegramCall> {
        self.with_state(|state| state.calls_of(method).cloned().collect())
    }
}
