//! A real Chromium for tests of the page, driven over WebDriver: it clicks, types, waits for visible states, and
//! records errors, violations of the content policy and dialogs.
//!
//! It knows nothing of Quell's page. The content policy of the page does not bind scripts of the driver, so a test can
//! read everything. Clicks and keys are real input events.

mod actions;
mod chromedriver;
mod page_log;
#[cfg(test)]
mod tests;
mod webdriver;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::WAIT_TIMEOUT;
use crate::or_fail::OrFail as _;

use chromedriver::ChromedriverProcess;
pub use page_log::ConsoleEntry;
pub use webdriver::Key;
use webdriver::{WebDriver, WebDriverError};

/// Longest run of a script that measures something. A longer one fails its test.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(110);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Viewport {
    /// In CSS pixels.
    pub width: u32,
    /// In CSS pixels.
    pub height: u32,
    /// Touch input instead of a mouse, and a mobile viewport.
    pub touch: bool,
}

impl Viewport {
    pub const DESKTOP: Self = Self { width: 1440, height: 900, touch: false };
    pub const PHONE: Self = Self { width: 390, height: 844, touch: true };
}

/// A Chromium with one tab and its own profile. Dropping it ends it.
#[derive(Debug)]
pub struct Browser {
    driver: WebDriver,
    process: ChromedriverProcess,
}

impl Browser {
    /// Starts a browser with an empty tab.
    ///
    /// # Cancel safety
    /// If dropped, the started browser is killed.
    ///
    /// # Panics
    /// When chromedriver or Chromium is missing, with the packages to install.
    pub async fn start(screen: Viewport) -> Self {
        let process = ChromedriverProcess::start().await;
        let driver = match WebDriver::connect(process.url(), chrome_capabilities(&process)).await {
            Ok(driver) => driver,
            Err(error) => panic!("Chromium did not start; {MISSING_BROWSER_HELP}\n{error}\n{}", process.output()),
        };
        let browser = Self { driver, process };
        browser.cdp("Page.addScriptToEvaluateOnNewDocument", json!({"source": page_log::PAGE_LOG_SCRIPT})).await;
        browser.set_viewport(screen).await;
        let timeouts =
            json!({"script": u64::try_from(SCRIPT_TIMEOUT.as_millis()).unwrap_or(u64::MAX), "pageLoad": 60_000});
        browser.driver.post("timeouts", timeouts).await.or_fail("no time for scripts");
        browser
    }

