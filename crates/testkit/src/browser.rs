//! A real Chromium for tests of the page, driven over WebDriver: it clicks, types and looks as a person does, waits for what a
//! person would see, and keeps the book of what no person should: errors, violations of the content policy, dialogs.
//!
//! It knows nothing of Quell's page. Scripts that come through the driver are not bound by the page's content policy, so that
//! a test can look at everything; clicks and keys are real input events, and go where a person's would.

mod act;
mod book;
mod process;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thirtyfour::error::WebDriverErrorInner;
use thirtyfour::{ChromeCapabilities, ChromiumLikeCapabilities, LoggingPrefsLogLevel, WebDriver};

use crate::daemon::client;

pub use book::Entry;
use process::DriverProcess;
pub use thirtyfour::Key;

/// How long a condition on the page may take on a busy machine. It decides only how late a failing test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a script may take that measures something. A stuck one is ended with its test.
const LONGEST_SCRIPT: Duration = Duration::from_secs(110);

/// What a page is shown on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Screen {
    /// Width in CSS pixels.
    pub width: u32,
    /// Height in CSS pixels.
    pub height: u32,
    /// With fingers instead of a mouse, and a viewport like a phone's.
    pub touch: bool,
}

impl Screen {
    /// A desk.
    pub const WIDE: Self = Self { width: 1440, height: 900, touch: false };
    /// A phone.
    pub const PHONE: Self = Self { width: 390, height: 844, touch: true };
}

/// Light or dark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

impl Scheme {
    /// The word of the media feature.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// A Chromium with one tab and a profile of its own. Dropping it ends it.
#[derive(Debug)]
pub struct Browser {
    driver: Option<WebDriver>,
    process: DriverProcess,
}

impl Browser {
    /// Starts one with an empty tab.
    ///
    /// # Cancel safety
    /// A browser whose start is dropped is killed.
    ///
    /// # Panics
    /// When there is no chromedriver or no Chromium, with what to install.
    pub async fn start(screen: Screen) -> Self {
        let process = DriverProcess::start().await;
        let connected = WebDriver::builder(process.url(), capabilities(&process)).client(client()).connect().await;
        let driver = match connected {
            Ok(driver) => driver,
            Err(error) => panic!("Chromium did not start; {NEEDS}\n{error}\n{}", process.output()),
        };
        let browser = Self { driver: Some(driver), process };
        browser.cdp("Page.addScriptToEvaluateOnNewDocument", json!({"source": book::WATCH})).await;
        browser.screen(screen).await;
        if let Err(error) = browser.driver().set_script_timeout(LONGEST_SCRIPT).await {
            panic!("no time for scripts: {error}");
        }
        browser
    }

