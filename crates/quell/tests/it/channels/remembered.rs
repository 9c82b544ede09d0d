//! What is remembered of people in chat networks: seen and forgotten by those who run Quell, over HTTP and from the command line.

use quell_testkit::model::Behaviour;
use serde_json::{Value, json};

use super::operations::{Shop, verb};
use crate::doors::{assert_problem, escape};
use crate::operations::entries;

/// A name with everything that means something in a path.
const KIM: &str = "kim/7 ü%_:?#";

impl Shop {
    /// Writes to the agent and waits for its answer. Answers what the model was asked. Places that begin with `#` are groups.
    async fn ask(&self, id: &str, (sender, target): (&str, &str), text: &str) -> String {
        self.house.model.script(Behaviour::text(id));
        let group = target.starts_with('#');
        let body = json!({"id": id, "sender": sender, "target": target, "group": group, "text": text});
        let _ = self.post(&body.to_string(), 0).await.expect_status(202);
        self.receiver.wait_for("the answer", |it| it.texts(target).contains(&id)).await;
        let asked = self.house.model.seen().pop().unwrap();
        asked.messages().last().unwrap()["content"].as_str().unwrap().to_owned()
    }

    async fn get(&self, path: &str) -> Value {
        self.house.daemon.http().get(path).await.expect_status(200)
    }

    /// The senders of whom something is remembered, and of how many notes each.
    async fn senders(&self) -> Vec<(String, u64)> {
        let list = self.get("/api/senders").await;
        let told = |row: &Value| (row["sender"].as_str().unwrap().to_owned(), row["notes"].as_u64().unwrap());
        list["items"].as_array().unwrap().iter().map(told).collect()
    }
}

fn texts(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|note| note["text"].as_str().unwrap()).collect()
}

fn path_of(sender: &str) -> String {
    format!("/api/senders/{}/memory", escape(sender))
}

