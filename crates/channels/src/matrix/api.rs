//! Client-server API calls with their filters and timeouts.

use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Method, RequestBuilder};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use url::Url;

use super::call_error::{invalid_response, response_error};
use super::events::{EventPage, SyncResponse};
use super::settings::{MatrixSettings, is_matrix_id, server_name};
use crate::network::NetworkError;
use crate::wire::call_error::CallError;
use crate::wire::http_client::{self, HttpResponse, NoHttpResponse};

/// Time limit of a short call.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the server may hold a poll without news.
const POLL_WAIT: Duration = Duration::from_secs(30);
/// Time limit of the initial sync and of a join over federation, which take long on a large homeserver.
const SLOW_CALL_TIMEOUT: Duration = Duration::from_secs(180);
/// Number of relations of one message in a response.
const RELATIONS_PAGE_SIZE: &str = "100";
/// Number of events of a gap in a response.
const GAP_PAGE_SIZE: &str = "100";

/// Filter of polls: messages, memberships, replaced rooms, and the names of senders. Names are sent each time, because
/// the server cannot know which names were forgotten here by a restart.
const POLL_FILTER: &str = concat!(
    r#"{"presence":{"types":[]},"account_data":{"types":[]},"room":{"account_data":{"types":[]},"ephemeral":{"types":[]},"#,
    r#""state":{"types":["m.room.member","m.room.tombstone"],"lazy_load_members":true,"include_redundant_members":true},"#,
    r#""timeline":{"types":["m.room.message","m.room.encrypted","m.room.member","m.room.tombstone"],"limit":20}}}"#,
);

/// Filter of the initial sync: the joined rooms, the number of their members, and replaced rooms.
const INITIAL_SYNC_FILTER: &str = concat!(
    r#"{"presence":{"types":[]},"account_data":{"types":[]},"room":{"account_data":{"types":[]},"ephemeral":{"types":[]},"#,
    r#""state":{"types":["m.room.tombstone"],"lazy_load_members":true},"timeline":{"types":[],"limit":1}}}"#,
);

/// Filter for the events that a poll left out.
const GAP_FILTER: &str = concat!(
    r#"{"types":["m.room.message","m.room.encrypted","m.room.member","m.room.tombstone"],"#,
    r#""lazy_load_members":true,"include_redundant_members":true}"#,
);

/// Client of a homeserver with the access token of one account.
#[derive(Debug)]
pub(super) struct MatrixApi {
    client: Client,
    base: Url,
    token: SecretString,
    token_source: String,
}

impl MatrixApi {
    pub(super) fn new(settings: &MatrixSettings) -> Result<Self, NetworkError> {
        let MatrixSettings { homeserver_url: base, token, token_source, .. } = settings;
        Ok(Self {
            client: http_client::build_client(base)?,
            base: base.clone(),
            token: token.clone(),
            token_source: token_source.clone(),
        })
    }

    pub(super) async fn whoami(&self) -> Result<String, CallError> {
        let request = self.get_request(&["v3", "account", "whoami"], &[]);
        let user_id = self.call_for_text(request, CALL_TIMEOUT, "user_id").await?;
        if is_matrix_id(&user_id, '@') { Ok(user_id) } else { Err(invalid_response("it names no user id")) }
    }

