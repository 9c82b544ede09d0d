//! The files of the page. Release builds contain them; debug builds read them from the disk at each request, so that an
//! edit shows at once.

use std::borrow::Cow;

use sha2::{Digest as _, Sha256};

/// Below `web/`.
macro_rules! web_files {
    ($($path:literal,)*) => {
        #[cfg(test)]
        pub(crate) const PATHS: &[&str] = &[$($path),*];

        #[cfg(not(debug_assertions))]
        fn read(path: &str) -> Option<WebFile> {
            match path {
                $($path => {
                    const DATA: &[u8] = include_bytes!(concat!("../../../web/", $path));
                    static HASH: std::sync::LazyLock<[u8; 32]> = std::sync::LazyLock::new(|| Sha256::digest(DATA).into());
                    Some(WebFile { data: Cow::Borrowed(DATA), hash: *HASH })
                })*
                _ => None,
            }
        }
    };
}

web_files! {
    "icon.svg",
    "index.html",
    "js/agent-tree-view.js",
    "js/agent-tree.js",
    "js/agents-view.js",
    "js/api.js",
    "js/approval-notices.js",
    "js/approval-rules.js",
    "js/approvals.js",
    "js/background-processes.js",
    "js/browser-check.js",
    "js/call-status.js",
    "js/call-view.js",
    "js/channels.js",
    "js/chat.js",
    "js/composer.js",
    "js/conversation.js",
    "js/derived-state.js",
    "js/diff-view.js",
    "js/dom.js",
    "js/empty-session.js",
    "js/error-texts.js",
    "js/format.js",
    "js/header.js",
    "js/ids.js",
    "js/inspector.js",
    "js/ledger-labels.js",
    "js/ledger-table.js",
    "js/ledger.js",
    "js/local-storage.js",
    "js/main.js",
    "js/markdown-blocks.js",
    "js/markdown-inline.js",
    "js/markdown.js",
    "js/mcp-picker.js",
    "js/message-drafts.js",
    "js/message-queue.js",
    "js/page-secret.js",
    "js/pending-stops.js",
    "js/plan-view.js",
    "js/question-form.js",
    "js/receipt-loader.js",
    "js/receipt.js",
    "js/run-inspector.js",
    "js/run-phase.js",
    "js/run-polling.js",
    "js/run.js",
    "js/runs-view.js",
    "js/schedules.js",
    "js/server-clock.js",
    "js/session-history.js",
    "js/session-list.js",
    "js/session-sharing.js",
    "js/sign-in.js",
    "js/stick-to-bottom.js",
    "js/stop-all-progress.js",
    "js/stop-all.js",
    "js/stop-buttons.js",
    "js/stop-control.js",
    "js/stop-request.js",
    "js/store.js",
    "js/texts.js",
    "js/theme.js",
    "js/throttle.js",
    "js/timeline-svg.js",
    "js/timeline-view.js",
    "js/timeline.js",
    "js/toasts.js",
    "js/tokens.js",
    "js/turn-view.js",
    "js/undo-button.js",
    "js/websocket.js",
    "style/base.css",
    "style/chat.css",
    "style/controls.css",
    "style/inspector.css",
    "style/tokens.css",
    "style/views.css",
    "texts.json",
}

/// Reads a file from the disk, unless only the tests of the page use it.
#[cfg(debug_assertions)]
fn read(path: &str) -> Option<WebFile> {
    use std::path::{Component, Path};

    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web");
    let is_below = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let is_served = is_below && !path.starts_with("test/") && path != "package.json";
    let data = is_served.then(|| std::fs::read(Path::new(FOLDER).join(path)).ok()).flatten()?;
    Some(WebFile { hash: Sha256::digest(&data).into(), data: Cow::Owned(data) })
}

pub(crate) struct WebFile {
    pub(crate) data: Cow<'static, [u8]>,
    /// SHA-256 of the file.
    pub(crate) hash: [u8; 32],
}

impl WebFile {
    pub(crate) fn read(path: &str) -> Option<Self> {
        read(path)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn list_files(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { list_files(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn the_list_names_every_file_of_the_page() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../web"));
        let files = list_files(folder);
        let mut paths: Vec<&str> =
            files.iter().map(|path| path.strip_prefix(folder).unwrap().to_str().unwrap()).collect();
        paths.retain(|path| !path.starts_with("test/") && *path != "package.json");
        paths.sort_unstable();
        assert_eq!(PATHS, paths);
        assert!(PATHS.iter().all(|path| WebFile::read(path).is_some_and(|file| !file.data.is_empty())));
    }

    #[test]
    fn other_files_are_not_read() {
        for path in [
            "",
            "js",
            "js/",
            "package.json",
            "test/run.test.js",
            "../Cargo.toml",
            "js/../../Cargo.toml",
            "/etc/hostname",
        ] {
            assert!(WebFile::read(path).is_none(), "{path}");
        }
    }
}
