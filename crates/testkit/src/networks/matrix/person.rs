//! Somebody with an account on the homeserver, who does in its rooms what people do there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::{Client, Method, Url};
use serde_json::{Value, json};

use super::process::SERVER_NAME;
use super::view::View;
use crate::daemon::client;

/// Longest wait for something to be seen. It decides only how late a failing test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the server waits for news, in milliseconds.
const LONG_POLL: &str = "10000";

/// So many events at once that none is ever left out.
const FILTER: &str = r#"{"room":{"timeline":{"limit":1000}}}"#;

/// An account that is logged in.
#[derive(Debug)]
pub struct MatrixPerson {
    client: Client,
    base: String,
    id: String,
    token: String,
    transactions: AtomicU64,
    since: Option<String>,
    view: View,
}

impl MatrixPerson {
    pub(super) async fn register(base: &str, name: &str) -> Self {
        let mut person = Self {
            client: client(),
            base: base.to_owned(),
            id: format!("@{name}:{SERVER_NAME}"),
            token: String::new(),
            transactions: AtomicU64::new(0),
            since: None,
            view: View::default(),
        };
        let wanted = json!({"username": name, "password": "only for tests", "auth": {"type": "m.login.dummy"}});
        let request = person.client.post(person.url(&["v3", "register"])).json(&wanted);
        let account = answer(request, "registering").await;
        person.token = field(&account, "access_token");
        assert_eq!(account["user_id"], *person.id, "another name than the one that was asked for");
        person
    }

    /// The account's id, such as `@alice:quell.test`.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The access token, for a channel that uses this account.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The name that others see from now on.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have been carried out.
    ///
    /// # Panics
    /// When the server refuses, as with every call here.
    pub async fn call_oneself(&self, name: &str) {
        self.call(Method::PUT, &["v3", "profile", &self.id, "displayname"], json!({"displayname": name})).await;
    }

