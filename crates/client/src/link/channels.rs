//! The routes of the chat networks.

use quell_protocol::channel::{ChannelDelivery, ChannelRow, ChannelSend, ChannelTest};
use reqwest::Method;

use super::{Link, LinkError, ListOf, Span};

impl Link {
    /// The configured channels and how they fare.
    ///
    /// # Errors
    /// Every [`LinkError`].
    ///
    /// # Cancel safety
    /// Dropping it forgets the answer; nothing changes in the daemon.
    pub async fn channels(&self) -> ListOf<ChannelRow> {
        self.list(&["api", "channels"], &[]).await
    }

    /// Lets the daemon ask a network who the account of a channel is.
    ///
    /// # Errors
    /// Every [`LinkError`]; also when there is no such channel.
    ///
    /// # Cancel safety
    /// Dropping it gives the question up.
    pub async fn test_channel(&self, name: &str) -> Result<ChannelTest, LinkError> {
        let request = self.request(Method::POST, &["api", "channels", name, "test"], &[])?;
        self.ask(request, Span::Ordinary).await
    }

    /// Lets the daemon say something in a chat. It is never asked twice: the chat would show it twice.
    ///
    /// # Errors
    /// Every [`LinkError`]. After [`LinkError::Lost`] it may be shown or not.
    ///
    /// # Cancel safety
    /// Dropping it may or may not leave it shown.
    pub async fn send_to_channel(&self, said: &ChannelSend) -> Result<ChannelDelivery, LinkError> {
        let request = self.request(Method::POST, &["api", "channels", "send"], &[])?;
        self.ask(request.json(said), Span::Ordinary).await
    }
}
