//! List, search and delete the notes about chat users, over HTTP and from the command line.

use quell_test_support::audit_entries::wait_audit_entries;
use quell_testkit::model::ScriptedResponse;
use serde_json::{Value, json};

use super::administration::WebhookDaemonFixture;
use crate::test_daemon::run_cli;
use crate::test_server::{assert_problem, percent_encode};

/// A name with characters that have a meaning in a path.
const KIM: &str = "kim/7 ü%_:?#";

impl WebhookDaemonFixture {
    /// Sends a message, waits for the answer, and returns the last text of the model request. Targets that begin with
    /// `#` are groups.
    async fn send_and_wait(&self, id: &str, (sender, target): (&str, &str), text: &str) -> String {
        self.base.model.script(ScriptedResponse::text(id));
        let group = target.starts_with('#');
        let body = json!({"id": id, "sender": sender, "target": target, "group": group, "text": text});
        let _ = self.post(&body.to_string(), 0).await.expect_status(202);
        self.receiver.wait_for("the answer", |it| it.texts(target).contains(&id)).await;
        let asked = self.base.model.recorded_requests().pop().unwrap();
        asked.messages().last().unwrap()["content"].as_str().unwrap().to_owned()
    }

    async fn get(&self, path: &str) -> Value {
        self.base.daemon.api().get(path).await.expect_status(200)
    }

    /// The senders with notes, and the number of their notes.
    async fn senders(&self) -> Vec<(String, u64)> {
        let list = self.get("/api/senders").await;
        let parse_row = |row: &Value| (row["sender"].as_str().unwrap().to_owned(), row["notes"].as_u64().unwrap());
        list["items"].as_array().unwrap().iter().map(parse_row).collect()
    }
}

fn note_texts(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|note| note["text"].as_str().unwrap()).collect()
}

fn memory_path(sender: &str) -> String {
    format!("/api/senders/{}/memory", percent_encode(sender))
}