    /// Makes a room to which these accounts are invited, and answers its id.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have been carried out.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn create_room(&self, invited: &[&str]) -> String {
        self.create_room_with(json!({"preset": "private_chat", "invite": invited})).await
    }

    /// Makes a room with all that `/createRoom` takes, and answers its id.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have been carried out.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn create_room_with(&self, wishes: Value) -> String {
        field(&self.call(Method::POST, &["v3", "createRoom"], wishes).await, "room_id")
    }

    /// Invites an account into a room.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have been carried out.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn invite(&self, room: &str, account: &str) {
        self.call(Method::POST, &["v3", "rooms", room, "invite"], json!({"user_id": account})).await;
    }

    /// Joins a room by its id or alias.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have been carried out.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn join(&self, room: &str) {
        self.call(Method::POST, &["v3", "join", room], json!({})).await;
    }

    /// Replaces a room by a new one of this version, and answers the id of that.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have been carried out.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn upgrade(&self, room: &str, version: &str) -> String {
        let wishes = json!({"new_version": version});
        field(&self.call(Method::POST, &["v3", "rooms", room, "upgrade"], wishes).await, "replacement_room")
    }

    /// Writes into a room, and answers the id of the message.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have been carried out.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn say(&self, room: &str, text: &str) -> String {
        self.send(room, "m.room.message", json!({"msgtype": "m.text", "body": text})).await
    }

    /// Writes into a thread.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have been carried out.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn say_in_thread(&self, room: &str, root: &str, text: &str) -> String {
        let relation = json!({
            "rel_type": "m.thread", "event_id": root, "is_falling_back": true, "m.in_reply_to": {"event_id": root},
        });
        self.send(room, "m.room.message", json!({"msgtype": "m.text", "body": text, "m.relates_to": relation})).await
    }

    /// Changes an own message.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have been carried out.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn edit(&self, room: &str, message: &str, text: &str) -> String {
        let content = json!({
            "msgtype": "m.text", "body": format!("* {text}"), "m.new_content": {"msgtype": "m.text", "body": text},
            "m.relates_to": {"rel_type": "m.replace", "event_id": message},
        });
        self.send(room, "m.room.message", content).await
    }

    /// Puts a sign on a message.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have been carried out.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn react(&self, room: &str, message: &str, sign: &str) -> String {
        let relation = json!({"rel_type": "m.annotation", "event_id": message, "key": sign});
        self.send(room, "m.reaction", json!({"m.relates_to": relation})).await
    }

    /// Sends any event into a room, and answers its id.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have been carried out.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn send(&self, room: &str, kind: &str, content: Value) -> String {
        let transaction = self.transactions.fetch_add(1, Ordering::Relaxed).to_string();
        field(&self.call(Method::PUT, &["v3", "rooms", room, "send", kind, &transaction], content).await, "event_id")
    }

    /// Uploads a file, and answers its `mxc` URI.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have been carried out.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn upload(&self, media_type: &str, bytes: Vec<u8>) -> String {
        let url = format!("{}/_matrix/media/v3/upload", self.base);
        let request = self.client.post(url).bearer_auth(&self.token).header("content-type", media_type).body(bytes);
        field(&answer(request, "an upload").await, "content_uri")
    }

    /// The bytes behind an `mxc` URI.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When the server refuses.
    pub async fn download(&self, uri: &str) -> Vec<u8> {
        let url = format!("{}/_matrix/client/v1/media/download/{}", self.base, uri.trim_start_matches("mxc://"));
        match self.client.get(url).bearer_auth(&self.token).send().await {
            Ok(answer) if answer.status() == 200 => answer.bytes().await.map(Into::into).unwrap_or_default(),
            other => panic!("{uri} cannot be downloaded: {other:?}"),
        }
    }

    /// Waits until what this person sees fulfils a condition, and answers it.
    ///
    /// # Cancel safety
    /// Safe: what was seen stays seen.
    ///
    /// # Panics
    /// When it does not come to that in time, with what is seen.
    pub async fn wait_for(&mut self, what: &str, condition: impl Fn(&View) -> bool) -> View {
        let looking = async {
            while !condition(&self.view) {
                self.look().await;
            }
        };
        let seen = tokio::time::timeout(PATIENCE, looking).await;
        assert!(seen.is_ok(), "{} does not see {what}: {:#?}", self.id, self.view);
        self.view.clone()
    }

    /// One long poll.
    async fn look(&mut self) {
        let mut url = self.url(&["v3", "sync"]);
        url.query_pairs_mut().append_pair("timeout", LONG_POLL).append_pair("filter", FILTER);
        if let Some(since) = &self.since {
            url.query_pairs_mut().append_pair("since", since);
        }
        let answer = answer(self.client.get(url).bearer_auth(&self.token), "/sync").await;
        self.view.take(&answer);
        self.since = Some(field(&answer, "next_batch"));
    }

    async fn call(&self, method: Method, path: &[&str], body: Value) -> Value {
        let request = self.client.request(method, self.url(path)).bearer_auth(&self.token).json(&body);
        answer(request, &path.join("/")).await
    }

    fn url(&self, path: &[&str]) -> Url {
        let mut url = match Url::parse(&self.base) {
            Ok(url) => url,
            Err(error) => panic!("{}: {error}", self.base),
        };
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["_matrix", "client"]).extend(path);
        }
        url
    }
}

async fn answer(request: reqwest::RequestBuilder, what: &str) -> Value {
    match request.send().await {
        Ok(answer) => {
            let status = answer.status();
            let body = answer.json().await.unwrap_or(Value::Null);
            assert_eq!(status, 200, "{what}: {body}");
            body
        }
        Err(error) => panic!("{what}: {error}"),
    }
}

fn field(answer: &Value, name: &str) -> String {
    match answer[name].as_str() {
        Some(text) => text.to_owned(),
        None => panic!("no {name} in {answer}"),
    }
}