    /// The display name of a user, if there is one.
    pub(super) async fn display_name(&self, user: &str) -> Result<Option<String>, CallError> {
        #[derive(Deserialize)]
        struct DisplayNameResponse {
            displayname: Option<String>,
        }
        match self.call_api(self.get_request(&["v3", "profile", user, "displayname"], &[]), CALL_TIMEOUT).await {
            Ok(DisplayNameResponse { displayname }) => Ok(displayname.filter(|name| !name.trim().is_empty())),
            Err(CallError::Refused { .. }) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Number of rooms that the account has joined.
    pub(super) async fn count_joined_rooms(&self) -> Result<usize, CallError> {
        #[derive(Deserialize)]
        struct JoinedRoomsResponse {
            joined_rooms: Vec<String>,
        }
        let JoinedRoomsResponse { joined_rooms } =
            self.call_api(self.get_request(&["v3", "joined_rooms"], &[]), CALL_TIMEOUT).await?;
        Ok(joined_rooms.len())
    }

    /// All rooms in their present state, without messages.
    pub(super) async fn initial_sync(&self) -> Result<SyncResponse, CallError> {
        // The initial sync never waits, so the timeout has no effect. Synapse answers an identical request from its
        // cache for two minutes, so send a different timeout each time.
        let timeout = (uuid::Uuid::now_v7().as_u128() % POLL_WAIT.as_millis()).to_string();
        self.call_api(
            self.get_request(&["v3", "sync"], &[("filter", INITIAL_SYNC_FILTER), ("timeout", &timeout)]),
            SLOW_CALL_TIMEOUT,
        )
        .await
    }

    /// Waits for news since an earlier response.
    pub(super) async fn poll(&self, since: &str) -> Result<SyncResponse, CallError> {
        let wait = POLL_WAIT.as_millis().to_string();
        let query = [("filter", POLL_FILTER), ("timeout", wait.as_str()), ("since", since)];
        self.call_api(self.get_request(&["v3", "sync"], &query), POLL_WAIT + CALL_TIMEOUT).await
    }

    /// Events that a poll left out, newest first: from the token before its timeline back to the token where the poll
    /// started.
    pub(super) async fn fetch_gap_page(&self, room: &str, from: &str, to: &str) -> Result<EventPage, CallError> {
        let query = [("dir", "b"), ("from", from), ("to", to), ("limit", GAP_PAGE_SIZE), ("filter", GAP_FILTER)];
        self.call_api(self.get_request(&["v3", "rooms", room, "messages"], &query), CALL_TIMEOUT).await
    }

    /// Joins a room by its id or alias. A server that does not know the room asks the server in its name, or
    /// `via_servers`.
    pub(super) async fn join_room(&self, room: &str, via_servers: &[String]) -> Result<(), CallError> {
        let servers = server_name(room).into_iter().chain(via_servers.iter().map(String::as_str));
        let via: Vec<_> = servers.flat_map(|server| [("via", server), ("server_name", server)]).collect();
        let request = self.request(Method::POST, &["v3", "join", room], &via).json(&json!({}));
        self.call_api::<Value>(request, SLOW_CALL_TIMEOUT).await.map(drop)
    }

    /// Sends an event to a room and returns its id. A repeated transaction id sends nothing and returns the same event
    /// id.
    pub(super) async fn send_event(
        &self,
        room: &str,
        event_type: &str,
        transaction_id: &str,
        content: &Value,
    ) -> Result<String, CallError> {
        let request =
            self.request(Method::PUT, &["v3", "rooms", room, "send", event_type, transaction_id], &[]).json(content);
        self.call_for_text(request, CALL_TIMEOUT, "event_id").await
    }

    pub(super) async fn redact_event(&self, room: &str, event: &str, transaction_id: &str) -> Result<(), CallError> {
        let request =
            self.request(Method::PUT, &["v3", "rooms", room, "redact", event, transaction_id], &[]).json(&json!({}));
        self.call_api::<Value>(request, CALL_TIMEOUT).await.map(drop)
    }

    /// Shows or hides the typing notification of this account.
    pub(super) async fn set_typing(&self, room: &str, own_id: &str, content: &Value) -> Result<(), CallError> {
        let request = self.request(Method::PUT, &["v3", "rooms", room, "typing", own_id], &[]).json(content);
        self.call_api::<Value>(request, CALL_TIMEOUT).await.map(drop)
    }

    pub(super) async fn reactions_page(
        &self,
        room: &str,
        message: &str,
        from: Option<&str>,
    ) -> Result<EventPage, CallError> {
        let path = ["v1", "rooms", room, "relations", message, "m.annotation", "m.reaction"];
        let query: Vec<_> =
            from.map(|from| ("from", from)).into_iter().chain([("limit", RELATIONS_PAGE_SIZE)]).collect();
        self.call_api(self.get_request(&path, &query), CALL_TIMEOUT).await
    }

    /// Uploads a file and returns its `mxc` URI.
    pub(super) async fn upload(&self, name: &str, media_type: &str, bytes: Vec<u8>) -> Result<String, CallError> {
        let url = self.url(&["_matrix", "media", "v3", "upload"], &[("filename", name)]);
        let request = self.client.post(url).bearer_auth(self.token.expose_secret());
        let request = request.header(CONTENT_TYPE, media_type).body(bytes);
        self.call_for_text(request, SLOW_CALL_TIMEOUT, "content_uri").await
    }

    /// Downloads a file from the given server, through the homeserver.
    pub(super) async fn download(
        &self,
        server: &str,
        media: &str,
        max_bytes: usize,
    ) -> Result<HttpResponse, CallError> {
        let request = self.get_request(&["v1", "media", "download", server, media], &[]);
        self.check_response(http_client::send_request_limited(request, SLOW_CALL_TIMEOUT, max_bytes).await)
    }

    /// Makes a call and returns this field of the response.
    async fn call_for_text(&self, request: RequestBuilder, time: Duration, field: &str) -> Result<String, CallError> {
        let response: Value = self.call_api(request, time).await?;
        let text = response[field].as_str().ok_or_else(|| invalid_response(&format!("it has no {field}")))?;
        Ok(text.to_owned())
    }

    async fn call_api<T: DeserializeOwned>(&self, request: RequestBuilder, time: Duration) -> Result<T, CallError> {
        let response = self.check_response(http_client::send_request(request, time).await)?;
        serde_json::from_slice(&response.body).map_err(|error| invalid_response(&error.to_string()))
    }

    fn check_response(&self, response: Result<HttpResponse, NoHttpResponse>) -> Result<HttpResponse, CallError> {
        let response = response.map_err(CallError::NoResponse)?;
        response_error(&response, &self.token_source).map_or(Ok(response), Err)
    }

    fn get_request(&self, path: &[&str], query: &[(&str, &str)]) -> RequestBuilder {
        self.request(Method::GET, path, query)
    }

    fn request(&self, method: Method, path: &[&str], query: &[(&str, &str)]) -> RequestBuilder {
        let whole: Vec<&str> = ["_matrix", "client"].iter().chain(path).copied().collect();
        self.client.request(method, self.url(&whole, query)).bearer_auth(self.token.expose_secret())
    }

    fn url(&self, path: &[&str], query: &[(&str, &str)]) -> Url {
        let mut url = http_client::extend_path(&self.base, path.iter().copied());
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }
}
