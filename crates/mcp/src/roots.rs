//! The workdir as a root (MCP `roots`): servers of today ask for it; the revision after 2025-11-25 leaves it out.

#![expect(deprecated, reason = "servers of the revisions in use ask for their roots")]

use std::path::Path;

use rmcp::model::{ClientResult, ListRootsResult, Root};
use url::Url;

/// The answer to `roots/list`. A path that is not absolute gives none.
pub(super) fn list_roots(workdir: &Path) -> ClientResult {
    let roots = Url::from_directory_path(workdir).into_iter().map(Root::new).collect();
    ClientResult::ListRootsResult(ListRootsResult::new(roots))
}
