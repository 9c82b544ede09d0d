//! The calls of the client-server API that are needed here, each with its path and its time.

use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Method, RequestBuilder};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use url::Url;

use super::events::{Page, Sync};
use super::fault::Fault;
use super::settings::{Settings, is_id, server_of};
use crate::channels::seam::Trouble;
use crate::channels::wire::http::{self, Answer};

/// How long a call may take that only looks or sends.
const SOON: Duration = Duration::from_secs(60);
/// How long the server may hold a poll when there is nothing new.
const POLL: Duration = Duration::from_secs(30);
/// The first look at all rooms, and joining one over federation, take their time on a large homeserver.
const LATE: Duration = Duration::from_secs(180);
/// How many relations of one message are asked for at once.
const RELATIONS: &str = "100";
/// How many events of a gap are asked for at once.
const GAP_PAGE: &str = "100";

/// What polls ask for: messages, who comes and goes, and which rooms are replaced, with the names of those who write. Names are told each time, because the
/// server cannot know what was forgotten here by a restart.
const NEWS: &str = concat!(
    r#"{"presence":{"types":[]},"account_data":{"types":[]},"room":{"account_data":{"types":[]},"ephemeral":{"types":[]},"#,
    r#""state":{"types":["m.room.member","m.room.tombstone"],"lazy_load_members":true,"include_redundant_members":true},"#,
    r#""timeline":{"types":["m.room.message","m.room.encrypted","m.room.member","m.room.tombstone"],"limit":20}}}"#,
);

/// What the first look asks for: which rooms there are, how many are in each, and which were replaced.
const SURVEY: &str = concat!(
    r#"{"presence":{"types":[]},"account_data":{"types":[]},"room":{"account_data":{"types":[]},"ephemeral":{"types":[]},"#,
    r#""state":{"types":["m.room.tombstone"],"lazy_load_members":true},"timeline":{"types":[],"limit":1}}}"#,
);

/// What is asked for where a poll has left something out.
const GAP: &str = concat!(
    r#"{"types":["m.room.message","m.room.encrypted","m.room.member","m.room.tombstone"],"#,
    r#""lazy_load_members":true,"include_redundant_members":true}"#,
);

/// A homeserver, with one account's access token.
#[derive(Debug)]
pub(super) struct Api {
    client: Client,
    base: Url,
    token: SecretString,
    token_from: String,
}

impl Api {
    pub(super) fn new(settings: &Settings) -> Result<Self, Trouble> {
        let Settings { base, token, token_from, .. } = settings;
        Ok(Self {
            client: http::client(base)?,
            base: base.clone(),
            token: token.clone(),
            token_from: token_from.clone(),
        })
    }

    /// The id of this account.
    pub(super) async fn whoami(&self) -> Result<String, Fault> {
        #[derive(Deserialize)]
        struct Account {
            user_id: String,
        }
        let Account { user_id } = self.ask(self.get(&["v3", "account", "whoami"], &[]), SOON).await?;
        if is_id(&user_id, '@') { Ok(user_id) } else { Err(Fault::Odd("it names no user id".to_owned())) }
    }

