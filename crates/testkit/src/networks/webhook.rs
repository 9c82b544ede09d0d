//! A program that Quell's webhook channel talks to: it takes what is posted exactly as docs/channels/webhook.md describes it and
//! refuses everything else, and people write to Quell through it.

mod rules;
mod server;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use ring::hmac;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The secret of both sides.
pub const TOKEN: &str = "the secret of the testkit's webhook";

/// How long a test waits. It decides only how late a failing one fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// What goes wrong with one post.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It has no effect, and this status is answered, with `Retry-After` in seconds where there is one.
    Status(u16, Option<u64>),
    /// It has no effect, and a page is answered that names the path, as servers like to do.
    Page(u16),
    /// It has no effect, and the connection is closed.
    Drop,
    /// It has its effect, and the connection is closed without an answer.
    LoseAnswer,
}

/// What is shown in a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The receiver's id.
    pub id: String,
    /// Where in it, if there are threads.
    pub thread: Option<String>,
    /// Its text after all changes.
    pub text: String,
    /// The same without markup.
    pub plain: String,
    /// How often it was changed.
    pub edits: usize,
    /// The number of the last change.
    pub revision: i64,
}

/// A post as it came.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    /// Its event.
    pub event: String,
    /// Its id, which a repeated post has again.
    pub id: String,
    /// Its body.
    pub body: Value,
    /// What was answered, if anything was.
    pub answered: Option<u16>,
}

/// Everything, as it is at one moment.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// By target.
    pub shown: BTreeMap<String, Vec<Shown>>,
    /// All posts in their order, the refused ones too.
    pub deliveries: Vec<Delivery>,
    /// Why posts were refused.
    pub refusals: Vec<String>,
    /// Files by their path, for messages that name them.
    pub files: BTreeMap<String, Bytes>,
    /// The ids of messages by the ids of the events that made them.
    known: BTreeMap<String, String>,
    faults: VecDeque<Fault>,
    silent_about_ids: bool,
    next_id: u64,
}

impl State {
    /// What a place shows now.
    #[must_use]
    pub fn texts(&self, target: &str) -> Vec<&str> {
        self.shown.get(target).into_iter().flatten().map(|shown| shown.text.as_str()).collect()
    }
}

/// The receiver. Dropping it closes every connection.
#[derive(Debug)]
pub struct FakeReceiver {
    address: SocketAddr,
    state: watch::Sender<State>,
    _task: JoinSet<()>,
}

impl FakeReceiver {
    /// Starts it on a free port.
    ///
    /// # Cancel safety
    /// Safe: nothing is left behind.
    ///
    /// # Panics
    /// When the system refuses.
    pub async fn start() -> Self {
        let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await {
            Ok(listener) => listener,
            Err(error) => panic!("no port for the receiver: {error}"),
        };
        let address = listener.local_addr().unwrap_or_else(|error| panic!("no address: {error}"));
        let (state, mut task) = (watch::Sender::new(State::default()), JoinSet::new());
        task.spawn(server::run(listener, state.clone()));
        Self { address, state, _task: task }
    }

    /// What stands as `reply_url`. Its path is as secret as those of real receivers often are.
    #[must_use]
    pub fn reply_url(&self) -> String {
        format!("{}{}", self.base_url(), server::PATH)
    }

    /// Where its files are.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next post goes wrong; several wait their turn.
    pub fn fault(&self, fault: Fault) -> &Self {
        self.state.send_modify(|state| state.faults.push_back(fault));
        self
    }

    /// From now on it answers without ids, so that Quell's own count.
    pub fn without_ids(&self) -> &Self {
        self.state.send_modify(|state| state.silent_about_ids = true);
        self
    }

    /// Puts a file on the server; answers its URL.
    pub fn file(&self, path: &str, bytes: &'static [u8]) -> String {
        self.state.send_modify(|state| drop(state.files.insert(path.to_owned(), Bytes::from_static(bytes))));
        format!("{}{path}", self.base_url())
    }

    /// The headers with which a body is posted to Quell, at a time in seconds since 1970.
    #[must_use]
    pub fn headers(body: &str, at: i64) -> [(&'static str, String); 3] {
        let signature = signature(TOKEN, &at.to_string(), body.as_bytes());
        [
            ("content-type", "application/json".to_owned()),
            ("quell-timestamp", at.to_string()),
            ("quell-signature", signature),
        ]
    }

    /// Posts a message to Quell, as a person's; answers the status and the body.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have been heard.
    ///
    /// # Panics
    /// When nobody answers.
    pub async fn say(&self, url: &str, message: &Value) -> (u16, String) {
        let body = message.to_string();
        let mut request = client().post(url);
        for (name, value) in Self::headers(&body, rules::now()) {
            request = request.header(name, value);
        }
        let answer = request.body(body).send().await.unwrap_or_else(|error| panic!("{url}: {error}"));
        (answer.status().as_u16(), answer.text().await.unwrap_or_default())
    }

    /// Everything, as it is now.
    #[must_use]
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// What a place shows now.
    #[must_use]
    pub fn messages(&self, target: &str) -> Vec<Shown> {
        self.state.borrow().shown.get(target).cloned().unwrap_or_default()
    }

    /// Waits until a condition holds.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not come to that in time.
    pub async fn wait_for(&self, what: &str, condition: impl Fn(&State) -> bool) -> State {
        let mut state = self.state.subscribe();
        match timeout(PATIENCE, state.wait_for(condition)).await {
            Ok(Ok(state)) => state.clone(),
            _ => panic!("waited {PATIENCE:?} for {what}: {:#?}", self.state()),
        }
    }
}

fn client() -> reqwest::Client {
    // Whoever comes first installs it; one is as good as another.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build();
    client.unwrap_or_else(|error| panic!("no client: {error}"))
}

/// docs/channels/webhook.md: `v1=` and the HMAC-SHA256, hexadecimal, of the timestamp, a dot and the body.
fn signature(secret: &str, timestamp: &str, body: &[u8]) -> String {
    let signed = [timestamp.as_bytes(), b".", body].concat();
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), &signed);
    tag.as_ref().iter().fold("v1=".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}
