//! Quell as an MCP server: the official clients and the conformance tests.

mod conformance;
mod official_clients;

use quell_test_support::mcp_server_client::STATELESS;
use quell_test_support::npm_packages::NpmPackages;

use crate::prelude::*;

const CLIENT_PACKAGES: NpmPackages = NpmPackages {
    name: "mcp-clients",
    files: &[
        ("package.json", include_str!("mcp_server/package.json")),
        ("package-lock.json", include_str!("mcp_server/package-lock.json")),
        ("client.mjs", include_str!("mcp_server/client.mjs")),
        ("conformance.mjs", include_str!("mcp_server/conformance.mjs")),
    ],
};

/// Node from the packages: the conformance tests need a newer one than Debian has.
fn node_path(folder: &Path) -> PathBuf {
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    folder.join(format!("node_modules/node-linux-{architecture}/bin/node"))
}
