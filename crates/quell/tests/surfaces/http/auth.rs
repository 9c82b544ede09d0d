//! Authentication: tokens, scopes and origins.

use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn every_route_but_health_and_readiness_needs_a_token() {
    let server = TestServer::start().await;
    let stranger = server.http.with_token("");
    assert_eq!((stranger.get("/healthz").await.status, stranger.get("/readyz").await.status), (200, 200));
    let document = server.http.get("/openapi.json").await.expect_status(200);
    let mut asked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        // `http::web_page` tests the page's files and sign-in, `channels::administration` the route whose callers sign.
        let open = ["/healthz", "/readyz", "/assets/{path}", "/sign-in/{code}", "/api/sign-in", "/api/sign-out"];
        if open.contains(&path.as_str()) || path == "/api/channels/{name}/messages" {
            continue;
        }
        for method in methods.as_object().unwrap().keys() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let path = path.replace(['{', '}'], "");
            for client in [&stranger, &server.http.with_token("wrong")] {
                let answer = client.send(client.request(method.clone(), &path)).await;
                match path.starts_with("/v1/") {
                    // In the form of the API that the client speaks.
                    true => assert!(answer.status == 401 && answer.body["error"]["message"].is_string(), "{answer:#?}"),
                    false => assert_problem(&answer, 401, "unauthorized"),
                }
                asked += 1;
            }
        }
    }
    assert!(asked >= 40, "only {asked} requests: the document has lost routes");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_bad_tokens_are_told_to_wait_and_good_ones_get_in() {
    let server = TestServer::start().await;
    let guesser = server.http.with_token("wrong");
    let mut waits = 0;
    for _ in 0..150 {
        let answer = guesser.request(Method::GET, "/api/runs").send().await.unwrap();
        let wait = answer.headers().get("retry-after").and_then(|wait| wait.to_str().ok()?.parse::<u64>().ok());
        match answer.status().as_u16() {
            401 => assert_eq!((wait, waits), (None, 0)),
            429 => {
                assert!(wait.is_some_and(|seconds| (1..=60).contains(&seconds)), "{wait:?}");
                waits += 1;
            }
            other => panic!("{other}"),
        }
    }
    assert!(waits > 0, "bad tokens are never limited");
    let stopped = server.http.post("/api/stop", &json!({})).await;
    assert_eq!(stopped.status, 200, "bad tokens of others block a stop: {stopped:?}");
    let missing = server.http.with_token("").get("/api/runs").await;
    assert_eq!(missing.status, 401, "a missing token must not count as a bad one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_says_how_to_come_in() {
    let server = TestServer::start().await;
    let stranger = server.http.with_token("");
    let answer = stranger.request(Method::GET, "/api/runs").send().await.unwrap();
    assert_eq!(answer.headers()["www-authenticate"], "Bearer");
    for (credentials, status) in [("Basic YTpi", 401), (&format!("bearer {}", server.token), 200)] {
        let request = stranger.request(Method::GET, "/api/runs").header("authorization", credentials);
        assert_eq!(stranger.send(request).await.status, status, "{credentials}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_looks_and_does_nothing_else() {
    let (server, run) = TestServer::start_streaming().await;
    let reader = server.api_with_new_token("looker", "read").await;
    for path in ["/api/runs", "/api/agents", "/api/sessions", "/api/hold", "/metrics", &format!("/api/runs/{run}")] {
        assert_ne!(reader.get(path).await.status, 403, "{path}");
    }
    for refused in [
        reader.post_run("s", &json!({"text": "x"})).await,
        reader.post("/api/sessions/s/stop", &json!({})).await,
        reader.post("/api/sessions/s/reset", &json!({})).await,
        reader.post(&format!("/api/runs/{run}/stop"), &json!({})).await,
        reader.post("/api/agent/main/abort", &json!({})).await,
        reader.post("/api/stop", &json!({})).await,
        reader.post("/api/tokens", &json!({"name": "n", "scope": "read"})).await,
        reader.put("/api/hold", &json!({})).await,
        reader.delete("/api/hold").await,
        reader.delete("/api/sessions/s").await,
    ] {
        assert_problem(&refused, 403, "forbidden");
    }
    server.assert_running(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_stops_its_own_runs_and_no_others() {
    let (server, run) = TestServer::start_streaming().await;
    let writer = server.api_with_new_token("anna", "write").await;
    let path = format!("/api/runs/{run}/stop");
    let session = writer.post("/api/sessions/s/stop", &json!({})).await.expect_status(200);
    assert_fields(&session, &json!({"aborted": false, "runIds": []}));
    for refused in [
        writer.post(&path, &json!({})).await,
        writer.post("/api/stop", &json!({})).await,
        writer.post("/api/tokens", &json!({"name": "n", "scope": "admin"})).await,
        writer.put("/api/hold", &json!({})).await,
        writer.send(writer.request(Method::POST, "/api/sessions/s/reset")).await,
        writer.delete("/api/sessions/s").await,
    ] {
        assert_problem(&refused, 403, "forbidden");
    }
    server.assert_running(&run).await;
    assert_eq!(server.http.stop_run(&run).await["verdict"]["by"], json!({"principal": "admin", "surface": "http"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_named_once_listed_without_their_secrets_and_revoked_for_good() {
    let server = TestServer::start().await;
    let anna = server.api_with_new_token("anna", "write").await;
    assert_eq!(anna.get("/api/runs").await.status, 200);
    let listed = server.http.get("/api/tokens").await.expect_status(200);
    assert_eq!(listed["items"][0]["name"], "anna");
    assert!(!listed.to_string().contains(&server.token), "the list shows a secret");
    let create =
        async |name: &str, scope| server.http.post("/api/tokens", &json!({"name": name, "scope": scope})).await;
    assert_problem(&create("anna", "admin").await, 409, "conflict");
    for (name, scope) in [("", "read"), ("admin", "read"), ("a b", "read"), ("telegram:anna", "read"), ("x", "root")] {
        assert_problem(&create(name, scope).await, 400, "invalid_request");
    }
    assert_eq!(server.http.delete("/api/tokens/anna").await.status, 204);
    assert_problem(&anna.get("/api/runs").await, 401, "unauthorized");
    assert_problem(&server.http.delete("/api/tokens/anna").await, 404, "not_found");
}

#[rstest]
#[case::own("http://HOST", 200)]
#[case::allowed("https://quell.example.org", 200)]
#[case::foreign("https://evil.example", 403)]
#[case::foreign_port("http://127.0.0.1:1", 403)]
#[case::opaque("null", 403)]
#[case::allowed_as_prefix("https://quell.example.org.evil.example", 403)]
#[tokio::test(flavor = "multi_thread")]
async fn browsers_are_checked_for_their_origin(#[case] origin: &str, #[case] status: u16) {
    let allowed = vec!["https://quell.example.org/".to_owned()];
    let server = TestServer::start_with(|plan| plan.server.allowed_origins = allowed).await;
    let origin = origin.replace("HOST", &server.address.to_string());
    let answer = server.http.send(server.http.request(Method::GET, "/api/runs").header("origin", &origin)).await;
    assert_eq!(answer.status, status);
    if status == 403 {
        assert_problem(&answer, 403, "bad_origin");
    }
}