    /// What it is shown on from now on.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have changed it.
    ///
    /// # Panics
    /// When the browser refuses.
    pub async fn screen(&self, screen: Screen) {
        let Screen { width, height, touch } = screen;
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch});
        self.cdp("Emulation.setDeviceMetricsOverride", metrics).await;
        self.cdp("Emulation.setTouchEmulationEnabled", json!({"enabled": touch})).await;
    }

    /// Which colours, and how much motion, the system asks for from now on.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have changed it.
    ///
    /// # Panics
    /// When the browser refuses.
    pub async fn scheme(&self, scheme: Scheme) {
        let features = json!([
            {"name": "prefers-color-scheme", "value": scheme.word()},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]);
        self.cdp("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// Opens an address and waits until the document is loaded.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have left the page before.
    ///
    /// # Panics
    /// When it cannot be opened.
    pub async fn open(&self, url: &str) {
        if let Err(error) = self.driver().goto(url).await {
            panic!("{url} cannot be opened: {error}");
        }
    }

    /// Loads the page again.
    ///
    /// # Cancel safety
    /// As [`Self::open`].
    ///
    /// # Panics
    /// As [`Self::open`].
    pub async fn reload(&self) {
        if let Err(error) = self.driver().refresh().await {
            panic!("the page cannot be loaded again: {error}");
        }
    }

    /// Runs statements in the page and answers what they `return`; `arguments` holds `args`.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have run them.
    ///
    /// # Panics
    /// When they throw.
    pub async fn run(&self, script: &str, args: &[Value]) -> Value {
        match self.driver().execute(script, args.to_vec()).await {
            Ok(answer) => answer.json().clone(),
            Err(error) => panic!("{script}\n{error}"),
        }
    }

    /// Runs statements that hand their answer to `done`, when it comes.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have run them.
    ///
    /// # Panics
    /// When they throw, or do not answer in time.
    pub async fn run_until_done(&self, script: &str, args: &[Value]) -> Value {
        let script = format!("const done = arguments[arguments.length - 1];\n{script}");
        match self.driver().execute_async(script, args.to_vec()).await {
            Ok(answer) => answer.json().clone(),
            Err(error) => panic!("{error}"),
        }
    }

    /// The value of an expression in the page.
    ///
    /// # Cancel safety
    /// Safe: it only looks, if the expression does.
    ///
    /// # Panics
    /// When it throws.
    pub async fn value(&self, expression: &str) -> Value {
        self.run(&format!("return ({expression});"), &[]).await
    }

    /// Waits in the page until an expression is truthy, and answers its value. While it throws it is not.
    ///
    /// # Cancel safety
    /// Safe: it only looks, if the expression does.
    ///
    /// # Panics
    /// When it does not become so in time, with what the page shows.
    pub async fn until(&self, expression: &str) -> Value {
        let begun = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(begun.elapsed());
            match self.driver().execute_async(watching(expression, left), Vec::new()).await {
                Ok(answer) if answer.json()["is"] == true => return answer.json()["value"].clone(),
                // The page was left meanwhile; the next one may show it.
                Err(error) if left > Duration::ZERO && is_from_another_page(error.as_inner()) => {}
                other => {
                    let why = other.map_or_else(|error| error.to_string(), |last| last.json()["error"].to_string());
                    panic!("not so after {PATIENCE:?}: {expression}\n{why}\n{}", self.describe().await);
                }
            }
        }
    }

    /// Sends a command of the DevTools protocol.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have been carried out.
    ///
    /// # Panics
    /// When the browser refuses it.
    pub async fn cdp(&self, method: &str, params: Value) -> Value {
        match self.driver().cdp().send_raw(method, params).await {
            Ok(answer) => answer,
            Err(error) => panic!("{method}: {error}"),
        }
    }

    fn driver(&self) -> &WebDriver {
        match &self.driver {
            Some(driver) => driver,
            None => panic!("the browser has been closed"),
        }
    }

    /// What is on the screen, in words, for a test that fails.
    async fn describe(&self) -> String {
        let shown = self.driver().execute(book::DESCRIBE, Vec::new()).await;
        let shown = shown.map_or_else(|error| error.to_string(), |text| text.json().as_str().unwrap_or("").to_owned());
        let entries: Vec<String> = self.entries().await.iter().map(ToString::to_string).collect();
        format!("{shown}\nconsole:\n{}", entries.join("\n"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The session ends with its process; asking it to would only wait for it.
        if let Some(driver) = self.driver.take() {
            let _ = driver.leak();
        }
        self.process.kill();
    }
}

/// What a machine needs for these tests.
pub const NEEDS: &str = "tests of the page need chromium and chromedriver: \
    `apt-get install chromium chromium-driver`, or leave them out with QUELL_SKIP_BROWSER=1";

/// True when tests that need a browser are to be left out.
#[must_use]
#[expect(clippy::print_stdout, reason = "a test that is left out says so")]
pub fn is_skipped() -> bool {
    #[expect(clippy::disallowed_methods, reason = "the one switch of tests that need a browser")]
    let skipped = std::env::var("QUELL_SKIP_BROWSER").is_ok();
    if skipped {
        println!("skipped: QUELL_SKIP_BROWSER is set");
    }
    skipped
}

/// A text as a JavaScript literal.
#[must_use]
pub fn quoted(text: &str) -> String {
    // Both are legal in JSON's strings and end a line of old JavaScript.
    Value::from(text).to_string().replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

fn capabilities(process: &DriverProcess) -> ChromeCapabilities {
    let profile = format!("--user-data-dir={}", process.profile().display());
    let mut args = vec![
        "--headless=new",
        // With pipes instead of a port the browser ends when its driver does, however that ends.
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
        // Chromium's sandbox does not work for root, and tests load nothing but pages of their own daemon.
        args.push("--no-sandbox");
    }
    let mut capabilities = ChromeCapabilities::new();
    let filled = args.into_iter().try_for_each(|arg| capabilities.add_arg(arg));
    let filled = filled.and_then(|()| capabilities.set_browser_log_level(LoggingPrefsLogLevel::All));
    match filled {
        Ok(()) => capabilities,
        Err(error) => panic!("no capabilities: {error}"),
    }
}

/// A script that looks at an expression until it is truthy.
fn watching(expression: &str, limit: Duration) -> String {
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

fn is_from_another_page(error: &WebDriverErrorInner) -> bool {
    match error {
        WebDriverErrorInner::JavascriptError(info) | WebDriverErrorInner::UnknownError(info) => {
            let text = info.to_string();
            ["unloaded", "navigat", "detached", "context"].iter().any(|word| text.contains(word))
        }
        WebDriverErrorInner::StaleElementReference(_) => true,
        _ => false,
    }
}
