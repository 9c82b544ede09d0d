//! User actions in the browser: click, type, press keys, wait for elements, take screenshots.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::webdriver::WebDriverError;
use super::{Browser, Key, WAIT_TIMEOUT, js_string_literal};
use crate::or_fail::OrFail as _;

/// Pause before a click is retried that another element intercepted; the page sends no event for that.
const CLICK_RETRY_INTERVAL: Duration = Duration::from_millis(5);

impl Browser {
    /// Clicks the first matching element as soon as it can be clicked; fails when another element stays above it.
    pub async fn click(&self, css: &str) {
        let begun = Instant::now();
        loop {
            self.wait_for(&format!("(e => e && !e.disabled && e.getClientRects().length)({})", query_selector(css)))
                .await;
            match self.driver.click(css).await {
                Ok(_) => return,
                // A changing page may remove the element between the check and the click.
                Err(error) if begun.elapsed() < WAIT_TIMEOUT && is_retryable_click_error(&error) => {
                    tokio::time::sleep(CLICK_RETRY_INTERVAL).await;
                }
                Err(error) => panic!("{css} cannot be clicked: {error}\n{}", self.describe_page().await),
            }
        }
    }

    /// Clicks a field and types at its end.
    pub async fn fill(&self, css: &str, text: &str) {
        self.click(css).await;
        self.type_text(text).await;
    }

    /// Types into the focused element with real key events.
    pub async fn type_text(&self, text: &str) {
        self.driver.press_keys(None, text).await.or_fail(format_args!("{text:?} cannot be typed"));
    }

    /// Presses a key that is not text.
    pub async fn press_key(&self, key: Key) {
        self.type_text(&key.value().to_string()).await;
    }

    /// Presses a key while another one is held.
    pub async fn press_with_modifier(&self, held: Key, key: Key) {
        let pressed = self.driver.press_keys(Some(held), &key.value().to_string()).await;
        pressed.or_fail(format_args!("{held:?} with {key:?} cannot be pressed"));
    }

    /// Presses Tab until a matching element has the focus.
    ///
    /// # Cancel safety
    /// If dropped, the focus stays on an element in between.
    pub async fn tab_until_focused(&self, css: &str) {
        const MAX_TABS: usize = 80;
        let mut way = Vec::new();
        for _ in 0..MAX_TABS {
            if self.eval(&format!("document.activeElement.matches({})", js_string_literal(css))).await == true {
                return;
            }
            self.press_key(Key::Tab).await;
            way.push(self.eval("document.activeElement.outerHTML.slice(0, 80)").await.to_string());
        }
        panic!("{css} cannot be reached with Tab:\n{}", way.join("\n"));
    }

    /// Waits until a matching element is visible.
    pub async fn wait_visible(&self, css: &str) {
        self.wait_for(&format!("(e => e && e.checkVisibility({{visibilityProperty: true}}))({})", query_selector(css)))
            .await;
    }

    /// Waits until no matching element is visible.
    pub async fn wait_hidden(&self, css: &str) {
        let shown = "e => e.checkVisibility({visibilityProperty: true})";
        self.wait_for(&format!("![...document.querySelectorAll({})].some({shown})", js_string_literal(css))).await;
    }

    /// Waits until the text of a matching element contains this text.
    pub async fn wait_text(&self, css: &str, text: &str) {
        let all = format!("[...document.querySelectorAll({})]", js_string_literal(css));
        self.wait_for(&format!("{all}.some(e => e.textContent.includes({}))", js_string_literal(text))).await;
    }

    pub async fn count_matches(&self, css: &str) -> u64 {
        self.eval(&format!("document.querySelectorAll({}).length", js_string_literal(css)))
            .await
            .as_u64()
            .unwrap_or_default()
    }

    /// Text of the first matching element.
    pub async fn text(&self, css: &str) -> String {
        let text = self.eval(&format!("{}.textContent", query_selector(css))).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Takes a screenshot after the fonts are loaded and the layout is stable.
    ///
    /// # Cancel safety
    /// If dropped, an incomplete file may be left.
    pub async fn screenshot(&self, path: &Path) {
        self.run_async_script(STABLE_LAYOUT_SCRIPT, &[]).await;
        let picture = self.driver.screenshot().await.or_fail("no picture");
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, picture));
        written.or_fail(format_args!("{} cannot be written", path.display()));
    }

    /// Switches the network off or on. Open connections stay; new ones fail.
    pub async fn set_offline(&self, offline: bool) {
        let conditions = json!({"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1});
        // Without this the browser accepts the conditions and ignores them.
        self.cdp("Network.enable", json!({})).await;
        self.cdp("Network.emulateNetworkConditions", conditions).await;
    }
}

/// Waits for the fonts and two frames.
const STABLE_LAYOUT_SCRIPT: &str =
    "document.fonts.ready.then(() => requestAnimationFrame(() => requestAnimationFrame(() => done(true))));";

fn query_selector(css: &str) -> String {
    format!("document.querySelector({})", js_string_literal(css))
}

fn is_retryable_click_error(error: &WebDriverError) -> bool {
    const CHANGING_PAGE: [&str; 4] =
        ["no such element", "stale element reference", "element click intercepted", "element not interactable"];
    CHANGING_PAGE.contains(&error.code.as_str())
}
