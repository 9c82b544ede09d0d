//! Rules for all routes: JSON objects as bodies, known host names, an accurate OpenAPI document.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::prelude::*;

/// Every route with a body, by method and path, as the OpenAPI document lists them.
async fn routes_with_a_body(server: &TestServer) -> Vec<(Method, String)> {
    let document = server.http.get("/openapi.json").await.expect_status(200);
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let json = |row: &Value| row["requestBody"]["content"].get("application/json").is_some();
        let with_body = methods.as_object().unwrap().iter().filter(|(_, row)| json(row));
        // Callers of this route sign; see `channels::administration`.
        let with_body = with_body.filter(|_| path != "/api/channels/{name}/messages");
        routes.extend(with_body.map(|(name, _)| {
            let path = path.replace("{id}", "main").replace("{key}", "s").replace("{name}", "x");
            (name.to_uppercase().parse().unwrap(), path)
        }));
    }
    routes
}

#[tokio::test(flavor = "multi_thread")]
async fn an_array_is_no_body_on_any_route() {
    let (server, run) = TestServer::start_streaming().await;
    let routes = routes_with_a_body(&server).await;
    assert!(routes.len() >= 14, "the document has lost routes: {routes:?}");
    for (method, path) in routes {
        for body in ["[]", "[true]", "[true, true, \"x\"]", "[\"x\"]", "[null, true]"] {
            let answer = send_text(&server.http, method.clone(), &path, body).await;
            assert_eq!(answer.status, 400, "{method} {path} {body}");
            let detail = match path.starts_with("/v1/") {
                // In the form of the API that the client speaks.
                true => &answer.body["error"]["message"],
                false => {
                    assert_eq!(answer.problem_code(), Some("invalid_request"), "{method} {path} {body}");
                    &answer.body["detail"]
                }
            };
            assert!(detail.as_str().unwrap().contains("JSON object"), "{}", answer.body);
        }
    }
    assert_eq!(server.http.get("/api/hold").await.expect_status(200)["held"], false);
    server.assert_running(&run).await;
}

/// Sends a request with this `Host`, and returns the whole answer.
async fn request_with_host(server: &TestServer, host: &str, head: &str) -> String {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let host = if host.is_empty() { String::new() } else { format!("host: {host}\r\n") };
    let token = &server.token;
    let request = format!("{head} HTTP/1.1\r\n{host}authorization: Bearer {token}\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Unit tests of the server show which names are its own.
#[rstest]
#[case::foreign("evil.example:7171")]
#[case::empty_name(":7171")]
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_host_is_misdirected_on_every_door(#[case] host: &str) {
    let (server, run) = TestServer::start_streaming().await;
    for head in [
        "GET /".to_owned(),
        "GET /api/runs".to_owned(),
        "GET /assets/index.html".to_owned(),
        "GET /sign-in/x".to_owned(),
        "POST /api/stop".to_owned(),
        format!("POST /api/runs/{run}/stop"),
        "GET /nowhere".to_owned(),
        "GET /ws".to_owned(),
    ] {
        let answer = request_with_host(&server, host, &head).await;
        assert!(answer.starts_with("HTTP/1.1 421"), "{head}: {answer}");
        assert!(answer.contains("\"code\":\"bad_host\"") && answer.contains("allowed_hosts"), "{head}: {answer}");
    }
    let upgrade = "GET /ws HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nx-rest:";
    let answer = request_with_host(&server, host, upgrade).await;
    assert!(answer.starts_with("HTTP/1.1 421"), "{answer}");
    // Health probes may use any host name, and learn nothing.
    for head in ["GET /healthz", "GET /readyz"] {
        assert!(request_with_host(&server, host, head).await.starts_with("HTTP/1.1 200"), "{head}");
    }
    server.assert_running(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemons_own_names_are_known() {
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    let server = TestServer::start_with(|plan| {
        plan.server.allowed_hosts = vec!["Quell.Example.org".to_owned()];
        plan.server.allowed_origins = vec!["https://front.example.net:8443/".to_owned()];
    })
    .await;
    // Without a `Host` it is no browser.
    for host in
        ["LOCALHOST:1", "[::1]:7171", "192.168.1.5:7171", "QUELL.example.org:443", "front.example.net", &own, ""]
    {
        let answer = request_with_host(&server, host, "GET /api/runs").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_or_absolute_host_does_not_slip_by() {
    let server = TestServer::start().await;
    let twice = request_with_host(&server, "localhost\r\nhost: evil.example", "GET /api/runs").await;
    assert!(twice.starts_with("HTTP/1.1 4"), "{twice}");
    let absolute = request_with_host(&server, "localhost", "GET http://evil.example/api/runs").await;
    assert!(absolute.starts_with("HTTP/1.1 421"), "{absolute}");
}

/// Other tests receive these answers: of `contract` and `auth`, and of the accept loop in the crate of the server.
#[tokio::test(flavor = "multi_thread")]
async fn answers_of_the_accept_loop_are_in_the_document() {
    let server = TestServer::start().await;
    let paths = server.http.get("/openapi.json").await.expect_status(200)["paths"].clone();
    let send = &paths["/api/sessions/{key}/runs"]["post"]["responses"];
    for status in ["400", "401", "403", "408", "413", "415", "421", "429", "431", "503"] {
        assert!(send.get(status).is_some(), "{status} is not in the document: {send:#}");
    }
    let list = &paths["/api/runs"]["get"]["responses"];
    assert!(list.get("431").is_some() && list.get("408").is_none(), "{list:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn signing_in_is_described_as_it_is() {
    let server = TestServer::start().await;
    let document = server.http.get("/openapi.json").await.expect_status(200);
    for (method, path) in [("post", "/api/sign-in"), ("post", "/api/sign-out"), ("get", "/sign-in/{code}")] {
        let row = &document["paths"][path][method];
        assert!(row.is_object() && row.get("security").is_none(), "{method} {path} asks for no token: {row:#}");
    }
    assert_eq!(document["paths"]["/api/sign-in"]["post"]["requestBody"]["required"], true);
    let out = &document["paths"]["/api/sign-out"]["post"]["responses"]["204"];
    assert!(out["content"].is_null(), "204 has no body: {out:#}");
    let cookie = document["components"]["securitySchemes"].as_object().unwrap();
    assert!(cookie.values().any(|scheme| scheme["in"] == "cookie"), "{cookie:#?}");
}
