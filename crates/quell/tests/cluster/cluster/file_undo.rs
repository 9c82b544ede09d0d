//! Undo where several nodes work: the files are on the machine of the node that has written them.

use super::*;

/// A file in the workdir of the agent on a node.
fn file_of(cluster: &TestCluster, home: usize) -> PathBuf {
    cluster.homes[home].work_dir().join("main/a.txt")
}

/// A run on a node that writes a file.
async fn run_that_writes(cluster: &TestCluster, node: usize, session: &str) -> String {
    let write = json!({"path": "a.txt", "content": "written"});
    cluster.model.script(ScriptedResponse::tool_call("c1", "write_file", &write));
    cluster.model.script(ScriptedResponse::text("Done."));
    let run = cluster.api(node).send_message(session, "write").await;
    assert_eq!(cluster.api(node).run_events(&run, 0).await.read_to_end().await.verdict(), "completed");
    run
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_is_done_where_the_files_are_or_names_the_node() {
    let Some(mut cluster) = TestCluster::start(2, Bus::Nats).await else { return };
    let run = run_that_writes(&cluster, 0, "s").await;
    let file = file_of(&cluster, 0);
    assert!(file.exists() && !file_of(&cluster, 1).exists());
    // The node of the files is gone, and another one goes on with the session.
    assert!(cluster.nodes.remove(0).stop().await.success());
    cluster.complete_run(0, "s").await;
    assert_eq!(cluster.owner("s"), "node-1");
    let path = format!("/api/runs/{run}/undo");
    let refused = cluster.api(0).post(&path, &json!({})).await;
    assert_problem(&refused, 503, "node_unreachable");
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.contains("node-0") && detail.contains("start it again"), "{detail}");
    assert!(file.exists());
    // It comes back, and the undo is done there, although the session stays on the other node.
    cluster.nodes.push(cluster.homes[0].start(quell_exe()).await);
    cluster.wait_for_bus().await;
    assert_eq!(cluster.owner("s"), "node-1");
    let undone = cluster.api(0).post(&path, &json!({})).await.expect_status(200);
    assert_eq!(undone["files"], json!([{"path": "a.txt", "change": "removed"}]), "{undone:#}");
    assert!(!file.exists());
    assert_problem(&cluster.api(1).post(&path, &json!({})).await, 409, "conflict");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_takes_an_undo() {
    let Some(cluster) = TestCluster::start(2, Bus::Database).await else { return };
    let run = run_that_writes(&cluster, 0, "s").await;
    let undone = cluster.api(1).post(&format!("/api/runs/{run}/undo"), &json!({})).await.expect_status(200);
    assert_eq!(undone["files"][0]["path"], "a.txt", "{undone:#}");
    assert!(!file_of(&cluster, 0).exists());
}
