//! The page in a real Chromium against the real binary: real HTTP, real WebSocket, a scripted model behind the daemon. A
//! [`Scene`] is one daemon and one browser; the tests click, type and look as a person does.
//!
//! They need Chromium and chromedriver, which `cargo xtask test` installs. `QUELL_SKIP_BROWSER=1` leaves them out, and says so.

mod agents;
mod axe;
mod chat;
mod choices;
mod everything;
mod fast;
mod hostile;
mod keyboard;
mod long;
mod looks;
mod phone;
mod reconnect;
mod relay;
mod reload;
mod sign_in;
mod stops;
mod toasts;
mod units;

use std::fmt::Write as _;
use std::path::PathBuf;

use quell_testkit::browser::{Browser, Screen};
use quell_testkit::daemon::{Api, Daemon, Home};
use quell_testkit::{Behaviour, ScriptedModel};
use serde_json::json;

use crate::cli::exe;
use crate::doors::escape;

/// Entries of the console that the browser itself makes of an answer `401`: a page that is not signed in asks who it is.
const SIGNED_OUT: &str = "status of 401";

/// Tables with which a gentle stop is patient for longer than any test: only force ends a command that does not obey.
const PATIENT: &str = "[stop]\nterm_ms = 60000\ngrace_ms = 90000\nhard_ms = 120000\n";

/// One daemon in front of a scripted model, and a browser that looks at it.
struct Scene {
    browser: Browser,
    daemon: Daemon,
    model: ScriptedModel,
    http: Api,
}

/// What a daemon is configured with.
#[derive(Default)]
struct Plan<'a> {
    /// Lines of `[agents.main]` besides its model.
    main: &'a str,
    /// Other agents: id and lines.
    others: &'a [(&'a str, &'a str)],
    /// Other tables.
    tables: &'a str,
}

impl Scene {
    /// With one agent that has every tool.
    async fn open() -> Self {
        Self::with(&Plan::default()).await
    }

    async fn with(plan: &Plan<'_>) -> Self {
        let model = ScriptedModel::start().await;
        let daemon = Home::new(&configuration(plan, &model)).start(exe()).await;
        let (http, browser) = (daemon.http(), Browser::start(Screen::WIDE).await);
        Self { browser, daemon, model, http }
    }

    /// Opens the one-time link, as it stands in the terminal, and waits for the chat.
    async fn sign_in(&self) {
        self.browser.open(&self.link()).await;
        self.browser.until("document.body.dataset.view === 'chat'").await;
        self.browser.shown("[data-fact=connection][data-state=live]").await;
    }

    /// The link that `quell serve` has printed.
    fn link(&self) -> String {
        let output = self.daemon.output();
        let mut links = output.split_whitespace().rev().filter(|word| word.contains("/sign-in/"));
        links.next().unwrap_or_else(|| panic!("no link in {output}")).to_owned()
    }

    /// Goes to a view by its route.
    async fn go(&self, route: &str) {
        self.browser.run("location.hash = arguments[0];", &[json!(route)]).await;
    }

    /// Goes to a session and waits until it is open.
    async fn session(&self, key: &str) {
        self.go(&format!("#/s/{}", escape(key))).await;
        self.browser.until("document.body.dataset.view === 'chat'").await;
        self.browser.shown("#message").await;
    }

    /// Types a message and sends it with Enter.
    async fn say(&self, text: &str) {
        self.browser.fill("#message", text).await;
        self.browser.press(quell_testkit::browser::Key::Enter).await;
    }

    /// Waits until the control of the composer is `send`, `stop` or `force`.
    async fn mode(&self, mode: &str) {
        self.browser.until(&format!("document.querySelector('#send').dataset.mode === '{mode}'")).await;
    }

    /// Lets the model begin an answer and go on for ever; waits until the page shows it.
    async fn streaming(&self, begun: &str) {
        self.model.script(Behaviour::silent_mid_stream(begun));
        self.say("tell me everything").await;
        self.browser.reads("article.turn[data-role=assistant]", begun).await;
        self.mode("stop").await;
    }

    /// Sends a message past the page.
    async fn send(&self, session: &str, text: &str) -> String {
        let path = format!("/api/sessions/{}/runs", escape(session));
        let sent = self.http.post(&path, &json!({"text": text})).await.expect_status(202);
        sent["runId"].as_str().unwrap().to_owned()
    }

    /// Waits for the end of a run past the page.
    async fn ended(&self, run: &str) -> serde_json::Value {
        self.http.events(run, 0).await.until("run.ended").await;
        self.http.get(&format!("/api/runs/{run}")).await.expect_status(200)
    }

    /// Waits for the toast with this text.
    async fn toast(&self, kind: &str, text: &str) {
        self.browser.reads(&format!("#toasts .toast.{kind}"), text).await;
    }
}

fn configuration(plan: &Plan<'_>, model: &ScriptedModel) -> String {
    let mut text = format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\nmax_retries = 0\n{}\n",
        model.base_url(),
        plan.tables
    );
    for (id, lines) in [&[("main", plan.main)], plan.others].concat() {
        write!(text, "[agents.{id:?}]\nmodel = \"scripted/model\"\n{lines}\n").unwrap();
    }
    text
}

/// Where pictures go: `target/screenshots`, or the folder in `QUELL_SCREENSHOTS`.
fn pictures() -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "the one setting of the pictures")]
    let chosen = std::env::var("QUELL_SCREENSHOTS").ok().map(PathBuf::from);
    chosen.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("screenshots"))
}