    /// The name that a user has chosen, if any.
    pub(super) async fn display_name(&self, user: &str) -> Result<Option<String>, Fault> {
        #[derive(Deserialize)]
        struct Profile {
            displayname: Option<String>,
        }
        match self.ask(self.get(&["v3", "profile", user, "displayname"], &[]), SOON).await {
            Ok(Profile { displayname }) => Ok(displayname.filter(|name| !name.trim().is_empty())),
            Err(Fault::Refused { .. }) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// How many rooms the account is in.
    pub(super) async fn joined_rooms(&self) -> Result<usize, Fault> {
        #[derive(Deserialize)]
        struct Joined {
            joined_rooms: Vec<String>,
        }
        let Joined { joined_rooms } = self.ask(self.get(&["v3", "joined_rooms"], &[]), SOON).await?;
        Ok(joined_rooms.len())
    }

    /// All rooms as they are now, without their messages.
    pub(super) async fn survey(&self) -> Result<Sync, Fault> {
        // The first look never waits. Synapse answers the same question from memory for two minutes, so that each time another
        // number stands here.
        let timeout = (uuid::Uuid::now_v7().as_u128() % POLL.as_millis()).to_string();
        self.ask(self.get(&["v3", "sync"], &[("filter", SURVEY), ("timeout", &timeout)]), LATE).await
    }

    /// What is new since an earlier answer; waits until there is something.
    pub(super) async fn poll(&self, since: &str) -> Result<Sync, Fault> {
        let wait = POLL.as_millis().to_string();
        let query = [("filter", NEWS), ("timeout", wait.as_str()), ("since", since)];
        self.ask(self.get(&["v3", "sync"], &query), POLL + SOON).await
    }

    /// What a poll has left out, newest first: from the token before its timeline back to the one that it went on from.
    pub(super) async fn gap(&self, room: &str, from: &str, to: &str) -> Result<Page, Fault> {
        let query = [("dir", "b"), ("from", from), ("to", to), ("limit", GAP_PAGE), ("filter", GAP)];
        self.ask(self.get(&["v3", "rooms", room, "messages"], &query), SOON).await
    }

    /// Joins a room by its id or alias. A server that knows nothing of the room asks the one in its name, or these.
    pub(super) async fn join(&self, room: &str, known_to: &[String]) -> Result<(), Fault> {
        let servers = server_of(room).into_iter().chain(known_to.iter().map(String::as_str));
        let via: Vec<_> = servers.flat_map(|server| [("via", server), ("server_name", server)]).collect();
        let request = self.request(Method::POST, &["v3", "join", room], &via).json(&json!({}));
        self.ask::<Value>(request, LATE).await.map(drop)
    }

    /// Sends an event into a room, and answers its id. The same transaction again sends nothing and answers the same.
    pub(super) async fn send(&self, room: &str, kind: &str, txn: &str, content: &Value) -> Result<String, Fault> {
        let request = self.request(Method::PUT, &["v3", "rooms", room, "send", kind, txn], &[]).json(content);
        self.ask::<Sent>(request, SOON).await.map(|sent| sent.event_id)
    }

    /// Takes an event out of a room again.
    pub(super) async fn redact(&self, room: &str, event: &str, txn: &str) -> Result<(), Fault> {
        let request = self.request(Method::PUT, &["v3", "rooms", room, "redact", event, txn], &[]).json(&json!({}));
        self.ask::<Value>(request, SOON).await.map(drop)
    }

    /// Shows or hides that this account is writing.
    pub(super) async fn typing(&self, room: &str, own: &str, content: &Value) -> Result<(), Fault> {
        let request = self.request(Method::PUT, &["v3", "rooms", room, "typing", own], &[]).json(content);
        self.ask::<Value>(request, SOON).await.map(drop)
    }

    /// A page of the reactions to a message.
    pub(super) async fn reactions(&self, room: &str, message: &str, from: Option<&str>) -> Result<Page, Fault> {
        let path = ["v1", "rooms", room, "relations", message, "m.annotation", "m.reaction"];
        let query: Vec<_> = from.map(|from| ("from", from)).into_iter().chain([("limit", RELATIONS)]).collect();
        self.ask(self.get(&path, &query), SOON).await
    }

    /// Puts a file on the server, and answers its `mxc` URI.
    pub(super) async fn upload(&self, name: &str, media_type: &str, bytes: Vec<u8>) -> Result<String, Fault> {
        #[derive(Deserialize)]
        struct Uploaded {
            content_uri: String,
        }
        let url = self.url(&["_matrix", "media", "v3", "upload"], &[("filename", name)]);
        let request = self.client.post(url).bearer_auth(self.token.expose_secret());
        let request = request.header(CONTENT_TYPE, media_type).body(bytes);
        self.ask::<Uploaded>(request, LATE).await.map(|uploaded| uploaded.content_uri)
    }

    /// The bytes of a file on some server.
    pub(super) async fn download(&self, server: &str, media: &str, most: usize) -> Result<Answer, Fault> {
        let request = self.get(&["v1", "media", "download", server, media], &[]);
        self.checked(http::call_at_most(request, LATE, most).await?)
    }

    async fn ask<T: DeserializeOwned>(&self, request: RequestBuilder, time: Duration) -> Result<T, Fault> {
        let answer = self.checked(http::call(request, time).await?)?;
        serde_json::from_slice(&answer.body).map_err(|error| Fault::Odd(error.to_string()))
    }

    fn checked(&self, answer: Answer) -> Result<Answer, Fault> {
        match Fault::of(&answer, &self.token_from) {
            None => Ok(answer),
            Some(fault) => Err(fault),
        }
    }

    fn get(&self, path: &[&str], query: &[(&str, &str)]) -> RequestBuilder {
        self.request(Method::GET, path, query)
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, &str)]) -> RequestBuilder {
        let whole: Vec<&str> = ["_matrix", "client"].iter().chain(path).copied().collect();
        self.client.request(method, self.url(&whole, query)).bearer_auth(self.token.expose_secret())
    }

    fn url(&self, path: &[&str], query: &[(&str, &str)]) -> Url {
        let mut url = self.base.clone();
        // Only URLs without a host have no path, and the settings take none of these.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }
}

/// The answer to what was sent.
#[derive(Deserialize)]
struct Sent {
    event_id: String,
}
