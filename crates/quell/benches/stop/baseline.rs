//! The baseline: a bare HTTP client that drops its socket.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use quell_testkit::model::ModelRequestHandle;
use quell_testkit::model::ScriptedModel;
use std::time::{Duration, Instant};

/// Opens a stream with a valid request, and reads up to the first bytes of its body.
pub(crate) fn open_stream(address: SocketAddr, name: &str) -> TcpStream {
    let body = format!(r#"{{"model":"m","stream":true,"messages":[{{"role":"user","content":"marker:{name}"}}]}}"#);
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: floor\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut seen = Vec::new();
    let mut chunk = [0; 1024];
    while !seen.windows(5).any(|bytes| bytes == b"data:") {
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "the model server closed the baseline's stream");
        seen.extend_from_slice(&chunk[..read]);
    }
    stream
}

/// One sample: the time from the drop until the server noticed it.
pub(crate) async fn time_disconnect(model: &ScriptedModel, name: &str) -> Duration {
    let stream = open_stream(model.address(), name);
    let request: ModelRequestHandle = model.wait_for_marked_request(name).await;
    request.wait_streaming().await;
    let begun = Instant::now();
    drop(stream);
    request.wait_client_left().await.saturating_duration_since(begun)
}
