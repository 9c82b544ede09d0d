//! Conversations and their items: read, added, deleted, and referred to.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_items_of_a_conversation_are_changed_one_by_one() {
    let server = TestServer::start().await;
    let begin = json!({"items": [{"role": "user", "content": "I am Ann."}]});
    let conversation = server.http.post("/v1/conversations", &begin).await.expect_status(200);
    let path = format!("/v1/conversations/{}", conversation["id"].as_str().unwrap());
    let updated = server.http.post(&path, &json!({"metadata": {"a": "b"}})).await.expect_status(200);
    assert_eq!(updated["metadata"], json!({"a": "b"}));
    assert_eq!(server.http.get(&path).await.expect_status(200), updated);
    let more = json!({"items": [{"role": "user", "content": "I am here."}, {"role": "user", "content": "Forget it."}]});
    let added = server.http.post(&format!("{path}/items"), &more).await.expect_status(200);
    assert_eq!((&added["object"], &added["has_more"]), (&json!("list"), &json!(false)));
    let item = |at: usize| format!("{path}/items/{}", added["data"][at]["id"].as_str().unwrap());
    assert_eq!(server.http.get(&item(0)).await.expect_status(200), added["data"][0]);
    assert_eq!(server.http.delete(&item(1)).await.expect_status(200), updated);
    for (method, gone) in [("GET", item(1)), ("DELETE", item(1)), ("GET", format!("{path}/items/x"))] {
        let request = server.http.request(method.parse().unwrap(), &gone);
        assert_eq!(server.http.send(request).await.status, 404, "{method} {gone}");
    }
    server.http.post(&format!("{path}/items"), &json!({"items": "text"})).await.expect_status(400);
    server.http.post(&path, &json!({"items": []})).await.expect_status(400);
    let other = server.api_with_new_token("other", "write").await;
    other.get(&item(0)).await.expect_status(404);
    other.delete(&item(0)).await.expect_status(404);
    other.post(&format!("{path}/items"), &more).await.expect_status(404);
    other.post(&path, &json!({"metadata": {}})).await.expect_status(404);
    server.model.script(ScriptedResponse::text("Hello."));
    create(&server, &with(question(), &json!({"conversation": conversation["id"]}))).await;
    let seen = messages_as_text(server.model.recorded_requests()[0].messages());
    assert!(seen.contains("I am Ann.") && seen.contains("I am here.") && !seen.contains("Forget it."), "{seen}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reference_finds_the_items_that_a_client_gave_a_conversation() {
    let server = TestServer::start().await;
    let begin = json!({"items": [{"role": "user", "content": "I am Ann."}]});
    let conversation = server.http.post("/v1/conversations", &begin).await.expect_status(200);
    let items = format!("/v1/conversations/{}/items", conversation["id"].as_str().unwrap());
    let first = server.http.get(&items).await.expect_status(200)["data"][0]["id"].clone();
    let added = json!({"items": [{"role": "user", "content": "I am here."}]});
    let added = server.http.post(&items, &added).await.expect_status(200)["data"][0]["id"].clone();
    let references = [first, added].map(|id| json!({"type": "item_reference", "id": id}));
    server.model.script(ScriptedResponse::text("Hello."));
    create(&server, &json!({"model": MODEL, "input": references})).await;
    let seen = messages_as_text(server.model.recorded_requests()[0].messages());
    assert!(seen.contains("I am Ann.") && seen.contains("I am here."), "{seen}");
    let other = server.api_with_new_token("other", "write").await;
    other.post("/v1/responses", &json!({"model": MODEL, "input": references})).await.expect_status(400);
}
