//! Routes of the chat network channels.

use quell_protocol::channel::{ChannelDelivery, ChannelRow, ChannelSend, ChannelTest};
use reqwest::Method;

use super::{ClientError, ClientRequestTimeout, DaemonClient, ListResult};

impl DaemonClient {
    /// # Cancel safety
    /// Dropping it discards the answer and changes nothing in the daemon.
    pub async fn list_channels(&self) -> ListResult<ChannelRow> {
        self.list_items(&["api", "channels"], &[]).await
    }

    /// Asks the network of a channel which account it uses; fails if there is no such channel.
    ///
    /// # Cancel safety
    /// Dropping it abandons the test.
    pub async fn test_channel(&self, name: &str) -> Result<ChannelTest, ClientError> {
        let request = self.build_request(Method::POST, &["api", "channels", name, "test"], &[])?;
        self.fetch_json(request, ClientRequestTimeout::Default).await
    }

    /// Sends a text to a chat. It is never retried, because the chat could show it twice.
    ///
    /// # Errors
    /// After [`ClientError::ConnectionLost`] the text may or may not have been shown.
    ///
    /// # Cancel safety
    /// If dropped, the text may or may not have been shown.
    pub async fn send_to_channel(&self, message: &ChannelSend) -> Result<ChannelDelivery, ClientError> {
        let request = self.build_request(Method::POST, &["api", "channels", "send"], &[])?;
        self.fetch_json(request.json(message), ClientRequestTimeout::Default).await
    }
}
