//! The APIs of model providers: what a plain model call costs through Quell, how fast its client's leaving closes the
//! provider's socket, and a thousand paced streams at once. LiteLLM's proxy is measured beside it if it is installed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use quell_testkit::daemon::TestDaemon;
use quell_testkit::model::{ScriptedModel, ScriptedResponse, ScriptedStream, StreamStep};

use crate::report::FigureTarget::{AtMost, Free};
use crate::report::{BenchReport, Quantile};
use crate::times::Times;
use crate::{config, quell};

mod litellm;

/// Streams that run at the same time.
const CROWD: usize = 1000;
/// Pieces of each of these streams, and the pause between two.
const PIECES: usize = 40;
const PACE: Duration = Duration::from_millis(50);

/// A server of OpenAI's chat completions.
#[derive(Debug, Clone)]
pub(super) struct ChatServer {
    address: SocketAddr,
    /// `authorization`, if it needs one.
    key: Option<String>,
    model: &'static str,
}

impl ChatServer {
    /// Sends a streamed request, and reads up to the first piece of text.
    fn open(&self, name: &str) -> (TcpStream, Vec<u8>) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        self.send(&mut stream, name);
        let seen = read_until(&mut stream, b"begun");
        (stream, seen)
    }

    fn send(&self, stream: &mut TcpStream, name: &str) {
        let body = format!(
            r#"{{"model":"{}","stream":true,"messages":[{{"role":"user","content":"marker:{name}"}}]}}"#,
            self.model
        );
        let key = self.key.as_ref().map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\n{key}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    }
}

fn read_until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut seen = Vec::new();
    let is_found = try_read_until(stream, end, &mut seen).unwrap();
    assert!(is_found, "the server closed the stream: {}", String::from_utf8_lossy(&seen));
    seen
}

/// Reads until this text has come; false if the stream ended before it.
fn try_read_until(stream: &mut TcpStream, end: &[u8], seen: &mut Vec<u8>) -> std::io::Result<bool> {
    let mut chunk = [0; 16 * 1024];
    loop {
        let read = stream.read(&mut chunk)?;
        // The text may have begun in what was read before.
        let begin = seen.len().saturating_sub(end.len());
        seen.extend_from_slice(&chunk[..read]);
        if seen[begin..].windows(end.len()).any(|bytes| bytes == end) {
            return Ok(true);
        }
        if read == 0 {
            return Ok(false);
        }
    }
}

pub(crate) async fn measure(report: &BenchReport, samples: usize) {
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|text, _| match text.contains("crowd") {
        true => paced_stream(),
        false => ScriptedStream::new().text("begun").step(StreamStep::Silent).into(),
    });
    // All clients connect from one address within a moment, before the daemon has seen their tokens.
    let settings = config(&model.base_url()).replace("[server]\n", "[server]\nmax_unauthenticated_per_peer = 2000\n");
    let daemon = TestDaemon::start(quell(), &settings).await;
    let direct = ChatServer { address: model.address(), key: None, model: "m" };
    let key = Some(daemon.token().to_owned());
    let through = ChatServer { address: daemon.address().parse().unwrap(), key, model: "scripted/model" };
    let litellm = litellm::LiteLlm::start(&model.base_url()).await;
    let mut servers = vec![("direct", direct.clone()), ("Quell", through.clone())];
    servers.extend(litellm.as_ref().map(|proxy| ("LiteLLM", proxy.server())));

    let mut first_bytes: Vec<Times> = servers.iter().map(|_| Times::default()).collect();
    let mut closings: Vec<Times> = servers.iter().map(|_| Times::default()).collect();
    for sample in 0..samples {
        for (place, (name, server)) in servers.iter().enumerate() {
            let marker = format!("api-{name}-{sample}");
            let begun = Instant::now();
            let (stream, _) = server.open(&marker);
            first_bytes[place].add(begun.elapsed());
            let request = model.wait_for_marked_request(&marker).await;
            request.wait_paused().await;
            let begun = Instant::now();
            drop(stream);
            closings[place].add(request.wait_client_left().await.saturating_duration_since(begun));
        }
    }
    let beside = |times: &[Times]| {
        servers.iter().zip(times).map(|((name, _), times)| format!("{name} {times}")).collect::<Vec<_>>().join("; ")
    };
    let added = first_bytes[1].median() - first_bytes[0].median();
    report.add("plain model call: added to the first byte, median", (added, "ms"), AtMost(1.0), beside(&first_bytes));
    let most = AtMost(2.0 * closings[0].median() + 0.5);
    let what = "client of the API leaves -> model socket closed";
    report.add_times(what, (&closings[1], Quantile::Median), most, &beside(&closings));
    if let [_, _, of_litellm] = first_bytes.as_slice() {
        let added = of_litellm.median() - first_bytes[0].median();
        report.add("LiteLLM: added to the first byte, median", (added, "ms"), Free, "");
        report.add_times("LiteLLM: client leaves -> model socket closed", (&closings[2], Quantile::Median), Free, "");
    }
    measure_crowds(report, &servers, daemon.pid(), litellm.as_ref().map(litellm::LiteLlm::pid));
    drop(litellm);
    daemon.stop().await;
}

