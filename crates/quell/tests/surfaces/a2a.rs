//! Quell as an A2A server: the operations in both bindings.

mod bad_input;
mod cards;
mod lists;
mod push;
mod stops;
mod tasks;

use quell_test_support::a2a_client::{A2aTestBinding, A2aTestClient, add_answer, message, result_of, states_of};

use crate::prelude::*;

fn answer_of(parts: &[Value]) -> String {
    let mut answer = String::new();
    parts.iter().for_each(|part| add_answer(&mut answer, part));
    answer
}

fn last_status(parts: &[Value]) -> &Value {
    let mut updates = parts.iter().filter_map(|part| part.get("statusUpdate"));
    updates.next_back().unwrap_or_else(|| panic!("no status: {parts:#?}"))
}

fn id_of(task: &Value) -> &str {
    task["id"].as_str().unwrap_or_else(|| panic!("no task: {task:#}"))
}

/// A server whose agent `main` asks before it lists files.
async fn start_asking() -> TestServer {
    TestServer::start_with(|plan| {
        let main = plan.engine.agents.get_mut(&parse_agent_id("main")).unwrap();
        main.approvals.insert("list_files".to_owned(), quell_kernel::approval::ApprovalPolicy::Ask);
    })
    .await
}

/// A run of `main` whose sub-agent asks before it lists files, and both end after the answer.
fn script_asking_sub_agent(server: &TestServer) {
    let delegation = json!({"agent": "team/writer", "prompt": "look"});
    server.model.script(ScriptedResponse::tool_call("c0", "spawn_agent", &delegation)).script(list_files_call());
    server.model.script(ScriptedResponse::text("not listed")).script(ScriptedResponse::text("done"));
}
