//! The server's thread.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::connection::serve_connection;
use super::shared_state::ModelServerState;
use crate::fake_server::FakePort;
use crate::or_fail::OrFail as _;

/// Main function of the server's thread; returns when the sender of `stopped` is dropped.
pub(super) fn run_server(
    stage: Arc<ModelServerState>,
    stopped: oneshot::Receiver<()>,
    ready: oneshot::Sender<(FakePort, Handle)>,
) {
    let runtime = Builder::new_current_thread().enable_all().build().or_fail("no runtime for the scripted model");
    runtime.block_on(async move {
        let port = FakePort::start(move |stream| serve_connection(stream, Arc::clone(&stage)));
        if ready.send((port, Handle::current())).is_ok() {
            let _ = stopped.await;
        }
    });
}

/// Raises the soft limit of open files to the hard one: a thousand streams need two thousand descriptors in one
/// process.
pub(super) fn raise_open_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Some sandboxes refuse this; then only tests with very many streams fail.
    let _ = setrlimit(Resource::Nofile, limit);
}
