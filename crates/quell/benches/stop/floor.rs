//! The floor: a bare client that asks the model server for a stream and drops its own socket.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use quell_testkit::model::ModelRequest;
use quell_testkit::model::ScriptedModel;
use std::time::{Duration, Instant};

/// Opens a stream with a valid request and reads until its first byte of body.
pub(crate) fn open(address: SocketAddr, name: &str) -> TcpStream {
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
        assert!(read > 0, "the model server closed the floor's stream");
        seen.extend_from_slice(&chunk[..read]);
    }
    stream
}

/// One sample: how long after the drop the server noticed.
pub(crate) async fn sample(model: &ScriptedModel, name: &str) -> Duration {
    let stream = open(model.address(), name);
    let request: ModelRequest = model.marked(name).await;
    request.streaming().await;
    let begun = Instant::now();
    drop(stream);
    request.client_left().await.saturating_duration_since(begun)
}
