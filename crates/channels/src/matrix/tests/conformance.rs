//! Matrix in the tests that all networks share: alice writes in a room of the scripted homeserver.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::matrix_network;
use super::scripted_homeserver::{RecordedCall, ScriptedHomeserver, ScriptedReply};
use crate::matrix::MatrixNetwork;
use crate::network::conformance::{NetworkFixture, SendFault};
use crate::network::test_support::chat_address;
use crate::network::{ChatAddress, InboundSink, Network, async_trait};

const ROOM: &str = "!room:quell.test";

pub(crate) struct MatrixConformance {
    server: ScriptedHomeserver,
    matrix: MatrixNetwork,
    written: AtomicUsize,
}

impl MatrixConformance {
    pub(crate) async fn start() -> Self {
        let server = ScriptedHomeserver::start().await;
        let matrix = matrix_network(&server.base_url(), "token", json!({"allow": ["*"]}));
        Self { server, matrix, written: AtomicUsize::new(0) }
    }
}

/// The texts of the room: edits change their message, and a repeated transaction is the same message.
fn shown_texts(calls: &[RecordedCall]) -> Vec<String> {
    let (mut order, mut texts) = (Vec::new(), BTreeMap::new());
    for call in calls {
        let Some((_, transaction)) = call.request_line.split_once("/send/m.room.message/") else { continue };
        let text = |content: &serde_json::Value| content["body"].as_str().unwrap().to_owned();
        match call.body["m.relates_to"]["event_id"].as_str() {
            Some(edited) => drop(texts.insert(edited.to_owned(), text(&call.body["m.new_content"]))),
            None => {
                let id = format!("${transaction}");
                if texts.insert(id.clone(), text(&call.body)).is_none() {
                    order.push(id);
                }
            }
        }
    }
    order.into_iter().map(|id| texts[&id].clone()).collect()
}

#[async_trait]
impl NetworkFixture for MatrixConformance {
    fn network(&self) -> &dyn Network {
        &self.matrix
    }

    fn address(&self) -> ChatAddress {
        chat_address(ROOM)
    }

    async fn write(&self, text: &str, _: &dyn InboundSink) {
        let number = self.written.fetch_add(1, Ordering::Relaxed) + 1;
        let event = json!({
            "type": "m.room.message", "event_id": format!("$event{number}"), "sender": "@alice:quell.test",
            "content": {"msgtype": "m.text", "body": text},
        });
        let room = json!({"timeline": {"events": [event]}});
        let news = json!({"next_batch": format!("s{number}"), "rooms": {"join": {ROOM: room}}});
        self.server.script_reply("since=", ScriptedReply::Json(200, news));
    }

    async fn wait_for_shown(&self, _: usize) -> Vec<String> {
        shown_texts(&self.server.calls())
    }

    fn fail_next_send(&self, fault: SendFault) {
        let reply = match fault {
            SendFault::RateLimited(seconds) => {
                let body = json!({"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": seconds * 1000});
                ScriptedReply::Json(429, body)
            }
            SendFault::AnswerLost => ScriptedReply::ConnectionLost,
        };
        self.server.script_reply("/send/", reply);
    }
}
