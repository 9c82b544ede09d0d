//! What a person does at a browser: click, type, press keys, look; and a picture of what there is to see.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use thirtyfour::By;
use thirtyfour::error::WebDriverErrorInner;

use super::{Browser, Key, PATIENCE, quoted};

/// Nobody waits between two keys.
const AT_ONCE: Duration = Duration::ZERO;

/// Pause before a click is tried again that something was in the way of: the page sends no event when it is out of it.
const AGAIN: Duration = Duration::from_millis(5);

impl Browser {
    /// Clicks with the mouse on the first element that fits, as soon as it can be clicked; fails when something else lies
    /// above it for good.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have clicked.
    ///
    /// # Panics
    /// When it cannot be clicked in time.
    pub async fn click(&self, css: &str) {
        let begun = Instant::now();
        loop {
            self.until(&format!("(e => e && !e.disabled && e.getClientRects().length)({})", first(css))).await;
            let clicked = match self.driver().find(By::Css(css)).await {
                Ok(element) => element.click().await,
                Err(error) => Err(error),
            };
            match clicked {
                Ok(()) => return,
                // A page that changes may take the element away between looking and clicking.
                Err(error) if begun.elapsed() < PATIENCE && may_pass(error.as_inner()) => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => panic!("{css} cannot be clicked: {error}\n{}", self.describe().await),
            }
        }
    }

    /// Focuses a field with the mouse and types at its end.
    ///
    /// # Cancel safety
    /// A dropped call may have typed a part.
    ///
    /// # Panics
    /// When it cannot be clicked in time.
    pub async fn fill(&self, css: &str, text: &str) {
        self.click(css).await;
        self.keys(text).await;
    }

    /// Types at whatever has the focus, with real key events.
    ///
    /// # Cancel safety
    /// A dropped call may have typed a part.
    ///
    /// # Panics
    /// When the driver refuses.
    pub async fn keys(&self, text: &str) {
        let typed = self.driver().action_chain_with_delay(Some(AT_ONCE), Some(AT_ONCE)).send_keys(text).perform().await;
        if let Err(error) = typed {
            panic!("{text:?} cannot be typed: {error}");
        }
    }

    /// Presses a key that is no text.
    ///
    /// # Cancel safety
    /// As [`Self::keys`].
    ///
    /// # Panics
    /// As [`Self::keys`].
    pub async fn press(&self, key: Key) {
        self.keys(&key.value().to_string()).await;
    }

    /// Presses a key while another one is held.
    ///
    /// # Cancel safety
    /// As [`Self::keys`].
    ///
    /// # Panics
    /// As [`Self::keys`].
    pub async fn press_with(&self, held: Key, key: Key) {
        let chain = self.driver().action_chain_with_delay(Some(AT_ONCE), Some(AT_ONCE));
        let chain = chain.key_down(held.value()).send_keys(key.value().to_string()).key_up(held.value());
        if let Err(error) = chain.perform().await {
            panic!("{held:?} with {key:?} cannot be pressed: {error}");
        }
    }

    /// Goes on with Tab until the focus is on an element that fits, as somebody without a mouse does.
    ///
    /// # Cancel safety
    /// A dropped call leaves the focus on the way.
    ///
    /// # Panics
    /// When the focus does not come there within as many steps as a person would take at most.
    pub async fn tab_to(&self, css: &str) {
        const STEPS: usize = 80;
        let mut way = Vec::new();
        for _ in 0..STEPS {
            if self.value(&format!("document.activeElement.matches({})", quoted(css))).await == true {
                return;
            }
            self.press(Key::Tab).await;
            way.push(self.value("document.activeElement.outerHTML.slice(0, 80)").await.to_string());
        }
        panic!("{css} cannot be reached with Tab:\n{}", way.join("\n"));
    }

    /// Waits until an element that fits is shown.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it is not in time.
    pub async fn shown(&self, css: &str) {
        self.until(&format!("(e => e && e.checkVisibility({{visibilityProperty: true}}))({})", first(css))).await;
    }

    /// Waits until no element that fits is shown.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When one still is.
    pub async fn gone(&self, css: &str) {
        let shown = "e => e.checkVisibility({visibilityProperty: true})";
        self.until(&format!("![...document.querySelectorAll({})].some({shown})", quoted(css))).await;
    }

    /// Waits until the text of an element that fits contains this.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When it does not in time.
    pub async fn reads(&self, css: &str, text: &str) {
        let all = format!("[...document.querySelectorAll({})]", quoted(css));
        self.until(&format!("{all}.some(e => e.textContent.includes({}))", quoted(text))).await;
    }

    /// How many elements fit.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When the selector is none.
    pub async fn count(&self, css: &str) -> u64 {
        self.value(&format!("document.querySelectorAll({}).length", quoted(css))).await.as_u64().unwrap_or_default()
    }

    /// The whole text of the first element that fits.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When there is none.
    pub async fn text(&self, css: &str) -> String {
        let text = self.value(&format!("{}.textContent", first(css))).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Writes a picture of what is on the screen, once its fonts are there and nothing moves any more.
    ///
    /// # Cancel safety
    /// A dropped call may leave a part of the file.
    ///
    /// # Panics
    /// When it cannot be written.
    pub async fn picture(&self, path: &Path) {
        self.run_until_done(STILL, &[]).await;
        let picture = match self.driver().screenshot_as_png().await {
            Ok(picture) => picture,
            Err(error) => panic!("no picture: {error}"),
        };
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, picture));
        if let Err(error) = written {
            panic!("{} cannot be written: {error}", path.display());
        }
    }

    /// Takes the network away, or gives it back. What is open stays open; nothing new gets through.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have changed it.
    ///
    /// # Panics
    /// When the browser refuses.
    pub async fn offline(&self, offline: bool) {
        let conditions = json!({"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1});
        // Without this the browser takes the conditions and does nothing about them.
        self.cdp("Network.enable", json!({})).await;
        self.cdp("Network.emulateNetworkConditions", conditions).await;
    }
}

/// Two frames without anything to do for the layout.
const STILL: &str =
    "document.fonts.ready.then(() => requestAnimationFrame(() => requestAnimationFrame(() => done(true))));";

fn first(css: &str) -> String {
    format!("document.querySelector({})", quoted(css))
}

fn may_pass(error: &WebDriverErrorInner) -> bool {
    matches!(
        error,
        WebDriverErrorInner::NoSuchElement(_)
            | WebDriverErrorInner::StaleElementReference(_)
            | WebDriverErrorInner::ElementClickIntercepted(_)
            | WebDriverErrorInner::ElementNotInteractable(_)
    )
}
