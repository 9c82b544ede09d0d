//! axe-core, the accessibility checker of the npm registry, inside the page. It comes in through the driver, past the page's
//! content policy, and only looks.

use quell_testkit::browser::Browser;
use serde_json::Value;

use crate::node::{self, Packages};

const AXE: Packages = Packages {
    name: "page-axe",
    files: &[
        ("package.json", include_str!("axe/package.json")),
        ("package-lock.json", include_str!("axe/package-lock.json")),
    ],
};

/// The source of axe-core, installed as its lock file says.
pub(super) async fn source() -> String {
    let folder = node::install(&AXE).await;
    std::fs::read_to_string(folder.join("node_modules/axe-core/axe.min.js")).unwrap()
}

/// Runs over the page as it is.
const RUN: &str = "axe.run(document, { resultTypes: ['violations'], preload: false }).then((found) => {
  const rows = [];
  for (const { id, impact, help, nodes } of found.violations) {
    for (const node of nodes) rows.push({ id, impact, text: `${impact} ${id}: ${help}: ${node.html} ${node.failureSummary}` });
  }
  done({ rows, passes: found.passes.length });
}, (error) => done({ error: String(error.stack) }));";

/// What it finds that is serious or critical, in words. It fails when it has looked at nothing.
pub(super) async fn findings(browser: &Browser, source: &str) -> Vec<String> {
    if browser.value("typeof window.axe").await == "undefined" {
        browser.run(source, &[]).await;
    }
    let found = browser.run_until_done(RUN, &[]).await;
    assert!(found["passes"].as_u64().is_some_and(|passes| passes > 5), "axe has looked at nothing: {found}");
    let severe = |row: &&Value| matches!(row["impact"].as_str(), Some("serious" | "critical"));
    let rows = found["rows"].as_array().unwrap().iter().filter(severe);
    rows.map(|row| row["text"].as_str().unwrap_or_default().to_owned()).collect()
}
