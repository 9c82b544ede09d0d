//! Export and import, over HTTP and with the real binary.

use std::io::Write;
use std::process::Stdio;

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{Answer, Api, Daemon, Home};
use quell_testkit::model::{Behaviour, Stream};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::cli::{Ran, exe, run};
use crate::doors::{House, assert_problem, escape};

/// What an export answers, byte for byte.
async fn exported(api: &Api, session: &str) -> String {
    let request = api.request(Method::GET, &format!("/api/sessions/{}/export", escape(session)));
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
    assert!(answer.headers().contains_key("content-length"), "a client sees when it was cut");
    answer.text().await.unwrap()
}

/// The lines of an archive without what says that they were imported.
fn unmarked(lines: &str) -> Vec<Value> {
    let read = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        if let Some(view) = line.get_mut("view").and_then(Value::as_object_mut) {
            view.remove("imported");
        }
        line
    };
    lines.lines().map(read).collect()
}

async fn import(api: &Api, lines: impl Into<reqwest::Body>) -> Answer {
    let request = api.request(Method::POST, "/api/import").header("content-type", "application/x-ndjson");
    api.send(request.body(lines)).await
}

const KEY: &str = "agent:main:ä/ö 1";

/// A session with everything that one can have: a run with a call, a boundary, a stopped run with half an answer, a steered
/// message.
async fn lived_in(house: &House) {
    house.model.script(Behaviour::tool_call("c1", "list_files", &json!({"path": "."})));
    house.model.script(Behaviour::text("first answer ü \u{1f980}"));
    let run = house.send(KEY, "first question").await;
    house.forgotten(&run).await;
    let _ = house.http.post(&format!("/api/sessions/{}/reset", escape(KEY)), &json!({})).await.expect_status(200);
    let run = house.streaming_run(KEY).await;
    let _ = house.http.post(&format!("/api/runs/{run}/stop?wait=1"), &json!({})).await.expect_status(200);
    house.forgotten(&run).await;
    let look = Stream::new().text("I look. ").wait_for("go").tool_call("c2", "list_files", &json!({}));
    house.model.script(look).script(Behaviour::text("second answer"));
    let index = house.model.seen().len();
    let run = house.send(KEY, "second question").await;
    house.model.request(index).resting().await;
    let steered = house.post_run(KEY, &json!({"text": "on the way", "onBusy": "steer"})).await.expect_status(202);
    assert_eq!(steered["state"], "steered");
    house.model.open_gate("go");
    house.forgotten(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_imported_into_an_empty_daemon_is_exported_byte_for_byte_and_goes_on() {
    let first = House::open().await;
    lived_in(&first).await;
    let lines = exported(&first.http, KEY).await;
    let kinds: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (&kinds[0]["quell"], &kinds[0]["version"], &kinds[0]["key"]),
        (&json!("session"), &json!(1), &json!(KEY))
    );
    let words: Vec<&str> = kinds[1..].iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(words, ["run", "run", "run", "run", "turn", "reset", "turn", "turn"]);
    assert!(kinds[1]["view"]["receipt"]["settledAt"].is_object(), "the receipt goes along: {:#}", kinds[1]);
    let stopped = kinds[2]["id"].as_str().unwrap().to_owned();

    let second = House::open().await;
    let row = import(&second.http, lines.clone()).await.expect_status(201);
    assert_eq!((&row["key"], &row["turns"], &row["state"]), (&json!(KEY), &json!(2), &json!("expired")));
    let again = exported(&second.http, KEY).await;
    assert_eq!(unmarked(&again), unmarked(&lines));
    assert!(again.lines().nth(1).unwrap().contains("\"imported\":{"), "it says for ever that it was imported");
    let receipt = |view: &Value| view["receipt"].clone();
    let path = format!("/api/runs/{stopped}");
    let (here, there) = (first.http.get(&path).await, second.http.get(&path).await);
    assert_eq!(receipt(&here.expect_status(200)), receipt(&there.expect_status(200)));

    second.model.script(Behaviour::text("third answer"));
    let run = second.send(KEY, "third question").await;
    second.ended(&run).await;
    let seen = second.model.seen().last().map(|request| json!(request.messages()).to_string()).unwrap();
    for said in ["second question", "second answer", "on the way"] {
        assert!(seen.contains(said), "{said} is not in {seen}");
    }
    assert!(!seen.contains("first question"), "what lies behind the boundary stays there: {seen}");
    second.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_at_work_is_not_in_an_export() {
    let house = House::open().await;
    house.finished_run("s").await;
    let run = house.streaming_run("s").await;
    // Without waiting for anything but the end that was told: it is in the export.
    let lines = exported(&house.http, "s").await;
    assert!(!lines.contains(&run) && !lines.contains("begun"), "{lines}");
    assert_eq!(lines.lines().count(), 3, "{lines}");
    let _ = house.http.post(&format!("/api/runs/{run}/stop?wait=1"), &json!({})).await.expect_status(200);
    house.forgotten(&run).await;
    assert!(exported(&house.http, "s").await.contains(&run));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_over_what_is_there_is_refused_and_after_a_deletion_it_is_what_counts() {
    let house = House::open().await;
    house.finished_run("s").await;
    let lines = exported(&house.http, "s").await;
    let refused = import(&house.http, lines.clone()).await;
    assert_problem(&refused, 409, "conflict");
    assert!(refused.body["detail"].as_str().unwrap().contains("delete it first"), "{:#}", refused.body);
    // The same runs under another key would be receipts of two sessions.
    let moved = import(&house.http, lines.replace("\"s\"", "\"t\"")).await;
    assert_problem(&moved, 409, "conflict");
    assert!(moved.body["detail"].as_str().unwrap().contains("in another session"), "{:#}", moved.body);
    // What is in memory of the deleted one is not what the next message sees.
    let _ = house.http.delete("/api/sessions/s").await.expect_status(204);
    let _ = import(&house.http, lines.clone()).await.expect_status(201);
    assert_eq!(unmarked(&exported(&house.http, "s").await), unmarked(&lines));
    house.finished_run("s").await;
    let seen = house.model.seen().last().map(|request| request.messages().len()).unwrap();
    assert_eq!(seen, 4, "system, the imported turn, the new message");
}

#[rstest]
#[case::nothing("", 1, "nothing here")]
#[case::no_json("{\"quell\":\n", 1, "no JSON")]
#[case::no_head("{\"kind\":\"turn\"}\n", 1, "no session exported by quell")]
#[case::newer("{\"quell\":\"session\",\"version\":2,\"more\":1}\n", 1, "newer quell")]
#[case::another_thing(
    "{\"quell\":\"garden\",\"version\":1,\"key\":\"s\",\"agent\":\"a\",\"createdAt\":\"\",\"lastUsedAt\":\"\"}",
    1,
    "garden"
)]
#[case::unknown_field("HEAD,\"mood\":1}\n", 1, "mood")]
#[case::bad_time(
    "{\"quell\":\"session\",\"version\":1,\"key\":\"s\",\"agent\":\"a\",\"createdAt\":\"soon\",\"lastUsedAt\":\"x\"}",
    1,
    "createdAt"
)]
#[case::two_heads("HEAD}\nHEAD}\n", 2, "second head")]
#[case::unknown_kind("HEAD}\n\n{\"kind\":\"dream\",\"x\":1}\n", 3, "dream")]
#[case::no_kind("HEAD}\n{\"x\":1}\n", 2, "no kind")]
#[case::no_such_run("HEAD}\n{\"kind\":\"turn\",\"run\":\"r\",\"turn\":TURN}", 2, "no line before")]
#[case::wrong_run("HEAD}\n{\"kind\":\"turn\",\"run\":\"q\",\"turn\":TURN}", 2, "is of run r")]
#[case::damaged_turn("HEAD}\n{\"kind\":\"turn\",\"run\":\"r\",\"turn\":{\"version\":2}}", 2, "not readable")]
#[case::newer_turn("HEAD}\n{\"kind\":\"turn\",\"run\":\"r\",\"turn\":{\"version\":9}}", 2, "version 9")]
#[case::bad_view("HEAD}\nRUN,\"view\":{\"runId\":\"r\"}}", 2, "the view of run r")]
#[case::bad_utf8("HEAD}\n\u{fffd}", 2, "no JSON")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_line_is_named_with_its_number_and_nothing_is_imported(
    #[case] lines: &str,
    #[case] line: usize,
    #[case] why: &str,
) {
    const HEAD: &str = r#"{"quell":"session","version":1,"key":"s","agent":"main","createdAt":"2026-01-01T00:00:00Z","lastUsedAt":"2026-01-01T00:00:00Z""#;
    const RUN: &str = r#"{"kind":"run","id":"r","agent":"main","principal":"p","fingerprint":"f","state":"ended","acceptedAt":"2026-01-01T00:00:00Z""#;
    const TURN: &str = r#"{"version":2,"run_id":"r","items":[{"kind":"user","text":"hi"}],"verdict":{"kind":"completed"},"sealed_at":"2026-01-01T00:00:00Z","usage":{"inputTokens":1,"outputTokens":1,"estimated":false}}"#;
    let house = House::open().await;
    let lines = lines.replace("HEAD", HEAD).replace("RUN", RUN).replace("TURN", TURN);
    let refused = import(&house.http, lines).await;
    assert_problem(&refused, 400, "invalid_request");
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.starts_with(&format!("line {line}: ")) && detail.contains(why), "{detail}");
    assert!(detail.ends_with("nothing was imported"), "{detail}");
    let _ = house.http.get("/api/sessions/s").await.expect_status(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_are_not_over_are_refused_by_name() {
    let house = House::open().await;
    let run = house.finished_run("s").await;
    let lines = exported(&house.http, "s").await;
    let _ = house.http.delete("/api/sessions/s").await.expect_status(204);
    let open = lines.replacen("\"state\":\"ended\",\"phase", "\"state\":\"running\",\"phase", 1);
    let open = if open == lines {
        lines.replace("\"state\":\"ended\",\"principal\"", "\"state\":\"running\",\"principal\"")
    } else {
        open
    };
    assert_ne!(open, lines);
    let refused = import(&house.http, open).await;
    assert_problem(&refused, 400, "invalid_request");
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.starts_with("line 2: ") && detail.contains(&run) && detail.contains("running"), "{detail}");
    let accepted = lines.replacen("\"state\":\"ended\"", "\"state\":\"accepted\"", 1);
    let detail = import(&house.http, accepted).await.expect_status(400)["detail"].to_string();
    assert!(detail.contains("line 2") && detail.contains("accepted"), "{detail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_has_its_own_limit_scope_and_kind_and_an_export_its_reader() {
    let house = House::with(|plan| plan.engine.limits.import_bytes = 2000).await;
    house.finished_run("s").await;
    let lines = exported(&house.http, "s").await;
    let _ = house.http.delete("/api/sessions/s").await.expect_status(204);
    // Larger than what the sockets hold: it is answered while the client still sends.
    let large = import(&house.http, format!("{lines}{}", " \n".repeat(8 << 20))).await;
    assert_problem(&large, 413, "body_too_large");
    assert!(large.body["detail"].as_str().unwrap().contains("import_bytes"), "{:#}", large.body);
    let reader = house.api("eyes", "read").await;
    assert_problem(&import(&reader, lines.clone()).await, 403, "forbidden");
    assert_problem(&reader.get("/api/sessions/s/export").await, 404, "session_not_found");
    assert_problem(&reader.with_token("nobody").get("/api/sessions/s/export").await, 401, "unauthorized");
    let form = house.http.request(Method::POST, "/api/import").header("content-type", "text/plain").body(lines.clone());
    assert_problem(&house.http.send(form).await, 415, "unsupported_media_type");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_goes_along_without_its_keys_and_so_do_the_notes() {
    let (first, second) = (House::open().await, House::open().await);
    let asked = json!({"userId": "u", "chatId": "c", "provider": "scripted", "apiKey": "sk-secret", "instruction": "Be brief."});
    let made = first.http.post("/api/sessions", &asked).await.expect_status(201);
    let key = made["key"].as_str().unwrap().to_owned();
    let note = json!({"text": "The fence is green.", "key": "fence"});
    first.model.script(Behaviour::tool_call("c1", "remember", &note)).script(Behaviour::text("noted"));
    let run = first.send(&key, "remember the fence").await;
    first.ended(&run).await;
    let lines = exported(&first.http, &key).await;
    assert!(!lines.contains("sk-secret") && lines.contains("Be brief."), "{lines}");
    let note = lines.lines().find(|line| line.contains("\"kind\":\"note\"") && line.contains("\"key\":\"fence\""));
    assert!(note.is_some_and(|line| line.contains("The fence is green.")), "{lines}");

    let _ = import(&second.http, lines.clone()).await.expect_status(201);
    assert_eq!(unmarked(&exported(&second.http, &key).await), unmarked(&lines));
    second
        .model
        .script(Behaviour::tool_call("c1", "recall", &json!({"query": "fence"})))
        .script(Behaviour::text("green"));
    let run = second.send(&key, "which colour?").await;
    second.ended(&run).await;
    let seen = second.model.seen().last().map(|request| json!(request.messages()).to_string()).unwrap();
    assert!(seen.contains("Be brief."), "the session's own instruction: {seen}");
    assert!(seen.matches("The fence is green.").count() >= 2, "what it recalled, besides what was said: {seen}");

    // A key in the open is refused, and so is the configuration of another session.
    let _ = second.http.delete(&format!("/api/sessions/{}", escape(&key))).await.expect_status(204);
    for (bad, why) in
        [("\"chatId\":\"c\",\"apiKey\":\"k\"", "without its keys"), ("\"chatId\":\"d\"", "that of session")]
    {
        let refused = import(&second.http, lines.replacen("\"chatId\":\"c\"", bad, 1)).await.expect_status(400);
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.starts_with("line 2: ") && detail.contains(why), "{detail}");
    }
}

fn verb(home: &Home, words: &[&str]) -> Ran {
    run(home.command(exe()).args(words))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_verbs_carry_a_session_from_one_data_directory_to_another() {
    let model = ScriptedModel::start().await;
    let config = format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\nmax_retries = 0\n[agents.main]\nmodel = \"scripted/m\"\n",
        model.base_url()
    );
    let (one, two) = (Daemon::start(exe(), &config).await, Daemon::start(exe(), &config).await);
    model.script(Behaviour::text("an answer"));
    let sent = verb(one.home(), &["send", "--session", "cli:ä", "a question"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    let out = verb(one.home(), &["sessions", "export", "cli:ä"]);
    assert_eq!((out.code, out.err.as_str()), (0, ""), "{out:?}");
    let file = one.home().data().join("a.jsonl");
    std::fs::write(&file, &out.out).unwrap();

    let taken = verb(two.home(), &["sessions", "import", file.to_str().unwrap()]);
    assert_eq!(taken.code, 0, "{taken:?}");
    assert_eq!(taken.out, "session cli:ä is imported: 1 turn that its model will see\n");
    assert_eq!(unmarked(&verb(two.home(), &["sessions", "export", "cli:ä"]).out), unmarked(&out.out));
    let shown = verb(two.home(), &["sessions", "show", "cli:ä"]);
    assert!(shown.out.contains("a question") && shown.out.contains("an answer"), "{shown:?}");

    // Again, from standard input: it is refused, and says what to do.
    let mut again = two.home().command(exe());
    again.args(["sessions", "import", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::piped());
    let mut again = again.spawn().unwrap();
    again.stdin.take().unwrap().write_all(out.out.as_bytes()).unwrap();
    let again = again.wait_with_output().unwrap();
    let said = String::from_utf8(again.stderr).unwrap();
    assert!(again.status.code() == Some(1) && said.contains("delete it first"), "{said}");
    let none = verb(two.home(), &["sessions", "export", "nothing"]);
    assert_eq!((none.code, none.out.as_str()), (3, ""), "{none:?}");
    let missing = verb(two.home(), &["sessions", "import", "no-such-file"]);
    assert_eq!(missing.code, 2, "{missing:?}");
}
