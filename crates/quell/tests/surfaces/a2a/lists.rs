//! Lists of tasks: pages, filters, and who sees what.

use super::*;

async fn ids_of_page(client: &A2aTestClient, params: &Value) -> (Vec<String>, Value) {
    let page = client.call("ListTasks", params).await.unwrap();
    let ids = page["tasks"].as_array().unwrap().iter().map(|task| id_of(task).to_owned()).collect();
    (ids, page)
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_listed_in_pages_with_the_newest_first(
    #[values(A2aTestBinding::JsonRpc, A2aTestBinding::Rest)] binding: A2aTestBinding,
) {
    let server = TestServer::start().await;
    let client = A2aTestClient::new(&server.http, binding);
    let mut sent = Vec::new();
    for text in ["one", "two", "three"] {
        server.model.script(ScriptedResponse::text(text));
        let task = client.task("SendMessage", &message(text, &json!({"contextId": "c"}))).await;
        sent.insert(0, id_of(&task).to_owned());
    }
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let mut stream = client.open_stream("SendStreamingMessage", &message("four", &json!({"contextId": "d"}))).await;
    let working = id_of(&stream.first_task().await).to_owned();
    stream.read_until("begun").await;
    let (first, page) = ids_of_page(&client, &json!({"contextId": "c", "pageSize": 2})).await;
    assert_eq!((&first[..], &page["pageSize"], &page["totalSize"]), (&sent[..2], &json!(2), &json!(3)));
    assert!(page["tasks"][0].get("artifacts").is_none() && page["tasks"][0].get("history").is_none(), "{page:#}");
    let token = page["nextPageToken"].as_str().unwrap();
    let (second, page) = ids_of_page(&client, &json!({"contextId": "c", "pageSize": 2, "pageToken": token})).await;
    assert_eq!((&second[..], &page["nextPageToken"], &page["totalSize"]), (&sent[2..], &json!(""), &json!(3)));
    let (active, _) = ids_of_page(&client, &json!({"status": "TASK_STATE_WORKING"})).await;
    assert_eq!(active, [working]);
    let full = json!({"contextId": "c", "includeArtifacts": true, "historyLength": 1, "pageSize": 1});
    let (_, page) = ids_of_page(&client, &full).await;
    assert_eq!(page["tasks"][0]["artifacts"][0]["parts"][0]["text"], "three");
    assert_eq!(page["tasks"][0]["history"][0]["parts"][0]["text"], "three");
    let (later, _) = ids_of_page(&client, &json!({"statusTimestampAfter": "2999-01-01T00:00:00Z"})).await;
    assert!(later.is_empty(), "{later:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_long_texts_is_cut_and_continued() {
    let server = TestServer::start().await;
    let client = A2aTestClient::new(&server.http, A2aTestBinding::JsonRpc);
    let long = "x".repeat(600 * 1024);
    for number in 0..27 {
        server.model.script(ScriptedResponse::text("done"));
        let text = if number >= 25 { long.clone() } else { "short".to_owned() };
        client.task("SendMessage", &message(&text, &json!({"contextId": format!("c{number}")}))).await;
    }
    let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let (ids, page) = ids_of_page(&client, &json!({"historyLength": 1, "pageToken": token})).await;
        seen.extend(ids);
        pages += 1;
        token = page["nextPageToken"].as_str().unwrap().to_owned();
        if token.is_empty() {
            break;
        }
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!((seen.len(), pages), (27, 2));
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_other_people_and_other_agents_are_not_found(
    #[values(A2aTestBinding::JsonRpc, A2aTestBinding::Rest)] binding: A2aTestBinding,
) {
    let server = TestServer::start_with(|plan| {
        let main = plan.engine.agents[&parse_agent_id("main")].clone();
        plan.engine.agents.insert(parse_agent_id("other"), main);
    })
    .await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let ann = A2aTestClient::new(&server.api_with_new_token("ann", "write").await, binding);
    let bob = ann.with_api(server.api_with_new_token("bob", "write").await);
    let mut stream = ann.open_stream("SendStreamingMessage", &message("hi", &json!({}))).await;
    let task = stream.first_task().await;
    stream.read_until("begun").await;
    let id = json!({"id": id_of(&task)});
    let word = message("hello", &json!({"taskId": id_of(&task)}));
    for stranger in [&bob, &ann.with_agent("other")] {
        for method in ["GetTask", "CancelTask", "SubscribeToTask"] {
            assert_eq!(stranger.error(method, &id).await, "TASK_NOT_FOUND", "{method}");
        }
        assert_eq!(stranger.error("SendMessage", &word).await, "TASK_NOT_FOUND");
        assert_eq!(ids_of_page(stranger, &json!({})).await.0, Vec::<String>::new());
    }
    // Nor can they write into the context.
    let foreign = bob.error("SendMessage", &message("hi", &json!({"contextId": task["contextId"]}))).await;
    assert_eq!(foreign, "FORBIDDEN");
    assert_eq!(ann.task("GetTask", &id).await["status"]["state"], "TASK_STATE_WORKING");
    assert_eq!(ann.task("CancelTask", &id).await["status"]["state"], "TASK_STATE_CANCELED");
}
