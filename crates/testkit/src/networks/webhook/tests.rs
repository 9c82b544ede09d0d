//! The receiver refuses what docs/channels/webhook.md does not allow.

use serde_json::{Value, json};

use super::delivery_rules::unix_now;
use super::{FakeWebhookReceiver, TOKEN, http_client, sign};

/// Posts a signed body; `change` edits the headers first.
async fn post_signed(fake: &FakeWebhookReceiver, body: &Value, change: impl Fn(&mut Vec<(String, String)>)) -> u16 {
    let (text, at) = (body.to_string(), unix_now().to_string());
    let of = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
    let mut headers = vec![
        ("content-type".to_owned(), "application/json".to_owned()),
        ("quell-event".to_owned(), of("type")),
        ("quell-delivery".to_owned(), of("id")),
        ("quell-signature".to_owned(), sign(TOKEN, &at, text.as_bytes())),
        ("quell-timestamp".to_owned(), at),
    ];
    change(&mut headers);
    let request =
        headers.iter().fold(http_client().post(fake.reply_url()), |request, (name, value)| request.header(name, value));
    request.body(text).send().await.unwrap().status().as_u16()
}

fn message_body(id: &str) -> Value {
    json!({"type": "message", "channel": "c", "id": id, "target": "t", "text": "**a**", "plain": "a"})
}

#[tokio::test]
async fn a_message_is_shown_once_and_its_changes_in_their_order() {
    let fake = FakeWebhookReceiver::start().await;
    for _ in 0..2 {
        assert_eq!(post_signed(&fake, &message_body("1"), |_| ()).await, 200);
    }
    let edit = |revision: i64, text: &str| {
        json!({"type": "edit", "channel": "c", "id": format!("1.{revision}"), "target": "t", "message": "m1", "revision": revision,
            "text": text, "plain": text})
    };
    for (revision, text) in [(2, "second"), (1, "first")] {
        assert_eq!(post_signed(&fake, &edit(revision, text), |_| ()).await, 200);
    }
    assert_eq!(fake.state().texts("t"), ["second"]);
}

#[tokio::test]
async fn an_undocumented_delivery_is_refused() {
    let fake = FakeWebhookReceiver::start().await;
    for name in ["content-type", "quell-event", "quell-delivery", "quell-signature", "quell-timestamp"] {
        assert_eq!(
            post_signed(&fake, &message_body("1"), |headers| headers.retain(|(other, _)| other != name)).await,
            400,
            "{name}"
        );
    }
    let wrong = |headers: &mut Vec<(String, String)>| headers[3].1 = sign("other", &headers[4].1, b"{}");
    assert_eq!(post_signed(&fake, &message_body("1"), wrong).await, 401);
    let old = |headers: &mut Vec<(String, String)>| {
        let then = (unix_now() - 1000).to_string();
        headers[3].1 = sign(TOKEN, &then, message_body("1").to_string().as_bytes());
        headers[4].1 = then;
    };
    assert_eq!(post_signed(&fake, &message_body("1"), old).await, 401);
    let unknown =
        json!({"type": "message", "channel": "c", "id": "1", "target": "t", "text": "a", "plain": "a", "x": 1});
    assert_eq!(post_signed(&fake, &unknown, |_| ()).await, 400);
    assert_eq!(post_signed(&fake, &json!({"type": "typing", "channel": "c", "id": "1"}), |_| ()).await, 400);
    let nowhere = json!({"type": "edit", "channel": "c", "id": "2", "target": "t", "message": "m9", "revision": 1, "text": "a", "plain": "a"});
    assert_eq!(post_signed(&fake, &nowhere, |_| ()).await, 404);
    assert_eq!(fake.state().messages_by_target.values().flatten().count(), 0);
}