/// A stream of [`PIECES`] pieces at a pace; the first says `begun`.
fn paced_stream() -> ScriptedResponse {
    let mut stream = ScriptedStream::new().text("begun");
    for piece in 1..PIECES {
        stream = stream.step(StreamStep::Pause(PACE)).text(format!(" piece{piece}."));
    }
    stream.text(" the end").into()
}

/// Runs many paced streams at once through each server, and counts lost streams and the CPU time of the server.
fn measure_crowds(report: &BenchReport, servers: &[(&str, ChatServer)], quell: u32, litellm: Option<u32>) {
    for (name, server) in servers {
        let pid = match *name {
            "Quell" => Some(quell),
            "LiteLLM" => litellm,
            // The model server is in this process, with its clients.
            _ => Some(std::process::id()),
        };
        let before = pid.map(cpu_seconds);
        let begun = Instant::now();
        let complete = run_crowd(server, &format!("crowd-{name}"));
        let (took, used) = (begun.elapsed(), pid.map(cpu_seconds).zip(before).map(|(after, before)| after - before));
        let lost = f64::from(u32::try_from(CROWD - complete).unwrap());
        let most = if *name == "Quell" { AtMost(0.0) } else { Free };
        let note = format!("{PIECES} pieces each, one every {PACE:?}; all took {took:.1?}");
        report.add(format!("{CROWD} streams at once, {name}: lost"), (lost, ""), most, note);
        if let Some(used) = used {
            #[expect(clippy::cast_precision_loss, reason = "a small number")]
            let of_each = used * 1e6 / (CROWD * PIECES) as f64;
            let note = if *name == "direct" {
                "client and model server, without anything between"
            } else {
                "the server alone"
            };
            report.add(format!("{CROWD} streams at once, {name}: CPU for each piece"), (of_each, "us"), Free, note);
        }
    }
}

/// Opens all streams and reads them to their ends; returns how many were complete.
fn run_crowd(server: &ChatServer, name: &str) -> usize {
    let mut streams: Vec<TcpStream> = Vec::with_capacity(CROWD);
    for number in 0..CROWD {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        server.send(&mut stream, &format!("{name}-{number}"));
        streams.push(stream);
    }
    let is_complete = |stream: &mut TcpStream| {
        let mut seen = Vec::new();
        let is_done = try_read_until(stream, b"[DONE]", &mut seen).unwrap_or(false);
        let text = String::from_utf8_lossy(&seen);
        is_done && (1..PIECES).all(|piece| text.contains(&format!(" piece{piece}.")))
    };
    streams.iter_mut().filter_map(|stream| is_complete(stream).then_some(())).count()
}

/// User and system time of a process, from `/proc/PID/stat`.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The fields after the name, which may contain spaces: user time is the 12th of them.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = fields[11..13].iter().map(|field| field.parse::<f64>().unwrap()).sum();
    // USER_HZ is 100 on every Linux that Quell runs on.
    ticks / 100.0
}
