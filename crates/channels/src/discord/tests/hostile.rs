//! Malformed payloads: none of them ends the channel or is delivered.

use rstest::rstest;
use serde_json::Value;

use super::receiving::parse_changed;
use super::*;

#[tokio::test]
async fn payloads_that_are_none_are_passed_over() {
    let fixture = DiscordFixture::new().await;
    let deep = format!(r#"{{"op":0,"s":2,"t":"MESSAGE_CREATE","d":{}1{}}}"#, "[".repeat(50_000), "]".repeat(50_000));
    let wide = format!(r#"{{"op":0,"s":null,"t":"MESSAGE_CREATE","d":[{}0]}}"#, "0,".repeat(1_000_000));
    fixture.listen().await;
    for text in ["", "{", "null", "[]", "7", "{}", r#"{"op":"0"}"#, r#"{"op":-1}"#, r#"{"op":99,"d":{}}"#] {
        fixture.server.send_raw_frame(text);
    }
    fixture.server.send_raw_frame(r#"{"op":0,"s":"2","t":"MESSAGE_CREATE","d":{}}"#);
    fixture.server.send_raw_frame(r#"{"op":0,"s":null,"t":"READY","d":{"user":7}}"#);
    fixture.server.send_raw_frame(r#"{"op":10,"d":{"heartbeat_interval":0}}"#);
    fixture.server.send_raw_frame(&deep);
    fixture.server.send_raw_frame(&wide);
    fixture.post("still there");
    assert_eq!(fixture.wait_for_texts(1).await, ["still there"]);
    assert_eq!((fixture.listen_errors(), fixture.server.state().identified), (Vec::new(), 1));
}

#[rstest]
#[case::no_author("author", Value::Null)]
#[case::an_author_of_another_type("author", json!("anna"))]
#[case::a_sender_that_is_no_number("author", json!({"id": "../400", "username": "anna"}))]
#[case::no_id("id", Value::Null)]
#[case::an_id_that_is_no_number("id", json!("1/2"))]
#[case::a_number_for_an_id("id", json!(100))]
#[case::an_endless_id("id", json!("1".repeat(21)))]
#[case::no_channel("channel_id", json!({}))]
#[case::a_type_of_another_type("type", json!("0"))]
#[case::an_empty_text("content", json!(""))]
#[case::a_text_of_another_type("content", json!(["hello"]))]
fn a_message_without_what_it_needs_is_not_heard(#[case] key: &str, #[case] value: Value) {
    assert!(parse_changed(|_| {}).is_some());
    assert_eq!(parse_changed(|event| event[key] = value), None);
}

#[rstest]
#[case("mentions", json!({"id": 1}))]
#[case("mentions", json!([null, 7, {"id": 7}, {"id": "7", "username": 7}]))]
#[case("member", json!("nick"))]
#[case("attachments", json!([null, 7, {"url": 7}, {"url": "x".repeat(10_000)}]))]
#[case("referenced_message", json!([]))]
fn unneeded_fields_may_have_any_value(#[case] key: &str, #[case] value: Value) {
    let inbound = parse_changed(|event| event[key] = value).unwrap();
    assert_eq!((inbound.text.as_str(), inbound.attachments.len()), ("hello", 0));
}

#[test]
fn many_mentions_and_files_are_bounded_and_take_linear_time() {
    let inbound = parse_changed(|event| {
        event["content"] = json!("<@5".repeat(300_000));
        event["mentions"] = (0..10_000).map(|id| json!({"id": id.to_string(), "username": "x"})).collect();
        event["attachments"] = (0..10_000).map(|_| json!({"url": "https://cdn.discordapp.com/x"})).collect();
    });
    let inbound = inbound.unwrap();
    assert_eq!((inbound.text.len(), inbound.attachments.len()), (900_000, 10));
}

#[test]
fn a_cursor_that_is_none_is_passed_over() {
    for text in ["", "{", "7", "{}", r#"{"session":1}"#] {
        assert_eq!(gateway_session::GatewaySession::from_cursor(text), None, "{text}");
    }
}

#[tokio::test]
async fn a_gateway_with_less_security_than_the_api_gets_no_token() {
    let discord = DiscordNetwork::new("discord", &discord_config("https://127.0.0.1:1/api/v10")).unwrap();
    let cursor = r#"{"session":"s","url":"ws://127.0.0.1:1","id":"1","name":"quell","seq":1}"#;
    let sink = RecordingInboundSink::new();
    sink.save_cursor(cursor.to_owned()).await;
    let ListenError::Connection(why) = discord.listen(&sink).await else { panic!("it listens") };
    assert!(why.contains("where its gateway is"), "{why}");
}
