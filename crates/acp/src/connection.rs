//! The connection to the editor: which version of the protocol it speaks.

use std::sync::Arc;

use quell_client::DaemonTarget;
use tokio_util::compat::{TokioAsyncReadCompatExt as _, TokioAsyncWriteCompatExt as _};

use crate::AcpArgs;
use crate::agent::AcpAgent;
use crate::v1::V1Server;
use crate::v2::V2Server;
use crate::wire::{Agent, ByteStreams, ConnectTo as _, JsonRpcResponse, Protocol, Responder, RpcError};

/// Serves the editor on standard input and output until it closes one of them.
///
/// Its `initialize` chooses the version: 2 if it asks for 2 or a newer one, else 1.
pub(crate) async fn serve_stdio(args: AcpArgs, target: DaemonTarget) -> Result<(), RpcError> {
    let agent = Arc::new(AcpAgent::new(args, target));
    let transport = ByteStreams::new(tokio::io::stdout().compat_write(), tokio::io::stdin().compat());
    let versions = Agent.protocol_router().with_v1(V1Server(Arc::clone(&agent))).with_v2(V2Server(agent));
    versions.connect_to(transport).await
}

/// Answers a request outside of the dispatch loop. If the editor cancels the request, the work is dropped.
pub(crate) async fn answer<T: JsonRpcResponse, P: Protocol>(
    responder: Responder<T, P>,
    work: impl Future<Output = Result<T, RpcError>>,
) -> Result<(), RpcError> {
    let cancellation = responder.cancellation();
    let answer = cancellation.run_until_cancelled(work).await;
    // Fails when the editor has gone.
    let _ = responder.respond_with_result(answer);
    Ok(())
}
