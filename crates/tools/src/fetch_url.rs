//! The `fetch_url` tool.

use quell_kernel::call_batch::CallConcurrency;
use quell_protocol::ResourceKind;
use quell_scope::{Cancelled, Point};
use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

use crate::definition::ToolArguments;
use crate::fetch::{FetchLimits, response_text};
use crate::text::quoted;
use crate::tool::{ContextTool, ToolContext, ToolOutput};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FetchUrlArgs {
    /// An http or https URL.
    url: String,
    /// The most bytes to read of the answer's body.
    max_bytes: Option<u64>,
}

impl ToolArguments for FetchUrlArgs {
    const NAME: &'static str = "fetch_url";
    const ABOUT: &'static str = "Reads a web page or file by GET and returns it as text; HTML is turned into readable text. Public addresses only, \
                                 unless configured otherwise.";
    const EXAMPLE: &'static str = r#"{"url": "https://example.com/page", "max_bytes": 100000}"#;
    const RESOURCE_KIND: ResourceKind = ResourceKind::HttpRequest;
    const CONCURRENCY: CallConcurrency = CallConcurrency::Concurrent;
}

impl ContextTool for FetchUrlArgs {
    async fn call(self, cx: &mut ToolContext<'_>) -> Result<ToolOutput, Cancelled> {
        let (scope, limit, fetcher) = (cx.scope, cx.output_limit, &cx.toolbox.fetcher);
        let url = match Url::parse(&self.url) {
            Ok(url) => url,
            Err(error) => return Ok(ToolOutput::error(format!("{} is not a URL: {error}", quoted(&self.url)))),
        };
        let limits = FetchLimits { max_bytes: fetcher.body_limit(self.max_bytes), network: cx.network };
        let response = match fetcher.fetch(url, limits, scope).await {
            Ok(response) => response,
            Err(error) => return Ok(ToolOutput::error(error.into_failure()?)),
        };
        let is_error = response.status.is_client_error() || response.status.is_server_error();
        // On a blocking thread, because the conversion of a large page takes time.
        let text = scope
            .blocking(Point::Blocking, "fetch_url text", move |stop| response_text(&response, limit, stop))
            .await?;
        Ok(if is_error { ToolOutput::error(text) } else { ToolOutput::ok(text) })
    }
}
