//! The fake refuses what Discord refuses.

use futures_util::{SinkExt as _, StreamExt as _};
use reqwest::{Client, Method};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use super::*;

const AGENT: &str = "DiscordBot (https://example.org, 1)";

async fn call_api(discord: &FakeDiscord, method: Method, path: &str, body: Value) -> (u16, Value) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let request = Client::builder().user_agent(AGENT).build().unwrap().request(method, discord.base_url() + path);
    let request = request.header("authorization", format!("Bot {TOKEN}")).json(&body);
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap_or_default())
}

async fn send_message(discord: &FakeDiscord, channel: &str, body: Value) -> (u16, Value) {
    call_api(discord, Method::POST, &format!("/channels/{channel}/messages"), body).await
}

struct DiscordGatewayTestClient(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl DiscordGatewayTestClient {
    async fn connect(discord: &FakeDiscord) -> Self {
        let url = format!("{}/?v=10&encoding=json", discord.shared.addresses.gateway);
        let mut client = Self(connect_async(url).await.unwrap().0);
        assert_eq!(client.next_payload().await.unwrap()["op"], 10);
        client
    }

    async fn connect_identified(discord: &FakeDiscord) -> (Self, Value) {
        let mut client = Self::connect(discord).await;
        client.send_payload(identify_payload(TOKEN, gateway_sessions::GUILD_MESSAGES)).await;
        let ready = client.next_payload().await.unwrap();
        assert_eq!(ready["t"], "READY");
        (client, ready["d"].clone())
    }

    async fn send_payload(&mut self, payload: Value) {
        self.0.send(Message::text(payload.to_string())).await.unwrap();
    }

    /// The next payload, or the close code of the server.
    async fn next_payload(&mut self) -> Result<Value, u16> {
        match self.0.next().await {
            Some(Ok(Message::Text(text))) => Ok(serde_json::from_str(&text).unwrap()),
            Some(Ok(Message::Close(Some(frame)))) => Err(frame.code.into()),
            other => panic!("{other:?}"),
        }
    }
}

fn identify_payload(token: &str, intents: u64) -> Value {
    let properties = json!({"os": "linux", "browser": "test", "device": "test"});
    json!({"op": 2, "d": {"token": token, "intents": intents, "properties": properties}})
}

#[rstest]
#[case::too_long(json!({"content": "x".repeat(2001)}), 400, 50035)]
#[case::empty(json!({"content": ""}), 400, 50006)]
#[case::no_text(json!({"content": 1}), 400, 50035)]
#[case::long_nonce(json!({"content": "x", "nonce": "n".repeat(26)}), 400, 50035)]
#[case::no_nonce(json!({"content": "x", "enforce_nonce": true}), 400, 50035)]
#[case::no_such_message(json!({"content": "x", "message_reference": {"message_id": "7"}}), 400, 50035)]
#[tokio::test]
async fn a_message_that_discord_would_not_take_is_refused(#[case] body: Value, #[case] status: u16, #[case] code: u64) {
    let discord = FakeDiscord::start().await;
    let channel = discord.add_channel();
    let (got, answer) = send_message(&discord, &channel, body).await;
    assert_eq!((got, answer["code"].as_u64()), (status, Some(code)), "{answer}");
    assert!(discord.messages(&channel).is_empty());
}

#[tokio::test]
async fn a_nonce_that_is_enforced_shows_its_message_once() {
    let discord = FakeDiscord::start().await;
    let channel = discord.add_channel();
    let body = json!({"content": "once", "nonce": "n", "enforce_nonce": true});
    let (first, second) =
        (send_message(&discord, &channel, body.clone()).await, send_message(&discord, &channel, body).await);
    assert_eq!(first.1["id"], second.1["id"]);
    assert_eq!(discord.messages(&channel).len(), 1);
    send_message(&discord, &channel, json!({"content": "again", "nonce": "n"})).await;
    assert_eq!(discord.messages(&channel).len(), 2, "without enforce_nonce it is shown");
}

#[tokio::test]
async fn missing_rights_and_missing_objects_have_different_codes() {
    let discord = FakeDiscord::start().await;
    let (anna, channel) = (discord.add_person("anna"), discord.add_channel());
    let message = discord.post_message(&channel, &anna, "hello");
    let edit = |message: &str| format!("/channels/{channel}/messages/{message}");
    let body = || json!({"content": "x"});
    assert_eq!(call_api(&discord, Method::PATCH, &edit(&message), body()).await.1["code"], 50005);
    assert_eq!(call_api(&discord, Method::PATCH, &edit("7"), body()).await.1["code"], 10008);
    assert_eq!(send_message(&discord, "7", body()).await.1["code"], 10003);
    discord.mute_bot(&channel);
    assert_eq!(send_message(&discord, &channel, body()).await.1["code"], 50013);
}

#[tokio::test]
async fn without_token_or_user_agent_nothing_is_done() {
    let discord = FakeDiscord::start().await;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = discord.base_url() + "/users/@me";
    let client = Client::builder().build().unwrap();
    let answer = client.get(&url).header("authorization", format!("Bot {TOKEN}")).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 403);
    let answer = client.get(&url).header("user-agent", AGENT).header("authorization", TOKEN).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 401);
}

