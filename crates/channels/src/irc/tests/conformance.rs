//! IRC in the tests that all networks share: a real ngircd, and ann, who writes in private.

use quell_testkit::networks::irc::{IrcServer, IrcTestUser};
use tokio::sync::Mutex;

use super::*;
use crate::network::conformance::NetworkFixture;

pub(crate) struct IrcConformance {
    irc: IrcNetwork,
    server: Mutex<(IrcServer, IrcTestUser)>,
}

impl IrcConformance {
    pub(crate) async fn start() -> Self {
        let server = IrcServer::start().await;
        let ann = IrcTestUser::connect(&server, "ann").await;
        let irc = irc_network(&server.address(), json!({"join": []}), None);
        Self { irc, server: Mutex::new((server, ann)) }
    }
}

#[async_trait]
impl NetworkFixture for IrcConformance {
    fn network(&self) -> &dyn Network {
        &self.irc
    }

    fn address(&self) -> ChatAddress {
        chat_address("ann")
    }

    async fn write(&self, text: &str, _: &dyn InboundSink) {
        self.server.lock().await.1.send_message("quell", text);
    }

    async fn wait_for_shown(&self, count: usize) -> Vec<String> {
        self.server.lock().await.1.wait_messages_from("quell", count).await
    }

    async fn stop_server(&self) {
        self.server.lock().await.0.kill();
    }

    async fn start_server(&self) {
        let (server, ann) = &mut *self.server.lock().await;
        server.restart().await;
        *ann = IrcTestUser::connect(server, "ann").await;
    }
}