/// Starts with notes on two messages of Kim, one of Ann, and one of Lee that was sent in a group.
async fn start_with_notes() -> (WebhookDaemonFixture, String) {
    let fixture = WebhookDaemonFixture::start_with("[memory]\nauto_save = true").await;
    fixture.send_and_wait("m1", (KIM, "o17"), "my boat is called Emma").await;
    fixture.send_and_wait("m2", ("ann", "o18"), "my car is red").await;
    fixture.send_and_wait("m3", (KIM, "o17"), "my house is small").await;
    fixture.send_and_wait("m4", ("lee", "#lab"), "my bike is fast").await;
    (fixture, memory_path(&format!("shop:{KIM}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn notes_of_private_messages_are_listed_searched_and_forgotten() {
    let (fixture, kim) = start_with_notes().await;
    let http = fixture.base.daemon.api();
    let known = format!("shop:{KIM}");
    assert_eq!(
        fixture.senders().await,
        [(known.clone(), 2), ("shop:ann".to_owned(), 1)],
        "a group message created notes about a sender"
    );
    let page = fixture.get("/api/senders?limit=1").await;
    assert!(page["items"][0]["newestAt"].as_str().unwrap().starts_with("20"), "{page}");
    let next = fixture.get(&format!("/api/senders?limit=1&cursor={}", page["nextCursor"].as_str().unwrap())).await;
    assert_eq!((&next["items"][0]["sender"], next.get("nextCursor")), (&json!("shop:ann"), None));

    assert_eq!(note_texts(&fixture.get(&kim).await), ["my house is small", "my boat is called Emma"]);
    let page = fixture.get(&format!("{kim}?limit=1")).await;
    let next = fixture.get(&format!("{kim}?limit=1&cursor={}", page["nextCursor"].as_str().unwrap())).await;
    assert_eq!(note_texts(&next), ["my boat is called Emma"]);
    let found = fixture.get(&format!("{kim}?query=which+boat%3F")).await;
    assert_eq!(note_texts(&found), ["my boat is called Emma"]);
    assert!(found["items"][0]["score"].as_f64().unwrap() > 0.4, "{found}");
    assert_eq!(note_texts(&fixture.get(&format!("{kim}?query=car")).await), [""; 0], "that is Ann's");

    let note = format!("{kim}/{}", percent_encode(found["items"][0]["key"].as_str().unwrap()));
    assert_eq!(http.delete(&note).await.status, 204);
    assert_problem(&http.delete(&note).await, 404, "not_found");
    assert_eq!(http.delete(&kim).await.expect_status(200), json!({"forgotten": 1}));
    assert_problem(&http.delete(&kim).await, 404, "not_found");
    assert_problem(&http.get(&kim).await, 404, "not_found");
    assert_eq!(fixture.senders().await, [("shop:ann".to_owned(), 1)]);

    let audit = wait_audit_entries(&http, 0, 2).await;
    let columns = |at: usize| ["action", "target", "detail"].map(|field| audit[at][field].as_str().unwrap().to_owned());
    let [action, target, detail] = columns(0);
    assert_eq!((action.as_str(), detail), ("forget_note", format!("of sender {known:?}")));
    assert!(target.starts_with("note shop_kim"), "{target}");
    assert_eq!(columns(1), ["forget_sender".to_owned(), format!("sender {known}"), "notes: 1".to_owned()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn looking_at_a_sender_needs_read_and_forgetting_one_an_admin() {
    let (fixture, kim) = start_with_notes().await;
    let http = fixture.base.daemon.api();
    let mut clients = Vec::new();
    for scope in ["read:all", "write"] {
        let made = http
            .post("/api/tokens", &json!({"name": scope.replace(':', "-"), "scope": scope}))
            .await
            .expect_status(201);
        clients.push(http.with_token(made["token"].as_str().unwrap()));
    }
    let (reader, writer) = (&clients[0], &clients[1]);
    for path in ["/api/senders".to_owned(), kim.clone(), format!("{kim}?query=boat")] {
        let _ = reader.get(&path).await.expect_status(200);
    }
    for path in [kim.clone(), format!("{kim}/x")] {
        assert_problem(&reader.delete(&path).await, 403, "forbidden");
        assert_problem(&writer.delete(&path).await, 403, "forbidden");
    }
    for bad in ["?q=x", "?cursor=x", "?limit=x"] {
        assert_problem(&reader.get(&format!("/api/senders{bad}")).await, 400, "invalid_request");
        assert_problem(&reader.get(&format!("{kim}{bad}")).await, 400, "invalid_request");
    }
    assert_problem(&reader.get(&format!("{kim}?query=x&cursor=n")).await, 400, "invalid_request");
    assert_problem(&reader.get("/api/senders/shop:%zz/memory").await, 400, "invalid_request");
    for nobody in ["ann", "shop:", "shop:lee", "shop:ANN"] {
        assert_problem(&reader.get(&memory_path(nobody)).await, 404, "not_found");
        assert_problem(&http.delete(&memory_path(nobody)).await, 404, "not_found");
    }
    assert_problem(&http.delete(&format!("{kim}/x")).await, 404, "not_found");
    assert_eq!(fixture.senders().await.len(), 2, "notes were deleted");
    assert_eq!(http.delete(&kim).await.expect_status(200), json!({"forgotten": 2}));
}

#[tokio::test(flavor = "multi_thread")]
async fn notes_of_a_sender_are_shown_until_they_are_forgotten() {
    let fixture = WebhookDaemonFixture::start_with("[memory]\nauto_save = true\nauto_recall = true").await;
    let home = fixture.base.daemon.home();
    let (question, shown) = ("what is my boat called?", "\n- shop_kim_m1: my boat is called Emma\n");
    fixture.send_and_wait("m1", ("kim", "o17"), "my boat is called Emma").await;
    let asked = fixture.send_and_wait("m2", ("kim", "#lab"), question).await;
    assert!(asked.contains(shown), "a sender's notes apply in groups too (row D8): {asked}");
    let asked = fixture.send_and_wait("m3", ("ann", "#lab"), question).await;
    assert!(!asked.contains("[Memory"), "another sender in the group sees them: {asked}");
    fixture.send_and_wait("m4", ("kim", "#lab"), "my tent is called Otto").await;
    let asked = fixture.send_and_wait("m5", ("kim", "o17"), "what is my tent called?").await;
    assert!(!asked.contains("Otto"), "a note of a group reached a private chat: {asked}");

    let deleted = run_cli(home, &["sessions", "delete", "shop_o17_kim"]);
    assert_eq!(deleted.code, 0, "{deleted:?}");
    let asked = fixture.send_and_wait("m6", ("kim", "o17"), question).await;
    assert!(asked.contains(shown), "the deletion of the session removed the sender's notes: {asked}");

    let listed = run_cli(home, &["memory", "senders"]);
    assert!(listed.out.lines().nth(1).is_some_and(|row| row.starts_with("shop:kim  3 ")), "{listed:?}");
    let found = run_cli(home, &["memory", "search", "boat Emma", "--sender", "shop:kim"]);
    assert!(found.out.lines().nth(1).is_some_and(|row| row.starts_with("shop_kim_m1  conversation")), "{found:?}");
    let forgotten = run_cli(home, &["memory", "forget", "--all", "--sender", "shop:kim"]);
    assert_eq!((forgotten.code, forgotten.out.as_str()), (0, "shop:kim is forgotten: 3 notes\n"), "{forgotten:?}");
    let again = run_cli(home, &["memory", "list", "--sender", "shop:kim"]);
    assert!(again.code == 3 && again.err.contains("no notes are stored about \"shop:kim\""), "{again:?}");
    for (id, target) in [("m7", "o17"), ("m8", "#lab")] {
        let asked = fixture.send_and_wait(id, ("kim", target), question).await;
        assert!(!asked.contains("Emma"), "{asked}");
    }
}
