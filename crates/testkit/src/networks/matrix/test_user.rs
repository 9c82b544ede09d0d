//! A user with an account on the homeserver, who acts in its rooms.

use std::sync::atomic::{AtomicU64, Ordering};

use reqwest::{Client, Method, Url};
use serde_json::{Value, json};

use super::room_view::MatrixUserView;
use super::synapse::SERVER_NAME;
use crate::WAIT_TIMEOUT;
use crate::daemon::http_client;
use crate::or_fail::OrFail as _;

/// How long the server waits for new events, in milliseconds.
const LONG_POLL_MS: &str = "10000";

/// Large enough that no event is ever left out.
const SYNC_FILTER: &str = r#"{"room":{"timeline":{"limit":1000}}}"#;

#[derive(Debug)]
pub struct MatrixTestUser {
    client: Client,
    base: String,
    id: String,
    token: String,
    transactions: AtomicU64,
    since: Option<String>,
    view: MatrixUserView,
}

impl MatrixTestUser {
    pub(super) async fn register(base: &str, name: &str) -> Self {
        let mut person = Self {
            client: http_client(),
            base: base.to_owned(),
            id: format!("@{name}:{SERVER_NAME}"),
            token: String::new(),
            transactions: AtomicU64::new(0),
            since: None,
            view: MatrixUserView::default(),
        };
        let wanted = json!({"username": name, "password": "only for tests", "auth": {"type": "m.login.dummy"}});
        let request = person.client.post(person.api_url(&["v3", "register"])).json(&wanted);
        let account = send_request(request, "registering").await;
        person.token = text_field(&account, "access_token");
        assert_eq!(account["user_id"], *person.id, "another name than the one that was asked for");
        person
    }

    /// Such as `@alice:quell.test`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The access token, for a channel that uses this account.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Sets the display name. Like every call here it panics when the server refuses.
    pub async fn set_display_name(&self, name: &str) {
        self.call_api(Method::PUT, &["v3", "profile", &self.id, "displayname"], json!({"displayname": name})).await;
    }

    /// Creates a private room and invites these accounts; returns its id.
    pub async fn create_room(&self, invited: &[&str]) -> String {
        self.create_room_with(json!({"preset": "private_chat", "invite": invited})).await
    }

    /// Creates a room with any options of `/createRoom`; returns its id.
    pub async fn create_room_with(&self, options: Value) -> String {
        text_field(&self.call_api(Method::POST, &["v3", "createRoom"], options).await, "room_id")
    }

    pub async fn invite(&self, room: &str, account: &str) {
        self.call_api(Method::POST, &["v3", "rooms", room, "invite"], json!({"user_id": account})).await;
    }

    /// Joins a room by its id or alias.
    pub async fn join(&self, room: &str) {
        self.call_api(Method::POST, &["v3", "join", room], json!({})).await;
    }

    /// Replaces a room by a new one of this version; returns the new id.
    pub async fn upgrade_room(&self, room: &str, version: &str) -> String {
        let wishes = json!({"new_version": version});
        text_field(&self.call_api(Method::POST, &["v3", "rooms", room, "upgrade"], wishes).await, "replacement_room")
    }

    /// Sends a message to a room; returns its event id.
    pub async fn send_message(&self, room: &str, text: &str) -> String {
        self.send_event(room, "m.room.message", json!({"msgtype": "m.text", "body": text})).await
    }

    pub async fn send_message_in_thread(&self, room: &str, root: &str, text: &str) -> String {
        let relation = json!({
            "rel_type": "m.thread", "event_id": root, "is_falling_back": true, "m.in_reply_to": {"event_id": root},
        });
        self.send_event(room, "m.room.message", json!({"msgtype": "m.text", "body": text, "m.relates_to": relation}))
            .await
    }

    pub async fn edit_message(&self, room: &str, message: &str, text: &str) -> String {
        let content = json!({
            "msgtype": "m.text", "body": format!("* {text}"), "m.new_content": {"msgtype": "m.text", "body": text},
            "m.relates_to": {"rel_type": "m.replace", "event_id": message},
        });
        self.send_event(room, "m.room.message", content).await
    }

    pub async fn add_reaction(&self, room: &str, message: &str, sign: &str) -> String {
        let relation = json!({"rel_type": "m.annotation", "event_id": message, "key": sign});
        self.send_event(room, "m.reaction", json!({"m.relates_to": relation})).await
    }

    /// Sends any event to a room; returns its id.
    pub async fn send_event(&self, room: &str, kind: &str, content: Value) -> String {
        let transaction = self.transactions.fetch_add(1, Ordering::Relaxed).to_string();
        text_field(
            &self.call_api(Method::PUT, &["v3", "rooms", room, "send", kind, &transaction], content).await,
            "event_id",
        )
    }

    /// Uploads a file; returns its `mxc` URI.
    pub async fn upload(&self, media_type: &str, bytes: Vec<u8>) -> String {
        let url = format!("{}/_matrix/media/v3/upload", self.base);
        let request = self.client.post(url).bearer_auth(&self.token).header("content-type", media_type).body(bytes);
        text_field(&send_request(request, "an upload").await, "content_uri")
    }

    /// Downloads the content of an `mxc` URI.
    pub async fn download(&self, uri: &str) -> Vec<u8> {
        let url = format!("{}/_matrix/client/v1/media/download/{}", self.base, uri.trim_start_matches("mxc://"));
        match self.client.get(url).bearer_auth(&self.token).send().await {
            Ok(answer) if answer.status() == 200 => answer.bytes().await.map(Into::into).unwrap_or_default(),
            other => panic!("{uri} cannot be downloaded: {other:?}"),
        }
    }

    /// Waits until the user's view fulfils a condition; returns the view.
    pub async fn wait_for(&mut self, what: &str, condition: impl Fn(&MatrixUserView) -> bool) -> MatrixUserView {
        let looking = async {
            while !condition(&self.view) {
                self.sync_once().await;
            }
        };
        let seen = tokio::time::timeout(WAIT_TIMEOUT, looking).await;
        assert!(seen.is_ok(), "{} does not see {what}: {:#?}", self.id, self.view);
        self.view.clone()
    }

    async fn sync_once(&mut self) {
        let mut url = self.api_url(&["v3", "sync"]);
        url.query_pairs_mut().append_pair("timeout", LONG_POLL_MS).append_pair("filter", SYNC_FILTER);
        if let Some(since) = &self.since {
            url.query_pairs_mut().append_pair("since", since);
        }
        let answer = send_request(self.client.get(url).bearer_auth(&self.token), "/sync").await;
        self.view.apply_sync(&answer);
        self.since = Some(text_field(&answer, "next_batch"));
    }

    async fn call_api(&self, method: Method, path: &[&str], body: Value) -> Value {
        let request = self.client.request(method, self.api_url(path)).bearer_auth(&self.token).json(&body);
        send_request(request, &path.join("/")).await
    }

    fn api_url(&self, path: &[&str]) -> Url {
        let mut url = Url::parse(&self.base).or_fail(&self.base);
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["_matrix", "client"]).extend(path);
        }
        url
    }
}

async fn send_request(request: reqwest::RequestBuilder, what: &str) -> Value {
    let answer = request.send().await.or_fail(what);
    let status = answer.status();
    let body = answer.json().await.unwrap_or(Value::Null);
    assert_eq!(status, 200, "{what}: {body}");
    body
}

fn text_field(answer: &Value, name: &str) -> String {
    answer[name].as_str().or_fail(format_args!("no {name} in {answer}")).to_owned()
}