    pub async fn set_viewport(&self, screen: Viewport) {
        let Viewport { width, height, touch } = screen;
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch});
        self.cdp("Emulation.setDeviceMetricsOverride", metrics).await;
        self.cdp("Emulation.setTouchEmulationEnabled", json!({"enabled": touch})).await;
    }

    /// Sets the preferred colour scheme, `light` or `dark`, and reduced motion.
    pub async fn set_color_scheme(&self, scheme: &str) {
        let features = json!([
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]);
        self.cdp("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// Opens a URL and waits until the document is loaded.
    pub async fn open(&self, url: &str) {
        self.driver.post("url", json!({"url": url})).await.or_fail(format_args!("{url} cannot be opened"));
    }

    /// Opens an address in a further tab, which is used from now on.
    pub async fn open_tab(&self, url: &str) {
        self.driver.switch_to_new_tab().await.or_fail("there is no further tab");
        self.open(url).await;
    }

    pub async fn reload(&self) {
        self.driver.post("refresh", json!({})).await.or_fail("the page cannot be loaded again");
    }

    /// Runs statements in the page and returns the value of their `return`; `arguments` holds `args`.
    pub async fn run_script(&self, script: &str, args: &[Value]) -> Value {
        self.driver.execute(script, args).await.or_fail(script)
    }

    /// Runs statements that pass their result to `done`.
    pub async fn run_async_script(&self, script: &str, args: &[Value]) -> Value {
        let script = format!("const done = arguments[arguments.length - 1];\n{script}");
        self.driver.execute_async(&script, args).await.or_fail(&script)
    }

    /// Evaluates an expression in the page.
    pub async fn eval(&self, expression: &str) -> Value {
        self.run_script(&format!("return ({expression});"), &[]).await
    }

    /// Waits until an expression is truthy, and returns its value. An exception counts as false.
    pub async fn wait_for(&self, expression: &str) -> Value {
        let begun = Instant::now();
        loop {
            let left = WAIT_TIMEOUT.saturating_sub(begun.elapsed());
            match self.driver.execute_async(&polling_script(expression, left), &[]).await {
                Ok(mut answer) if answer["is"] == true => return answer["value"].take(),
                // The page was left meanwhile; the next page may fulfil the condition.
                Err(error) if left > Duration::ZERO && is_navigation_error(&error) => {}
                other => {
                    let why = other.map_or_else(|error| error.to_string(), |last| last["error"].to_string());
                    panic!("not so after {WAIT_TIMEOUT:?}: {expression}\n{why}\n{}", self.describe_page().await);
                }
            }
        }
    }

    pub async fn cdp(&self, method: &str, params: Value) -> Value {
        self.driver.post("goog/cdp/execute", json!({"cmd": method, "params": params})).await.or_fail(method)
    }

    /// Describes the page as text, for the message of a failing test.
    async fn describe_page(&self) -> String {
        let shown = self.driver.execute(page_log::DESCRIBE_SCRIPT, &[]).await;
        let shown = shown.map_or_else(|error| error.to_string(), |text| text.as_str().unwrap_or_default().to_owned());
        let entries: Vec<String> = self.take_console_entries().await.iter().map(ToString::to_string).collect();
        format!("{shown}\nconsole:\n{}", entries.join("\n"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The WebDriver session ends with its process; closing it would only cost time.
        self.process.kill();
    }
}

/// Help text for a missing browser.
pub const MISSING_BROWSER_HELP: &str = "tests of the page need chromium and chromedriver: \
    `apt-get install chromium chromium-driver`, or leave them out with QUELL_SKIP_BROWSER=1";

/// True when browser tests are switched off; says so.
#[must_use]
pub fn is_skipped() -> bool {
    crate::skip::is_switched_off("QUELL_SKIP_BROWSER")
}

pub fn js_string_literal(text: &str) -> String {
    // JSON allows both characters; in old JavaScript they end a line.
    Value::from(text).to_string().replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

fn chrome_capabilities(process: &ChromedriverProcess) -> Value {
    let profile = format!("--user-data-dir={}", process.profile().display());
    let mut args = vec![
        "--headless=new",
        // With a pipe instead of a port, the browser ends when its driver ends, for any reason.
        "--remote-debugging-pipe",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-quic",
        "--no-first-run",
        "--force-color-profile=srgb",
        "--hide-scrollbars",
        &profile,
    ];
    if rustix::process::geteuid().is_root() {
        // Chromium's sandbox does not work for root; tests load only pages of their own daemon.
        args.push("--no-sandbox");
    }
    json!({
        "browserName": "chrome",
        "goog:chromeOptions": {"args": args},
        "goog:loggingPrefs": {"browser": "ALL"},
    })
}

/// A script that polls an expression until it is truthy.
fn polling_script(expression: &str, limit: Duration) -> String {
    format!(
        "const done = arguments[arguments.length - 1];
         const end = performance.now() + {limit};
         const look = () => {{
           let value, error;
           try {{ value = ({expression}); }} catch (thrown) {{ error = String(thrown); }}
           if (value) done({{is: true, value: value instanceof Node ? true : value}});
           else if (performance.now() > end) done({{is: false, error: error ?? `it is ${{value}}`}});
           else setTimeout(look, 5);
         }};
         look();",
        limit = limit.as_millis()
    )
}

fn is_navigation_error(error: &WebDriverError) -> bool {
    match error.code.as_str() {
        "javascript error" | "unknown error" => {
            ["unloaded", "navigat", "detached", "context"].iter().any(|word| error.message.contains(word))
        }
        "stale element reference" => true,
        _ => false,
    }
}
