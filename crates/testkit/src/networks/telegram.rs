//! Telegram's Bot API on a loopback port: as strict as its documentation (<https://core.telegram.org/bots/api>), and
//! where that is silent as the server that Telegram publishes. Test users write in chats, and every action of the bot
//! there can be read.
//!
//! It is stricter than the real API in one point: it refuses unknown parameters of a method, so that a misspelt one is
//! found.

mod html;
mod methods;
mod multipart;
mod server;
mod state;
mod test_users;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::http::wait_for_state;
use crate::model::server::bind_free_port;

pub use state::{
    FakeTelegramChat, FakeTelegramChatKind, FakeTelegramFile, FakeTelegramMessage, FakeTelegramState, TelegramCall,
};
pub use test_users::TelegramTestUser;

use server::TelegramServerCommand;

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
    address: SocketAddr,
    state: watch::Sender<FakeTelegramState>,
    commands: mpsc::Sender<(TelegramServerCommand, oneshot::Sender<()>)>,
    _task: JoinSet<()>,
}

impl FakeTelegram {
    /// Starts it on a free port.
    pub async fn start() -> Self {
        let listener = bind_free_port();
        let address = listener.local_addr().unwrap_or_else(|error| panic!("no address: {error}"));
        let (state, mut task) = (watch::Sender::new(FakeTelegramState::default()), JoinSet::new());
        let (orders, inbox) = mpsc::channel(4);
        task.spawn(server::accept_loop(listener, state.clone(), inbox));
        Self { address, state, commands: orders, _task: task }
    }

    /// Replaces `https://api.telegram.org`.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Closes the port and every connection; new ones are refused.
    pub async fn stop(&self) {
        self.send_command(TelegramServerCommand::Stop).await;
    }

    pub async fn start_again(&self) {
        self.send_command(TelegramServerCommand::Start).await;
    }

    /// Closes every connection and keeps listening.
    pub async fn drop_connections(&self) {
        self.send_command(TelegramServerCommand::DropConnections).await;
    }

    async fn send_command(&self, order: TelegramServerCommand) {
        let (done, carried_out) = oneshot::channel();
        let sent = self.commands.send((order, done)).await.is_ok();
        assert!(sent && carried_out.await.is_ok(), "the Telegram of this test is gone");
    }

    /// Injects a fault into the next call of this method; several faults are queued.
    pub fn inject_fault(&self, method: &str, fault: FakeTelegramFault) -> &Self {
        self.state.send_modify(|state| state.faults.entry(method.to_owned()).or_default().push_back(fault));
        self
    }

    /// From now on answers 429 to edits in one chat that follow each other faster. Telegram does not publish its limit.
    pub fn limit_edits(&self, every: Duration) -> &Self {
        self.state.send_modify(|state| state.min_edit_interval = Some(every));
        self
    }

    /// Sets or removes a webhook, as another program would: with a webhook, `getUpdates` is refused.
    pub fn set_webhook(&self, url: &str) -> &Self {
        self.state.send_modify(|state| url.clone_into(&mut state.webhook));
        self
    }

    /// A copy of the server's state.
    pub fn state(&self) -> FakeTelegramState {
        self.state.borrow().clone()
    }

    /// The messages that a chat shows now: after edits and without deleted ones.
    pub fn messages(&self, chat: i64) -> Vec<FakeTelegramMessage> {
        self.state.borrow().messages(chat).to_vec()
    }

    /// Whether a chat shows that the bot is typing.
    #[must_use]
    pub fn is_typing(&self, chat: i64) -> bool {
        self.state.borrow().chats.get(&chat).is_some_and(FakeTelegramChat::is_typing)
    }

    /// The calls of a method so far.
    pub fn calls(&self, method: &str) -> Vec<TelegramCall> {
        self.state.borrow().calls_of(method).cloned().collect()
    }

    pub async fn wait_for(&self, what: &str, condition: impl Fn(&FakeTelegramState) -> bool) -> FakeTelegramState {
        wait_for_state(&self.state, what, condition).await
    }
}
