//! Telegram in the tests that all networks share: ann writes in private.

use quell_testkit::networks::telegram::{FakeTelegram, FakeTelegramFault, FakeTelegramFile};

use super::{ANN, chat_address, telegram_network};
use crate::network::conformance::{NetworkFixture, SendFault};
use crate::network::{ChatAddress, InboundSink, MessageId, Network, async_trait};
use crate::telegram::TelegramNetwork;

pub(crate) struct TelegramConformance {
    server: FakeTelegram,
    telegram: TelegramNetwork,
}

impl TelegramConformance {
    pub(crate) async fn start() -> Self {
        let server = FakeTelegram::start().await;
        let telegram = telegram_network(&server);
        Self { server, telegram }
    }
}

#[async_trait]
impl NetworkFixture for TelegramConformance {
    fn network(&self) -> &dyn Network {
        &self.telegram
    }

    fn address(&self) -> ChatAddress {
        chat_address(ANN.id)
    }

    async fn write(&self, text: &str, _: &dyn InboundSink) {
        self.server.post_message(ANN.id, ANN, text);
    }

    async fn write_file(&self, bytes: &'static [u8], _: &dyn InboundSink) {
        self.server.post_file(ANN.id, ANN, &FakeTelegramFile::new("document", "a.txt", "text/plain", bytes), "");
    }

    async fn wait_for_shown(&self, _: usize) -> Vec<String> {
        self.server.state().bot_texts(ANN.id).into_iter().map(str::to_owned).collect()
    }

    fn press(&self, message: &MessageId, data: &str) {
        self.server.press_button(ANN.id, ANN, message.0.parse().unwrap(), data);
    }

    fn fail_next_send(&self, fault: SendFault) {
        let fault = match fault {
            SendFault::RateLimited(seconds) => FakeTelegramFault::RateLimited(seconds),
            SendFault::AnswerLost => FakeTelegramFault::LoseAnswer,
        };
        self.server.inject_fault("sendMessage", fault);
    }

    async fn stop_server(&self) {
        self.server.stop().await;
    }

    async fn start_server(&self) {
        self.server.start_again().await;
    }
}
