//! The tools of MCP servers, as tools of a run.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quell_kernel::call_batch::CallConcurrency;
use quell_kernel::turn::ToolCall;
use quell_mcp::{McpCallContext, QuestionAnswer, QuestionAsker, ServerTool, ToolAnswer};
use quell_protocol::ResourceKind;
use quell_protocol::question::ServerQuestion;
use quell_scope::Cancelled;
use quell_tools::{Tool, ToolContext, ToolDefinition, ToolFuture, ToolOutput};
use serde_json::Value;

use crate::agent::AgentLoop;
use crate::agent::approval::request_question_answer;

/// A tool of a server, for one call.
pub(super) struct McpTool<'r> {
    pub(super) tool: ServerTool<'r>,
    pub(super) run: &'r AgentLoop<'r>,
    pub(super) call: &'r ToolCall,
}

impl Tool for McpTool<'_> {
    /// The description comes with the list of the server, not from here.
    fn definition(&self) -> ToolDefinition<'_> {
        let is_read_only = self.tool.is_read_only();
        ToolDefinition {
            name: self.tool.name(),
            resource_kind: ResourceKind::McpCall,
            is_sandboxed: false,
            concurrency: if is_read_only { CallConcurrency::Concurrent } else { CallConcurrency::Exclusive },
            spec_for: |_| None,
            check_arguments: |_| Ok(()),
        }
    }

    fn call<'c>(&'c self, arguments: &'c Value, context: &'c mut ToolContext<'_>) -> ToolFuture<'c> {
        Box::pin(async move {
            let ToolContext { scope, output_limit, .. } = *context;
            let mut call_context = McpCallContext { scope, output_limit, sink: &mut *context.sink, asker: self };
            // waits: the MCP client races with the scope and cancels the call within its grace.
            let ToolAnswer { result, images } = self.tool.call(arguments, &mut call_context).await?;
            Ok(ToolOutput { end: result.end, code: result.code, text: result.output, images, diff: None })
        })
    }
}

impl QuestionAsker for McpTool<'_> {
    fn ask(&self, question: ServerQuestion) -> BoxFuture<'_, Result<QuestionAnswer, Cancelled>> {
        request_question_answer(self.run, self.call, question).boxed()
    }
}
