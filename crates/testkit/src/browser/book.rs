//! The book of what a page should not do: errors, violations of the content policy, dialogs, long tasks. It is kept by a
//! script that runs before anything of the page, and by the browser's own console.

use std::fmt;
use std::time::Instant;

use serde_json::Value;

use super::{Browser, PATIENCE};

/// Runs in every new document before its own scripts. `window.__book` is what it has seen.
pub(super) const WATCH: &str = r#"
(() => {
  const book = { violations: [], errors: [], dialogs: [], longTasks: [] };
  Object.defineProperty(window, "__book", { value: book });
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

/// The page in words.
pub(super) const DESCRIBE: &str = r#"
const text = document.body ? document.body.innerText : "";
return [
  `at ${location.href}, view ${document.body?.dataset.view}, classes "${document.body?.className}"`,
  `focus on ${document.activeElement?.outerHTML.slice(0, 200)}`,
  text.slice(0, 4000),
  JSON.stringify(window.__book),
].join("\n");
"#;

/// An entry of the console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it comes from, such as `network`, `javascript`, `security`, `console-api`.
    pub source: String,
    /// How bad it is, such as `SEVERE`.
    pub level: String,
    /// What it says.
    pub text: String,
}

impl fmt::Display for Entry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}: {}", self.level, self.source, self.text)
    }
}

impl Browser {
    /// The entries of the console since the last call.
    ///
    /// # Cancel safety
    /// Entries that a dropped call has read are lost.
    ///
    /// # Panics
    /// When the driver does not answer.
    pub async fn entries(&self) -> Vec<Entry> {
        match self.driver().browser_log().await {
            Ok(entries) => entries
                .into_iter()
                .map(|entry| Entry {
                    source: entry.source.unwrap_or_default(),
                    level: entry.level,
                    text: entry.message,
                })
                .collect(),
            Err(error) => panic!("no console: {error}"),
        }
    }

    /// The entries of the console since the last call, until each of these parts is in one: they come a moment after what
    /// they tell of.
    ///
    /// # Cancel safety
    /// As [`Self::entries`].
    ///
    /// # Panics
    /// When one does not come in time.
    pub async fn entries_until(&self, parts: &[&str]) -> Vec<Entry> {
        let (begun, mut all) = (Instant::now(), Vec::new());
        loop {
            all.extend(self.entries().await);
            if parts.iter().all(|part| all.iter().any(|entry: &Entry| entry.text.contains(part))) {
                return all;
            }
            assert!(begun.elapsed() < PATIENCE, "the console lacks one of {parts:?}: {all:#?}");
        }
    }

    /// Fails the test when the page has done what it should not, as [`Self::faults`] says.
    ///
    /// # Cancel safety
    /// As [`Self::entries`].
    ///
    /// # Panics
    /// With everything that it has done.
    pub async fn assert_quiet(&self, expected: &[&str]) {
        let found = self.faults(expected).await;
        assert!(found.is_empty(), "the page was not quiet:\n{}\n{}", found.join("\n"), self.describe().await);
    }

    /// What the page has done that it should not: an error or a warning on the console, a violation of the content policy, a
    /// dialog, an error that nobody caught. What contains one of `expected` is what the test has caused.
    ///
    /// # Cancel safety
    /// As [`Self::entries`].
    ///
    /// # Panics
    /// When the driver does not answer.
    pub async fn faults(&self, expected: &[&str]) -> Vec<String> {
        let entries = self.entries().await;
        let loud = entries.iter().filter(|entry| matches!(entry.level.as_str(), "SEVERE" | "WARNING"));
        let mut found: Vec<String> = loud.map(ToString::to_string).collect();
        let book = self.value("window.__book").await;
        for kind in ["violations", "errors", "dialogs"] {
            let rows = book[kind].as_array().into_iter().flatten().filter_map(Value::as_str);
            found.extend(rows.map(|row| format!("{kind}: {row}")));
        }
        found.retain(|fault| !expected.iter().any(|part| fault.contains(part)));
        found
    }

    /// Times in milliseconds for which the page's one thread was busy for more than 50 ms, since it was loaded.
    ///
    /// # Cancel safety
    /// Safe: it only looks.
    ///
    /// # Panics
    /// When the driver does not answer.
    pub async fn long_tasks(&self) -> Vec<u64> {
        let tasks = self.value("window.__book.longTasks").await;
        tasks.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
    }
}