#[tokio::test]
async fn the_sixth_message_in_a_row_has_to_wait() {
    let discord = FakeDiscord::start().await;
    let channel = discord.add_channel();
    for _ in 0..5 {
        assert_eq!(send_message(&discord, &channel, json!({"content": "x"})).await.0, 200);
    }
    let (status, answer) = send_message(&discord, &channel, json!({"content": "x"})).await;
    assert_eq!((status, &answer["global"]), (429, &json!(false)));
    assert!(answer["retry_after"].as_f64().is_some_and(|seconds| seconds > 0.0 && seconds <= 5.0), "{answer}");
}

#[rstest]
#[case::token(identify_payload("another", 512), 4004)]
#[case::unknown_intent(identify_payload(TOKEN, 1 << 30), 4013)]
#[case::privileged_intent(identify_payload(TOKEN, 1 << 1), 4014)]
#[case::no_properties(json!({"op": 2, "d": {"token": TOKEN, "intents": 512}}), 4002)]
#[case::unknown_opcode(json!({"op": 77, "d": null}), 4001)]
#[case::too_long(json!({"op": 1, "d": "x".repeat(4096)}), 4002)]
#[case::resume_with_another_token(json!({"op": 6, "d": {"token": "another", "session_id": "s", "seq": 1}}), 4004)]
#[tokio::test]
async fn an_invalid_payload_closes_the_connection(#[case] payload: Value, #[case] code: u16) {
    let discord = FakeDiscord::start().await;
    let mut client = DiscordGatewayTestClient::connect(&discord).await;
    client.send_payload(payload).await;
    assert_eq!(client.next_payload().await, Err(code));
    discord.wait_for("the code", |state| state.close_codes_sent == [code]).await;
}

#[tokio::test]
async fn a_client_without_heartbeats_is_closed() {
    let discord = FakeDiscord::start().await;
    discord.set_heartbeat_interval(Duration::from_millis(10));
    let mut client = DiscordGatewayTestClient::connect(&discord).await;
    assert_eq!(client.next_payload().await, Err(4009));
}

#[tokio::test]
async fn a_session_goes_on_where_it_was_and_not_before_what_was_confirmed() {
    let discord = FakeDiscord::start().await;
    let (anna, channel) = (discord.add_person("anna"), discord.add_channel());
    let (mut client, ready) = DiscordGatewayTestClient::connect_identified(&discord).await;
    let resume = |seq: u64| json!({"op": 6, "d": {"token": TOKEN, "session_id": ready["session_id"], "seq": seq}});
    discord.post_message(&channel, &anna, "one");
    assert_eq!(client.next_payload().await.unwrap()["s"], 2);
    client.send_payload(json!({"op": 1, "d": 2})).await;
    assert_eq!(client.next_payload().await.unwrap()["op"], 11);
    discord.drop_connections();
    discord.wait_for("the end", |state| state.connections == 0).await;
    discord.post_message(&channel, &anna, "two");

    let mut client = DiscordGatewayTestClient::connect(&discord).await;
    client.send_payload(resume(1)).await;
    assert_eq!(client.next_payload().await.unwrap(), json!({"op": 9, "d": false}), "event 2 was confirmed");
    let mut client = DiscordGatewayTestClient::connect(&discord).await;
    client.send_payload(resume(99)).await;
    assert_eq!(client.next_payload().await, Err(4007));
    let mut client = DiscordGatewayTestClient::connect(&discord).await;
    client.send_payload(resume(2)).await;
    let (missed, resumed) = (client.next_payload().await.unwrap(), client.next_payload().await.unwrap());
    // Without the message content intent, the content of guild messages is empty.
    assert_eq!((&missed["t"], &missed["d"]["content"]), (&json!("MESSAGE_CREATE"), &json!("")));
    assert_eq!((&missed["s"], &resumed["t"]), (&json!(3), &json!("RESUMED")));
}

#[tokio::test]
async fn only_a_close_with_1000_or_1001_ends_the_session() {
    let discord = FakeDiscord::start().await;
    for (code, goes_on) in [(4000, true), (1000, false)] {
        let (mut client, ready) = DiscordGatewayTestClient::connect_identified(&discord).await;
        let left = discord.state().close_codes_received.len();
        client.0.close(Some(CloseFrame { code: code.into(), reason: "".into() })).await.unwrap();
        discord.wait_for("the end", |state| state.close_codes_received.len() > left).await;
        let mut client = DiscordGatewayTestClient::connect(&discord).await;
        client.send_payload(json!({"op": 6, "d": {"token": TOKEN, "session_id": ready["session_id"], "seq": 1}})).await;
        assert_eq!(client.next_payload().await.unwrap()["op"], if goes_on { 0 } else { 9 }, "{code}");
    }
}