/// A shop that remembers two messages of Kim and one of Ann, and one of Lee that was said in a group.
async fn shop() -> (Shop, String) {
    let shop = Shop::open_with("[memory]\nauto_save = true").await;
    shop.ask("m1", (KIM, "o17"), "my boat is called Emma").await;
    shop.ask("m2", ("ann", "o18"), "my car is red").await;
    shop.ask("m3", (KIM, "o17"), "my house is small").await;
    shop.ask("m4", ("lee", "#lab"), "my bike is fast").await;
    (shop, path_of(&format!("shop:{KIM}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_people_wrote_in_private_is_listed_searched_and_forgotten() {
    let (shop, kim) = shop().await;
    let http = shop.house.daemon.http();
    let known = format!("shop:{KIM}");
    assert_eq!(shop.senders().await, [(known.clone(), 2), ("shop:ann".to_owned(), 1)], "nobody is known by a group");
    let page = shop.get("/api/senders?limit=1").await;
    assert!(page["items"][0]["newestAt"].as_str().unwrap().starts_with("20"), "{page}");
    let next = shop.get(&format!("/api/senders?limit=1&cursor={}", page["nextCursor"].as_str().unwrap())).await;
    assert_eq!((&next["items"][0]["sender"], next.get("nextCursor")), (&json!("shop:ann"), None));

    assert_eq!(texts(&shop.get(&kim).await), ["my house is small", "my boat is called Emma"]);
    let page = shop.get(&format!("{kim}?limit=1")).await;
    let next = shop.get(&format!("{kim}?limit=1&cursor={}", page["nextCursor"].as_str().unwrap())).await;
    assert_eq!(texts(&next), ["my boat is called Emma"]);
    let found = shop.get(&format!("{kim}?query=which+boat%3F")).await;
    assert_eq!(texts(&found), ["my boat is called Emma"]);
    assert!(found["items"][0]["score"].as_f64().unwrap() > 0.4, "{found}");
    assert_eq!(texts(&shop.get(&format!("{kim}?query=car")).await), [""; 0], "that is Ann's");

    let note = format!("{kim}/{}", escape(found["items"][0]["key"].as_str().unwrap()));
    assert_eq!(http.delete(&note).await.status, 204);
    assert_problem(&http.delete(&note).await, 404, "not_found");
    assert_eq!(http.delete(&kim).await.expect_status(200), json!({"forgotten": 1}));
    assert_problem(&http.delete(&kim).await, 404, "not_found");
    assert_problem(&http.get(&kim).await, 404, "not_found");
    assert_eq!(shop.senders().await, [("shop:ann".to_owned(), 1)]);

    let audit = entries(&http, 0, 2).await;
    let told = |at: usize| ["action", "target", "detail"].map(|field| audit[at][field].as_str().unwrap().to_owned());
    let [action, target, detail] = told(0);
    assert_eq!((action.as_str(), detail), ("forget_note", format!("of sender {known:?}")));
    assert!(target.starts_with("note shop_kim"), "{target}");
    assert_eq!(told(1), ["forget_sender".to_owned(), format!("sender {known}"), "notes: 1".to_owned()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn looking_at_a_sender_needs_read_and_forgetting_one_an_admin() {
    let (shop, kim) = shop().await;
    let http = shop.house.daemon.http();
    let mut visitors = Vec::new();
    for scope in ["read", "write"] {
        let made = http.post("/api/tokens", &json!({"name": scope, "scope": scope})).await.expect_status(201);
        visitors.push(http.with_token(made["token"].as_str().unwrap()));
    }
    let (reader, writer) = (&visitors[0], &visitors[1]);
    for path in ["/api/senders".to_owned(), kim.clone(), format!("{kim}?query=boat")] {
        let _ = reader.get(&path).await.expect_status(200);
        assert_problem(&http.with_token("wrong").get(&path).await, 401, "unauthorized");
    }
    for path in [kim.clone(), format!("{kim}/x")] {
        assert_problem(&http.with_token("wrong").delete(&path).await, 401, "unauthorized");
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
        assert_problem(&reader.get(&path_of(nobody)).await, 404, "not_found");
        assert_problem(&http.delete(&path_of(nobody)).await, 404, "not_found");
    }
    assert_problem(&http.delete(&format!("{kim}/x")).await, 404, "not_found");
    assert_eq!(shop.senders().await.len(), 2, "nothing was forgotten");
    assert_eq!(http.delete(&kim).await.expect_status(200), json!({"forgotten": 2}));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_remembered_of_a_sender_goes_along_until_it_is_forgotten() {
    let shop = Shop::open_with("[memory]\nauto_save = true\nauto_recall = true").await;
    let home = shop.house.daemon.home();
    let (question, shown) = ("what is my boat called?", "\n- shop_kim_m1: my boat is called Emma\n");
    shop.ask("m1", ("kim", "o17"), "my boat is called Emma").await;
    let asked = shop.ask("m2", ("kim", "#lab"), question).await;
    assert!(asked.contains(shown), "row D8: the sender's notes, also in a group: {asked}");
    let asked = shop.ask("m3", ("ann", "#lab"), question).await;
    assert!(!asked.contains("[Memory"), "another one in that group is shown nothing of it: {asked}");
    shop.ask("m4", ("kim", "#lab"), "my tent is called Otto").await;
    let asked = shop.ask("m5", ("kim", "o17"), "what is my tent called?").await;
    assert!(!asked.contains("Otto"), "what was said in a group stays there: {asked}");

    let deleted = verb(home, &["sessions", "delete", "shop_o17_kim"]);
    assert_eq!(deleted.code, 0, "{deleted:?}");
    let asked = shop.ask("m6", ("kim", "o17"), question).await;
    assert!(asked.contains(shown), "the session is gone, the sender's notes are not: {asked}");

    let listed = verb(home, &["memory", "senders"]);
    assert!(listed.out.lines().nth(1).is_some_and(|row| row.starts_with("shop:kim  3 ")), "{listed:?}");
    let found = verb(home, &["memory", "search", "boat Emma", "--sender", "shop:kim"]);
    assert!(found.out.lines().nth(1).is_some_and(|row| row.starts_with("shop_kim_m1  conversation")), "{found:?}");
    let forgotten = verb(home, &["memory", "forget", "--all", "--sender", "shop:kim"]);
    assert_eq!((forgotten.code, forgotten.out.as_str()), (0, "shop:kim is forgotten: 3 notes\n"), "{forgotten:?}");
    let again = verb(home, &["memory", "list", "--sender", "shop:kim"]);
    assert!(again.code == 3 && again.err.contains("nothing is remembered of \"shop:kim\""), "{again:?}");
    for (id, target) in [("m7", "o17"), ("m8", "#lab")] {
        let asked = shop.ask(id, ("kim", target), question).await;
        assert!(!asked.contains("Emma"), "{asked}");
    }
}
