//! What the receiver of push notifications of A2A checks.

use base64::Engine as _;

use crate::hook_receiver::{HookReceiver, ReceivedHookRequest};
use crate::prelude::*;

pub const PUSH_SECRET: &str = "a secret of at least thirty-two bytes";

/// Checks the signature of a notification by the key that the daemon publishes; returns what it tells.
pub async fn verify_notification(api: &TestApiClient, request: &ReceivedHookRequest) -> Value {
    let keys = api.with_token("").get("/.well-known/jwks.json").await.expect_status(200);
    let key = &keys["keys"][0];
    assert_fields(key, &json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA"}));
    let key = base64::prelude::BASE64_URL_SAFE_NO_PAD.decode(key["x"].as_str().unwrap()).unwrap();
    let signature = request.header("webhook-signature").strip_prefix("v1a,").unwrap();
    let signature = base64::prelude::BASE64_STANDARD.decode(signature).unwrap();
    let (id, sent) = (request.header("webhook-id"), request.header("webhook-timestamp"));
    let signed = format!("{id}.{sent}.{}", request.text);
    let key = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, key);
    key.verify(signed.as_bytes(), &signature).expect("a valid signature");
    assert_eq!(request.header("content-type"), "application/a2a+json");
    assert_eq!(request.header("x-a2a-notification-token"), "mark");
    assert_eq!(request.header("authorization"), "Bearer hush");
    serde_json::from_str(&request.text).unwrap()
}

/// Waits for the notification of the end of a task; returns all of its states so far, in order.
pub async fn wait_told_states(api: &TestApiClient, receiver: &HookReceiver, task: &str) -> Vec<String> {
    let is_end = |request: &ReceivedHookRequest| request.text.starts_with("{\"task\"") && request.text.contains(task);
    poll_until("the end", async || receiver.wait_received(0).await.iter().any(is_end).then_some(())).await;
    let mut states = Vec::new();
    for request in receiver.wait_received(0).await.iter().filter(|request| request.text.contains(task)) {
        let told = verify_notification(api, request).await;
        let status = told.get("task").unwrap_or(&told["statusUpdate"])["status"].clone();
        states.push(status["state"].as_str().unwrap().to_owned());
    }
    states
}
