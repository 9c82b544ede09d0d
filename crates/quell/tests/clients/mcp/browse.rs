//! Prompts and resources of the official server, for people.

use quell_test_support::npm_packages;

use super::official_server::{SERVER_PACKAGES, server_program};
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_official_server_offers_people_its_prompts_and_resources() {
    if npm_packages::is_skipped() {
        return;
    }
    let _lock = ProcessLock::shared().await;
    let program = server_program(&npm_packages::install_packages(&SERVER_PACKAGES).await);
    let section = format!(
        "[mcp.all]\ncommand = \"node\"\nargs = [{program:?}, \"stdio\"]\nsandbox = \"off\"\nstart_timeout_s = 60\n"
    );
    let (_model, daemon) = start_daemon(&format!("{section}[mcp.broken]\ncommand = \"/no/such/program\"\n")).await;
    let api = daemon.api();
    let prompts = api.get("/api/mcp/prompts?agent=main").await.expect_status(200);
    let listed = |id: &str| {
        let items = prompts["items"].as_array().unwrap();
        items.iter().find(|item| item["id"] == id).unwrap_or_else(|| panic!("no {id}: {prompts:#}")).clone()
    };
    assert_eq!(listed("simple-prompt")["server"], "all");
    let arguments = json!([{"name": "city", "required": true}, {"name": "state", "required": false}]);
    assert_eq!(listed("args-prompt")["arguments"], arguments);
    assert_eq!(prompts["unavailable"][0]["server"], "broken", "{prompts:#}");
    let body = json!({"name": "args-prompt", "arguments": {"city": "Berlin"}});
    let filled = api.post("/api/mcp/all/prompt", &body).await.expect_status(200);
    assert_eq!(filled, json!({"text": "What's weather in Berlin?"}));
    let refused = api.post("/api/mcp/all/prompt", &json!({"name": "args-prompt"})).await;
    assert_problem(&refused, 400, "invalid_request");
    let resources = api.get("/api/mcp/resources").await.expect_status(200);
    let uri = "demo://resource/static/document/features.md";
    assert!(resources["items"].as_array().unwrap().iter().any(|item| item["id"] == uri), "{resources:#}");
    let read = api.post("/api/mcp/all/resource", &json!({"uri": uri})).await.expect_status(200);
    assert!(read["text"].as_str().unwrap().starts_with(&format!("[the resource {uri}:]\n# ")), "{read:#}");
    let broken = api.post("/api/mcp/broken/prompt", &json!({"name": "x"})).await;
    assert_problem(&broken, 502, "mcp_unavailable");
    assert_problem(&api.post("/api/mcp/none/prompt", &json!({"name": "x"})).await, 404, "not_found");
    assert_problem(&api.get("/api/mcp/prompts?agent=nobody").await, 404, "agent_not_found");
}
