//! Tests of the web page in a real Chromium against the real binary: real HTTP, real WebSocket, a scripted model. A
//! [`PageFixture`] is one daemon and one browser; the tests click, type and read as a person does.
//!
//! They need Chromium and chromedriver, which `cargo xtask test --full` installs. With `QUELL_SKIP_BROWSER=1` they are skipped
//! and say so.

mod agents;
mod chat;
mod edits;
mod fields;
mod hostile;
mod keyboard;
mod long_session;
mod mcp;
mod old_session;
mod overview;
mod performance;
mod phone;
mod preferences;
mod proxy;
mod reconnect;
mod reload;
mod rights;
mod screenshots;
mod sharing;
mod sign_in;
mod stops;
mod toasts;

use std::fmt::Write as _;
use std::ops::Deref;

use quell_testkit::browser::{Browser, Key, Viewport, is_skipped, js_string_literal};

use proxy::PageProxy;
use quell_test_support::npm_packages;

use crate::prelude::*;

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
    tables: &'a str,
    /// Of model calls.
    max_retries: u32,
}

impl<'a> PageConfig<'a> {
    fn main(main: &'a str) -> Self {
        Self { main, ..Self::default() }
    }

    fn tables(tables: &'a str) -> Self {
        Self { tables, ..Self::default() }
    }
}

impl PageFixture {
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

    /// Starts with one agent that has every tool, and signs in.
    async fn start_signed_in() -> Option<Self> {
        Self::start_signed_in_with(&PageConfig::default()).await
    }

    async fn start_signed_in_with(config: &PageConfig<'_>) -> Option<Self> {
        let page = Self::start_with(config).await?;
        page.sign_in().await;
        Some(page)
    }

    /// Starts with a proxy between browser and daemon, and signs in through it.
    async fn start_behind_proxy(config: &PageConfig<'_>) -> Option<(Self, PageProxy)> {
        let page = Self::start_with(config).await?;
        let proxy = PageProxy::start_before(page.daemon.url()).await;
        page.open(&page.sign_in_link().replace(page.daemon.url(), &proxy.url)).await;
        page.wait_live().await;
        Some((page, proxy))
    }

    /// Opens the one-time link from the daemon's output, and waits for the chat.
    async fn sign_in(&self) {
        self.open(&self.sign_in_link()).await;
        self.wait_view("chat").await;
        self.wait_live().await;
        self.wait_visible("#message").await;
    }

    /// Signs in with a new token that has these scopes.
    async fn sign_in_as(&self, name: &str, scopes: &[&str]) {
        let token = json!({"name": name, "scope": scopes});
        let made = self.http.post("/api/tokens", &token).await.expect_status(201);
        self.open(self.daemon.url()).await;
        self.fill("#token", made["token"].as_str().unwrap()).await;
        self.click("#sign-in-button").await;
        self.wait_live().await;
    }

    async fn click_until_visible(&self, css: &str, then: &str) {
        self.click(css).await;
        self.wait_visible(then).await;
    }

    /// Clicks and waits until another element, or the clicked one itself, is hidden.
    async fn click_until_hidden(&self, css: &str, then: &str) {
        self.click(css).await;
        self.wait_hidden(then).await;
    }

    async fn click_until_text(&self, css: &str, then: &str, text: &str) {
        self.click(css).await;
        self.wait_text(then, text).await;
    }

    /// Waits until the page is connected to its daemon.
    async fn wait_live(&self) {
        self.wait_visible("[data-fact=connection][data-state=live]").await;
    }

    async fn wait_view(&self, view: &str) {
        self.wait_for(&format!("document.body.dataset.view === '{view}'")).await;
    }

    /// Waits until a number in the header contains this text.
    async fn wait_fact(&self, fact: &str, text: &str) {
        self.wait_text(&format!("[data-fact={fact}]"), text).await;
    }

    async fn wait_focused(&self, css: &str) {
        self.wait_for(&format!("document.activeElement.matches({})", js_string_literal(css))).await;
    }

    async fn draft(&self) -> Value {
        self.eval("document.querySelector('#message').value").await
    }

    async fn clear_draft(&self) {
        self.run_script("document.querySelector('#message').value = ''", &[]).await;
    }

    /// Waits until the page shows the receipts of this many stopped runs.
    async fn wait_receipts(&self, count: usize) {
        let receipts = "document.querySelectorAll('article.turn.stopped .receipt-line')";
        self.wait_for(&format!("{receipts}.length === {count}")).await;
    }

    /// Kills the daemon and waits until the page has noticed.
    async fn kill_daemon(&self) {
        self.daemon.kill9().await;
        self.wait_for("document.body.classList.contains('stale')").await;
    }

    /// Starts the next daemon on the address of the killed one, and waits until the page is connected to it.
    async fn restart_daemon(&mut self) {
        let (home, address) = (self.daemon.home().clone(), self.daemon.address().to_owned());
        self.daemon = home.start_on(quell_exe(), &address).await;
        self.http = self.daemon.api();
        self.wait_live().await;
    }

    /// The sign-in link that `quell serve` has printed last.
    fn sign_in_link(&self) -> String {
        let output = self.daemon.output();
        let mut links = output.split_whitespace().rev().filter(|word| word.contains("/sign-in/"));
        links.next().unwrap_or_else(|| panic!("no link in {output}")).to_owned()
    }

    /// Goes to a view by its route, such as `#/runs`.
    async fn go_to(&self, route: &str) {
        self.run_script("location.hash = arguments[0];", &[json!(route)]).await;
    }

    /// Goes to a session and waits until it is open.
    async fn open_session(&self, key: &str) {
        self.go_to(&format!("#/s/{}", percent_encode(key))).await;
        self.wait_view("chat").await;
        self.wait_visible("#message").await;
    }

    async fn send_message(&self, text: &str) {
        self.fill("#message", text).await;
        self.press_key(Key::Enter).await;
    }

    /// Waits until the button of the composer is in the mode `send`, `stop` or `force`.
    async fn wait_send_mode(&self, mode: &str) {
        self.wait_for(&format!("document.querySelector('#send').dataset.mode === '{mode}'")).await;
    }

    /// Starts an answer that never ends, and waits until the page shows its beginning.
    async fn start_streaming(&self, begun: &str) {
        self.model.script(ScriptedResponse::silent_mid_stream(begun));
        self.send_message("tell me everything").await;
        self.wait_text("article.turn[data-role=assistant]", begun).await;
        self.wait_send_mode("stop").await;
    }

    async fn wait_toast(&self, kind: &str, text: &str) {
        self.wait_text(&format!("#toasts .toast.{kind}"), text).await;
    }
}

impl Deref for PageFixture {
    type Target = Browser;

    fn deref(&self) -> &Browser {
        &self.browser
    }
}

fn page_config_toml(config: &PageConfig<'_>, model: &ScriptedModel) -> String {
    let retries = format!("max_retries = {}", config.max_retries);
    let mut text = format!("{}{}\n", provider_toml(model).replace("max_retries = 0", &retries), config.tables);
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

#[tokio::test]
async fn the_modules_of_the_page_pass_their_own_tests() {
    if npm_packages::is_skipped() {
        return;
    }
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web");
    let tests: Vec<_> = std::fs::read_dir(web.join("test"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".test.mjs"))
        .collect();
    assert!(!tests.is_empty(), "no tests in {}", web.display());
    let mut node = npm_packages::program_command("node");
    let ran = node.arg("--test").args(&tests).current_dir(&web).output().await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && !out.contains("# tests 0"), "{out}\n{err}");
}
