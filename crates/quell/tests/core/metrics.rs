//! `/metrics` of the real binary, checked against the Prometheus text format.

use std::collections::{BTreeMap, BTreeSet};

use crate::prelude::*;

#[derive(Debug, Default)]
struct Exposition {
    types: BTreeMap<String, String>,
    /// The value by name and labels, as printed.
    samples: BTreeMap<String, f64>,
}

impl Exposition {
    /// Parses the text and checks the format: HELP and TYPE once and before the samples of a family, its samples in one
    /// group, no series twice, only numbers, and a line break at the end.
    fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'), "{text}");
        let (mut read, mut helped) = (Self::default(), BTreeSet::new());
        let mut family = String::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
                assert!(helped.insert(name.to_owned()), "{name} has HELP twice");
                assert!(!help.trim().is_empty(), "{line}");
                name.clone_into(&mut family);
            } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                assert!(helped.contains(name), "{name} has no HELP");
                assert_eq!(family, name, "HELP and TYPE of a family must be adjacent");
                assert!(["counter", "gauge", "histogram", "summary"].contains(&kind), "{line}");
                assert!(read.types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} has TYPE twice");
            } else {
                read.add_sample(&family, line);
            }
        }
        read
    }

    fn add_sample(&mut self, family: &str, line: &str) {
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
        let name = series.split('{').next().unwrap();
        let kind = self.types.get(family).unwrap_or_else(|| panic!("{line} has no TYPE before it"));
        let suffixes: &[&str] = match kind.as_str() {
            "histogram" => &["_bucket", "_sum", "_count"],
            "summary" => &["", "_sum", "_count"],
            _ => &[""],
        };
        let belongs = suffixes.iter().any(|suffix| name.strip_suffix(suffix) == Some(family));
        assert!(belongs, "{line} is in the group of {family}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
        assert!(kind != "counter" || name.ends_with("_total"), "{line}");
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        assert!(self.samples.insert(series.to_owned(), value).is_none(), "{series} occurs twice");
    }

    fn value(&self, series: &str) -> f64 {
        *self.samples.get(series).unwrap_or_else(|| panic!("no {series} in {self:#?}"))
    }
}

async fn read_metrics(daemon: &TestDaemon) -> Exposition {
    let answer = daemon.api().get("/metrics").await;
    assert!(answer.content_type.starts_with("text/plain"), "{}", answer.content_type);
    Exposition::parse(answer.expect_status(200).as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_verdicts_tokens_cost_and_stops() {
    let _process_lock = ProcessLock::shared().await;
    let (model, daemon) = start_daemon("price = { input = 1.0, output = 2.0 }\n").await;
    let before = read_metrics(&daemon).await;
    for verdict in ["completed", "failed", "aborted"] {
        assert_eq!(before.value(&format!("quell_runs_ended_total{{verdict=\"{verdict}\"}}")), 0.0);
    }
    assert_eq!(before.value("quell_streams"), 0.0);
    model.script(ScriptedResponse::text("hello to you"));
    let done = daemon.api().send_message("s", "hello").await;
    let done = daemon.api().wait_ended(&done).await;
    model.script(ScriptedResponse::silent_mid_stream("half an"));
    let stopped = daemon.api().send_message("s", "hello").await;
    daemon.api().run_events(&stopped, 0).await.wait_for("text.delta").await;
    let during = read_metrics(&daemon).await;
    for (series, value) in [
        ("quell_runs{state=\"running\"}", 1.0),
        ("quell_runs{state=\"queued\"}", 0.0),
        ("quell_model_requests", 1.0),
        ("quell_processes", 0.0),
        ("quell_background_processes", 0.0),
        ("quell_sessions_live", 1.0),
        ("quell_held", 0.0),
    ] {
        assert_eq!(during.value(series), value, "{series}");
    }
    let stopped = daemon.api().stop_run(&stopped).await;

    let after = read_metrics(&daemon).await;
    let ended = |verdict: &str| after.value(&format!("quell_runs_ended_total{{verdict=\"{verdict}\"}}"));
    assert_eq!((ended("completed"), ended("failed"), ended("aborted")), (1.0, 0.0, 1.0));
    assert_eq!(after.value("quell_runs_with_leftovers_total"), 0.0);
    let receipts = [&done, &stopped].map(|view| &view["receipt"]);
    let used = |name: &str| receipts.iter().map(|receipt| receipt["usage"][name].as_f64().unwrap()).sum::<f64>();
    let (input, output) = (used("inputTokens"), used("outputTokens"));
    let tokens = |direction: &str| {
        after.value(&format!("quell_tokens_total{{provider=\"scripted\",direction=\"{direction}\"}}"))
    };
    assert_eq!((tokens("input"), tokens("output")), (input, output));
    assert!(input > 0.0 && output > 0.0);
    assert_eq!(after.value("quell_cost_micros_total{provider=\"scripted\"}"), input + 2.0 * output);

    assert_eq!(after.types["quell_stop_seconds"], "histogram");
    let buckets = after.samples.keys().filter(|series| series.starts_with("quell_stop_seconds_bucket{le="));
    assert!(buckets.count() > 10, "{after:#?}");
    for series in ["quell_stop_seconds_bucket{le=\"+Inf\"}", "quell_stop_seconds_count"] {
        assert_eq!(after.value(series), 1.0, "one stop");
    }
    let took = stopped["receipt"]["settledAt"]["ms"].as_f64().unwrap() / 1000.0;
    assert!((after.value("quell_stop_seconds_sum") - took).abs() < 1e-6, "{took} s");
}
