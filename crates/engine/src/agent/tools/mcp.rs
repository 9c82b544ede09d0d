//! The tools of MCP servers, as tools of a run.

use quell_kernel::call_batch::CallConcurrency;
use quell_mcp::{McpCallContext, ServerTool, ToolAnswer};
use quell_protocol::ResourceKind;
use quell_tools::{Tool, ToolContext, ToolDefinition, ToolFuture, ToolOutput};
use serde_json::Value;

pub(super) struct McpTool<'r>(pub(super) ServerTool<'r>);

impl Tool for McpTool<'_> {
    /// The description comes with the list of the server, not from here.
    fn definition(&self) -> ToolDefinition<'_> {
        let concurrency = if self.0.is_read_only() { CallConcurrency::Concurrent } else { CallConcurrency::Exclusive };
        ToolDefinition {
            name: self.0.name(),
            resource_kind: ResourceKind::McpCall,
            is_sandboxed: false,
            concurrency,
            spec_for: |_| None,
        }
    }

    fn call<'c>(&'c self, arguments: &'c Value, context: &'c mut ToolContext<'_>) -> ToolFuture<'c> {
        Box::pin(async move {
            let ToolContext { scope, output_limit, .. } = *context;
            let mut call_context = McpCallContext { scope, output_limit, sink: &mut *context.sink };
            // waits: the MCP client races with the scope and cancels the call within its grace.
            let ToolAnswer { result, images } = self.0.call(arguments, &mut call_context).await?;
            Ok(ToolOutput { end: result.end, code: result.code, text: result.output, images, diff: None })
        })
    }
}
