//! Run axe-core, the accessibility checker, inside the page. WebDriver injects it past the page's content policy, and
//! it changes nothing.

use quell_testkit::browser::Browser;
use serde_json::Value;

use crate::npm_packages::{self, NpmPackages};

const AXE_PACKAGES: NpmPackages = NpmPackages {
    name: "page-axe",
    files: &[
        ("package.json", include_str!("axe/package.json")),
        ("package-lock.json", include_str!("axe/package-lock.json")),
    ],
};

/// The source of axe-core, installed as its lock file says.
pub(super) async fn axe_source() -> String {
    let folder = npm_packages::install_packages(&AXE_PACKAGES).await;
    std::fs::read_to_string(folder.join("node_modules/axe-core/axe.min.js")).unwrap()
}

/// Checks the page in its current state.
const RUN_SCRIPT: &str = "axe.run(document, { resultTypes: ['violations'], preload: false }).then((found) => {
  const rows = [];
  for (const { id, impact, help, nodes } of found.violations) {
    for (const node of nodes) rows.push({ id, impact, text: `${impact} ${id}: ${help}: ${node.html} ${node.failureSummary}` });
  }
  done({ rows, passes: found.passes.length });
}, (error) => done({ error: String(error.stack) }));";

/// The serious and critical findings as text. Fails when axe has checked almost nothing.
pub(super) async fn accessibility_findings(browser: &Browser, source: &str) -> Vec<String> {
    if browser.eval("typeof window.axe").await == "undefined" {
        browser.run_script(source, &[]).await;
    }
    let found = browser.run_async_script(RUN_SCRIPT, &[]).await;
    assert!(found["passes"].as_u64().is_some_and(|passes| passes > 5), "axe has looked at nothing: {found}");
    let severe = |row: &&Value| matches!(row["impact"].as_str(), Some("serious" | "critical"));
    let rows = found["rows"].as_array().unwrap().iter().filter(severe);
    rows.map(|row| row["text"].as_str().unwrap_or_default().to_owned()).collect()
}
