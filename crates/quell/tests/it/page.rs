//! Tests of the web page in a real Chromium against the real binary: real HTTP, real WebSocket, a scripted model. A
//! [`PageFixture`] is one daemon and one browser; the tests click, type and read as a person does.
//!
//! They need Chromium and chromedriver, which `cargo xtask test` installs. With `QUELL_SKIP_BROWSER=1` they are skipped
//! and say so.

mod agents;
mod axe;
mod chat;
mod hostile;
mod keyboard;
mod long_session;
mod node_unit_tests;
mod overview;
mod performance;
mod phone;
mod preferences;
mod proxy;
mod reconnect;
mod reload;
mod screenshots;
mod sign_in;
mod stops;
mod toasts;

use std::fmt::Write as _;
use std::path::PathBuf;

use quell_testkit::browser::{Browser, Viewport, is_skipped};
use quell_testkit::daemon::{DaemonHome, TestApiClient, TestDaemon};
use quell_testkit::{ScriptedModel, ScriptedResponse};
use serde_json::json;

use crate::test_daemon::{provider_toml, quell_exe};
use crate::test_server::percent_encode;

/// Part of the console entry that the browser itself writes for an answer `401`: a signed-out page asks who it is.
const UNAUTHORIZED_ENTRY: &str = "status of 401";

/// Configuration in which a gentle stop waits longer than any test: only a forced stop ends a command that ignores
/// signals.
const LONG_GRACE_CONFIG: &str = "[stop]\nterm_ms = 60000\ngrace_ms = 90000\nhard_ms = 120000\n";

/// One daemon in front of a scripted model, and a browser that shows its page.
struct PageFixture {
    browser: Browser,
    daemon: TestDaemon,
    model: ScriptedModel,
    http: TestApiClient,
}

#[derive(Default)]
struct PageConfig<'a> {
    /// Lines of `[agents.main]` besides its model.
    main: &'a str,
    /// Other agents: id and lines.
    others: &'a [(&'a str, &'a str)],
    /// Other tables.
    tables: &'a str,
}

impl PageFixture {
    /// Starts with one agent that has every tool.
    async fn start() -> Option<Self> {
        Self::start_with(&PageConfig::default()).await
    }

    /// `None` when browser tests are switched off.
    async fn start_with(config: &PageConfig<'_>) -> Option<Self> {
        if is_skipped() {
            return None;
        }
        let model = ScriptedModel::start().await;
        let daemon = DaemonHome::new(&page_config_toml(config, &model)).start(quell_exe()).await;
        let (http, browser) = (daemon.api(), Browser::start(Viewport::DESKTOP).await);
        Some(Self { browser, daemon, model, http })
    }

    /// Opens the one-time link from the daemon's output, and waits for the chat.
    async fn sign_in(&self) {
        self.browser.open(&self.sign_in_link()).await;
        self.browser.wait_for("document.body.dataset.view === 'chat'").await;
        self.browser.wait_visible("[data-fact=connection][data-state=live]").await;
    }

    /// The sign-in link that `quell serve` has printed last.
    fn sign_in_link(&self) -> String {
        let output = self.daemon.output();
        let mut links = output.split_whitespace().rev().filter(|word| word.contains("/sign-in/"));
        links.next().unwrap_or_else(|| panic!("no link in {output}")).to_owned()
    }

    /// Goes to a view by its route, such as `#/runs`.
    async fn go_to(&self, route: &str) {
        self.browser.run_script("location.hash = arguments[0];", &[json!(route)]).await;
    }

    /// Goes to a session and waits until it is open.
    async fn open_session(&self, key: &str) {
        self.go_to(&format!("#/s/{}", percent_encode(key))).await;
        self.browser.wait_for("document.body.dataset.view === 'chat'").await;
        self.browser.wait_visible("#message").await;
    }

    /// Types a message and sends it with Enter.
    async fn send_message(&self, text: &str) {
        self.browser.fill("#message", text).await;
        self.browser.press_key(quell_testkit::browser::Key::Enter).await;
    }

    /// Waits until the button of the composer is in the mode `send`, `stop` or `force`.
    async fn wait_send_mode(&self, mode: &str) {
        self.browser.wait_for(&format!("document.querySelector('#send').dataset.mode === '{mode}'")).await;
    }

    /// Starts an answer that never ends, and waits until the page shows its beginning.
    async fn start_streaming(&self, begun: &str) {
        self.model.script(ScriptedResponse::silent_mid_stream(begun));
        self.send_message("tell me everything").await;
        self.browser.wait_text("article.turn[data-role=assistant]", begun).await;
        self.wait_send_mode("stop").await;
    }

    /// Waits for a toast of this kind with this text.
    async fn wait_toast(&self, kind: &str, text: &str) {
        self.browser.wait_text(&format!("#toasts .toast.{kind}"), text).await;
    }
}

fn page_config_toml(config: &PageConfig<'_>, model: &ScriptedModel) -> String {
    let mut text = format!("{}{}\n", provider_toml(model), config.tables);
    for (id, lines) in [&[("main", config.main)], config.others].concat() {
        write!(text, "[agents.{id:?}]\nmodel = \"scripted/model\"\n{lines}\n").unwrap();
    }
    text
}

/// The directory of the screenshots: `target/screenshots`, or `QUELL_SCREENSHOTS`.
fn screenshot_dir() -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "the only setting of the screenshots")]
    let chosen = std::env::var("QUELL_SCREENSHOTS").ok().map(PathBuf::from);
    chosen.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("screenshots"))
}
