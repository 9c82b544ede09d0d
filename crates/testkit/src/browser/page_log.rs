//! Record errors of the page: exceptions, violations of the content policy, dialogs, long tasks. A script that runs
//! before the page and the browser's console supply them.

use std::fmt;
use std::time::Instant;

use serde_json::{Value, json};

use super::{Browser, WAIT_TIMEOUT};
use crate::or_fail::OrFail as _;

/// Runs in every new document before its own scripts. `window.__pageLog` holds the record.
pub(super) const PAGE_LOG_SCRIPT: &str = r#"
(() => {
  const book = { violations: [], errors: [], dialogs: [], longTasks: [] };
  Object.defineProperty(window, "__pageLog", { value: book });
  const where = (event) => `${event.sourceFile || event.filename || ""}:${event.lineNumber || event.lineno || 0}`;
  addEventListener("securitypolicyviolation", (event) => {
    book.violations.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sample} ${where(event)}`);
  }, true);
  addEventListener("error", (event) => {
    book.errors.push(event.message ? `${event.message} ${where(event)}` : `${event.target?.outerHTML} did not load`);
  }, true);
  addEventListener("unhandledrejection", (event) => book.errors.push(`unhandled: ${event.reason?.stack ?? event.reason}`));
  for (const name of ["alert", "confirm", "prompt", "print", "open"]) {
    window[name] = (...words) => { book.dialogs.push(`${name} ${words.join(" ")}`); return null; };
  }
  const observer = new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) book.longTasks.push(Math.round(entry.duration));
  });
  observer.observe({ type: "longtask", buffered: true });
})();
"#;

pub(super) const DESCRIBE_SCRIPT: &str = r#"
const text = document.body ? document.body.innerText : "";
return [
  `at ${location.href}, view ${document.body?.dataset.view}, classes "${document.body?.className}"`,
  `focus on ${document.activeElement?.outerHTML.slice(0, 200)}`,
  text.slice(0, 4000),
  JSON.stringify(window.__pageLog),
].join("\n");
"#;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsoleEntry {
    /// Such as `network`, `javascript`, `security`, `console-api`.
    pub source: String,
    /// Such as `SEVERE`.
    pub level: String,
    pub text: String,
}

impl fmt::Display for ConsoleEntry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}: {}", self.level, self.source, self.text)
    }
}

impl Browser {
    /// Console entries since the last call.
    ///
    /// # Cancel safety
    /// Not safe: entries read so far are lost.
    pub async fn take_console_entries(&self) -> Vec<ConsoleEntry> {
        let entries = self.driver.post("se/log", json!({"type": "browser"})).await.or_fail("no console");
        let entries = entries.as_array().into_iter().flatten().map(|entry| {
            let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
            ConsoleEntry { source: text("source"), level: text("level"), text: text("message") }
        });
        entries.collect()
    }

    /// Collects console entries until each of these parts is in one: entries arrive a moment after their cause.
    pub async fn wait_console_entries(&self, parts: &[&str]) -> Vec<ConsoleEntry> {
        let (begun, mut all) = (Instant::now(), Vec::new());
        loop {
            all.extend(self.take_console_entries().await);
            if parts.iter().all(|part| all.iter().any(|entry: &ConsoleEntry| entry.text.contains(part))) {
                return all;
            }
            assert!(begun.elapsed() < WAIT_TIMEOUT, "the console lacks one of {parts:?}: {all:#?}");
        }
    }

    /// Fails the test if [`Self::page_errors`] finds anything.
    pub async fn assert_no_page_errors(&self, expected: &[&str]) {
        let found = self.page_errors(expected).await;
        assert!(found.is_empty(), "the page was not quiet:\n{}\n{}", found.join("\n"), self.describe_page().await);
    }

    /// Errors of the page: errors and warnings on the console, violations of the content policy, dialogs, uncaught
    /// errors. Ignores those that contain one of `expected`, which the test has caused.
    pub async fn page_errors(&self, expected: &[&str]) -> Vec<String> {
        let entries = self.take_console_entries().await;
        let loud = entries.iter().filter(|entry| matches!(entry.level.as_str(), "SEVERE" | "WARNING"));
        let mut found: Vec<String> = loud.map(ToString::to_string).collect();
        let book = self.eval("window.__pageLog").await;
        for kind in ["violations", "errors", "dialogs"] {
            let rows = book[kind].as_array().into_iter().flatten().filter_map(Value::as_str);
            found.extend(rows.map(|row| format!("{kind}: {row}")));
        }
        found.retain(|fault| !expected.iter().any(|part| fault.contains(part)));
        found
    }

    /// Durations in milliseconds of all tasks over 50 ms since the page was loaded.
    pub async fn long_tasks(&self) -> Vec<u64> {
        let tasks = self.eval("window.__pageLog.longTasks").await;
        tasks.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
    }
}
