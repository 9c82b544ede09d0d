//! The connection to the editor: which version of the protocol it speaks.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use futures_util::{Stream, TryStreamExt as _, sink};
use quell_client::DaemonTarget;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio_util::codec::{FramedRead, LinesCodec};

use crate::AcpArgs;
use crate::agent::{AcpAgent, CLOSE_TIME};
use crate::output::write_lines;
use crate::v1::V1Server;
use crate::v2::V2Server;
use crate::wire::{Agent, ConnectTo, JsonRpcResponse, Lines, Protocol, Responder, RpcError};

/// Serves the editor on standard input and output until it closes one of them.
pub(crate) async fn serve_stdio(args: AcpArgs, target: DaemonTarget) -> Result<(), RpcError> {
    let input = FramedRead::new(tokio::io::stdin(), LinesCodec::new()).map_err(io::Error::other);
    let (output, waiting) = mpsc::unbounded_channel();
    let serving = serve(AcpAgent::new(args, target), lines(input, output));
    let mut writing = pin!(write_lines(waiting, tokio::io::stdout()));
    tokio::select! {
        biased;
        // A closed output: nobody sees the rest.
        written = &mut writing => written.map_err(RpcError::into_internal_error),
        served = serving => {
            let written = tokio::time::timeout(CLOSE_TIME, writing).await;
            served.and(written.unwrap_or(Ok(())).map_err(RpcError::into_internal_error))
        }
    }
}

fn lines(
    input: impl Stream<Item = io::Result<String>> + Send + 'static,
    output: UnboundedSender<String>,
) -> impl ConnectTo<Agent> {
    let output = sink::unfold(output, |output: UnboundedSender<String>, line| async move {
        output.send(line).map_err(io::Error::other)?;
        Ok(output)
    });
    Lines::new(output, input)
}

/// Serves an editor. Its `initialize` chooses the version: 2 if it asks for 2 or a newer one, else 1.
async fn serve(agent: AcpAgent, transport: impl ConnectTo<Agent>) -> Result<(), RpcError> {
    let agent = Arc::new(agent);
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

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use serde_json::{Value, json};

    use super::*;

    /// The answer to the `initialize` of an editor that asks for this version and then closes its input.
    async fn initialize(version: u64) -> Value {
        let params = json!({"protocolVersion": version, "info": {"name": "it", "version": "1"}, "capabilities": {}});
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        let (output, mut answers) = mpsc::unbounded_channel();
        let input = stream::iter([Ok(request.to_string())]);
        let args = AcpArgs { agent: None, ignore_mcp_servers: false };
        serve(AcpAgent::new(args, DaemonTarget::default()), lines(input, output)).await.unwrap();
        serde_json::from_str(&answers.recv().await.unwrap()).unwrap()
    }

    #[tokio::test]
    async fn the_editor_chooses_the_version() {
        for (asked, given) in [(0, 1), (1, 1), (2, 2), (3, 2)] {
            let answer = initialize(asked).await;
            assert_eq!(answer["result"]["protocolVersion"], given, "asked for {asked}: {answer:#}");
            let capabilities = if given == 1 { "agentCapabilities" } else { "capabilities" };
            assert!(answer["result"][capabilities].is_object(), "asked for {asked}: {answer:#}");
        }
    }
}
