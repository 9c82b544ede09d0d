//! The webhook in the tests that all networks share. The program's calls are handed to the channel without a server.

use std::sync::atomic::{AtomicUsize, Ordering};

use quell_protocol::AttachmentKind;
use quell_testkit::networks::webhook::{FakeWebhookFault, FakeWebhookReceiver};
use serde_json::{Value, json};

use super::receiving::{NOW, signed_headers};
use super::webhook_network;
use crate::network::conformance::{NetworkFixture, SendFault};
use crate::network::test_support::chat_address;
use crate::network::{ChatAddress, InboundEndpoint as _, InboundSink, Network, async_trait};
use crate::webhook::WebhookNetwork;

pub(crate) struct WebhookConformance {
    receiver: FakeWebhookReceiver,
    webhook: WebhookNetwork,
    written: AtomicUsize,
}

impl WebhookConformance {
    pub(crate) async fn start() -> Self {
        let receiver = FakeWebhookReceiver::start().await;
        let webhook = webhook_network(&receiver);
        Self { receiver, webhook, written: AtomicUsize::new(0) }
    }

    fn post(&self, text: &str, attachments: Value, sink: &dyn InboundSink) {
        let id = self.written.fetch_add(1, Ordering::Relaxed).to_string();
        let body =
            json!({"id": id, "sender": "ann", "target": "t", "text": text, "attachments": attachments}).to_string();
        sink.on_message(self.webhook.parse_request(&signed_headers(&body, NOW), body.as_bytes(), NOW).unwrap());
    }
}

#[async_trait]
impl NetworkFixture for WebhookConformance {
    fn network(&self) -> &dyn Network {
        &self.webhook
    }

    fn address(&self) -> ChatAddress {
        chat_address("t")
    }

    async fn write(&self, text: &str, sink: &dyn InboundSink) {
        self.post(text, json!([]), sink);
    }

    async fn write_file(&self, bytes: &'static [u8], sink: &dyn InboundSink) {
        let url = self.receiver.add_file("/files/a.txt", bytes);
        self.post("look", json!([{"kind": AttachmentKind::File, "source": url}]), sink);
    }

    async fn wait_for_shown(&self, _: usize) -> Vec<String> {
        self.receiver.state().texts("t").into_iter().map(str::to_owned).collect()
    }

    fn fail_next_send(&self, fault: SendFault) {
        self.receiver.inject_fault(match fault {
            SendFault::RateLimited(seconds) => FakeWebhookFault::Status(429, Some(seconds)),
            SendFault::AnswerLost => FakeWebhookFault::LoseAnswer,
        });
    }
}
