//! OpenClaw's Control UI, unmodified, in a real Chromium. The test serves its files from the package.

use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use quell_testkit::browser::{Browser, Key, Viewport, is_skipped};
use tokio::net::TcpListener;

use super::clients::{OpenClawFixture, assert_stopped_cleanly, web_socket_url};
use crate::prelude::*;

const COMPOSER: &str = "textarea[aria-label='Chat composer']";

/// Serves the files of the page.
async fn serve_page(listener: TcpListener, folder: PathBuf) {
    let routes = axum::Router::new().fallback(serve_file).with_state(Arc::new(folder));
    axum::serve(listener, routes).await.unwrap();
}

/// A file, or the page itself for an address within it.
async fn serve_file(State(folder): State<Arc<PathBuf>>, request: Request) -> Response {
    let path = folder.join(request.uri().path().trim_start_matches('/'));
    let path = if path.is_file() { path } else { folder.join("index.html") };
    let kind = match path.extension().and_then(|extension| extension.to_str()) {
        Some("js" | "mjs") => "text/javascript",
        Some("css") => "text/css",
        Some("svg") => "image/svg+xml",
        Some("json" | "webmanifest") => "application/json",
        Some("html") => "text/html; charset=utf-8",
        _ => "application/octet-stream",
    };
    match std::fs::read(&path) {
        Ok(bytes) => ([(header::CONTENT_TYPE, kind)], bytes).into_response(),
        Err(error) => (StatusCode::NOT_FOUND, error.to_string()).into_response(),
    }
}

/// A daemon that lets pages of this origin in, and the page, connected.
struct ControlUi {
    openclaw: OpenClawFixture,
    browser: Browser,
    address: String,
}

impl ControlUi {
    async fn start() -> Option<Self> {
        if is_skipped() {
            return None;
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let tables = format!("[approvals]\nby_own_principal = true\n[server]\nallowed_origins = [\"{origin}\"]\n");
        let openclaw = OpenClawFixture::start_with("vision = true\napprovals = { shell = \"ask\" }", &tables).await?;
        #[expect(clippy::disallowed_methods, reason = "the test's own file server, which ends with its runtime")]
        tokio::spawn(serve_page(listener, openclaw.package_file("openclaw/dist/control-ui")));
        let browser = Browser::start(Viewport::DESKTOP).await;
        let gateway = percent_encode(&web_socket_url(&openclaw.daemon));
        let address = format!("{origin}/chat?gatewayUrl={gateway}#token={}", openclaw.daemon.token());
        let page = Self { openclaw, browser, address };
        page.browser.open(&page.address).await;
        // The page asks before it follows a link to another gateway than its own.
        page.click_button("Switch to").await;
        page.browser.wait_visible(COMPOSER).await;
        page.wait_shown("Connected").await;
        Some(page)
    }

    async fn wait_shown(&self, text: &str) {
        let text = quell_testkit::browser::js_string_literal(text);
        self.browser.wait_for(&format!("document.body.innerText.includes({text})")).await;
    }

    /// Clicks the first visible button with this label or text.
    async fn click_button(&self, text: &str) {
        let text = quell_testkit::browser::js_string_literal(text);
        let find = format!(
            "[...document.querySelectorAll('button')].find(button => button.getClientRects().length > 0 && !button.disabled && \
             `${{button.ariaLabel ?? ''}} ${{button.innerText}}`.includes({text}))"
        );
        self.browser.wait_for(&format!("{find} !== undefined")).await;
        self.browser.run_script(&format!("{find}.click();"), &[]).await;
    }

    async fn send(&self, text: &str) {
        self.browser.click(COMPOSER).await;
        self.browser.type_text(text).await;
        self.browser.press_key(Key::Enter).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_control_ui_chats_stops_and_answers_calls() {
    let Some(page) = ControlUi::start().await else { return };
    let model = &page.openclaw.model;
    model.script(ScriptedStream::new().text("the first ").wait_for_gate("go").text("answer"));
    page.send("hello page").await;
    page.wait_shown("the first").await;
    model.open_gate("go");
    page.wait_shown("the first answer").await;
    page.openclaw.wait_newest_run_ended().await;

    model.script(ScriptedResponse::silent_mid_stream("it goes on"));
    page.send("now stop").await;
    page.wait_shown("it goes on").await;
    page.click_button("Stop generating").await;
    assert_stopped_cleanly(&page.openclaw.wait_newest_run_ended().await);
    page.wait_shown("Interrupted").await;

    model.script(ScriptedResponse::tool_call("c1", "shell", &json!({"command": "echo ran"})));
    model.script(ScriptedResponse::text("it was allowed"));
    page.send("run it").await;
    page.wait_shown("main wants to run shell").await;
    page.click_button("Allow once").await;
    page.wait_shown("it was allowed").await;
    page.openclaw.wait_newest_run_ended().await;

    model.script(ScriptedResponse::tool_call("c2", "shell", &json!({"command": "echo ran"})));
    model.script(ScriptedResponse::text("it is always allowed"));
    page.send("run it always").await;
    page.click_button("Always allow").await;
    page.wait_shown("it is always allowed").await;
    let rules = page.openclaw.http.get("/api/approval-rules").await.expect_status(200);
    assert_fields(&rules["items"][0], &json!({"tool": "shell", "pattern": "echo ran"}));

    page.browser.open("about:blank").await;
    page.browser.open(&page.address).await;
    page.wait_shown("it was allowed").await;
    page.wait_shown("now stop").await;
    model.assert_histories_valid();
}

/// A picture of one pixel.
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

#[tokio::test(flavor = "multi_thread")]
async fn the_control_ui_sends_a_picture_to_the_model() {
    let Some(page) = ControlUi::start().await else { return };
    let model = &page.openclaw.model;
    model.script(ScriptedStream::new().wait_for_gate("go").text("one pixel"));
    page.browser.click(COMPOSER).await;
    let paste = "const bytes = Uint8Array.from(atob(arguments[0]), character => character.charCodeAt(0)); \
                 const clipboardData = new DataTransfer(); \
                 clipboardData.items.add(new File([bytes], 'pixel.png', {type: 'image/png'})); \
                 document.activeElement.dispatchEvent( \
                   new ClipboardEvent('paste', {clipboardData, bubbles: true, cancelable: true}));";
    page.browser.run_script(paste, &[json!(PIXEL)]).await;
    page.browser.wait_visible(".chat-attachment-image-button").await;
    page.send("what is this?").await;
    model.open_gate("go");
    page.wait_shown("one pixel").await;
    page.openclaw.wait_newest_run_ended().await;
    let sent = model.recorded_requests().pop().unwrap().body.to_string();
    assert!(sent.contains(PIXEL), "{sent}");
}
