//! The part of the WebDriver protocol that tests of the page use: JSON over HTTP to chromedriver.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};

use crate::daemon::http_client;

/// The member that names an element in JSON.
const ELEMENT_KEY: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A key that is not text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Enter,
    Escape,
    Shift,
    Tab,
}

impl Key {
    /// The character that stands for the key in the protocol.
    pub(super) fn value(self) -> char {
        match self {
            Self::Tab => '\u{e004}',
            Self::Enter => '\u{e007}',
            Self::Shift => '\u{e008}',
            Self::Escape => '\u{e00c}',
        }
    }
}

/// A session of chromedriver. It ends with the process.
#[derive(Debug)]
pub(super) struct WebDriver {
    client: Client,
    session_url: String,
}

/// An answer that is an error, or no answer.
#[derive(Debug)]
pub(super) struct WebDriverError {
    /// Such as `no such element`; empty without an answer.
    pub(super) code: String,
    pub(super) message: String,
}

impl fmt::Display for WebDriverError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.code, self.message)
    }
}

impl From<reqwest::Error> for WebDriverError {
    fn from(error: reqwest::Error) -> Self {
        Self { code: String::new(), message: format!("chromedriver did not answer: {error:?}") }
    }
}

impl WebDriver {
    pub(super) async fn connect(driver_url: &str, capabilities: Value) -> Result<Self, WebDriverError> {
        let client = http_client();
        let body = json!({"capabilities": {"alwaysMatch": capabilities}});
        let session = send(client.post(format!("{driver_url}/session")).json(&body)).await?;
        let id = session["sessionId"].as_str().unwrap_or_default();
        Ok(Self { session_url: format!("{driver_url}/session/{id}"), client })
    }

    /// Sends a command of the session and returns its value.
    pub(super) async fn post(&self, command: &str, body: Value) -> Result<Value, WebDriverError> {
        send(self.client.post(format!("{}/{command}", self.session_url)).json(&body)).await
    }

    pub(super) async fn execute(&self, script: &str, args: &[Value]) -> Result<Value, WebDriverError> {
        self.post("execute/sync", json!({"script": script, "args": args})).await
    }

    pub(super) async fn execute_async(&self, script: &str, args: &[Value]) -> Result<Value, WebDriverError> {
        self.post("execute/async", json!({"script": script, "args": args})).await
    }

    /// Opens a tab and uses it from now on.
    pub(super) async fn switch_to_new_tab(&self) -> Result<Value, WebDriverError> {
        let tab = self.post("window/new", json!({"type": "tab"})).await?;
        self.post("window", json!({"handle": tab["handle"]})).await
    }

    /// Clicks the first matching element.
    pub(super) async fn click(&self, css: &str) -> Result<Value, WebDriverError> {
        let element = self.post("element", json!({"using": "css selector", "value": css})).await?;
        let id = element[ELEMENT_KEY].as_str().unwrap_or_default();
        self.post(&format!("element/{id}/click"), json!({})).await
    }

    /// Presses and releases the key of each character, while another key is held.
    pub(super) async fn press_keys(&self, held: Option<Key>, characters: &str) -> Result<Value, WebDriverError> {
        let action = |kind: &str, character: char| json!({"type": kind, "value": character});
        let held = held.map(Key::value);
        let pressed = characters.chars().flat_map(|sign| [action("keyDown", sign), action("keyUp", sign)]);
        let before = held.map(|key| action("keyDown", key)).into_iter();
        let after = held.map(|key| action("keyUp", key));
        let actions: Vec<Value> = before.chain(pressed).chain(after).collect();
        self.post("actions", json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})).await
    }

    /// Takes a PNG of what is visible.
    pub(super) async fn screenshot(&self) -> Result<Vec<u8>, WebDriverError> {
        let picture = send(self.client.get(format!("{}/screenshot", self.session_url))).await?;
        STANDARD.decode(picture.as_str().unwrap_or_default()).map_err(|error| WebDriverError {
            code: String::new(),
            message: format!("the screenshot cannot be decoded: {error}"),
        })
    }
}

async fn send(request: RequestBuilder) -> Result<Value, WebDriverError> {
    let response = request.send().await?;
    let failed = !response.status().is_success();
    let mut answer: Value = response.json().await?;
    let value = answer["value"].take();
    if failed {
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        return Err(WebDriverError { code: text("error"), message: text("message") });
    }
    Ok(value)
}
