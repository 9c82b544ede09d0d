//! The tools `remember` and `recall`.

use quell_protocol::CallEnd;
use quell_protocol::ResourceKind;
use quell_testkit::leaks;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::harness::{PATIENCE, abort_reason, message_as, run_id};
use quell_engine::cell::Progress;
use quell_engine::scope::Point;

#[tokio::test]
async fn what_is_remembered_is_recalled_here_and_what_the_agent_knows_everywhere() {
    let house = house(|_| {}).await;
    let (end, said) = call(&house, "one", "recall", &json!({"query": "colour"})).await;
    assert_eq!(end, CallEnd::Ok);
    assert_eq!(said, "This session has no notes yet, and you have none of your own. `remember` writes one.");
    let colour = json!({"text": "The fence is green.", "key": "fence-colour"});
    let (end, said) = call(&house, "one", "remember", &colour).await;
    assert_eq!((end, said.as_str()), (CallEnd::Ok, "Remembered of this session as \"fence-colour\"."));
    let again = json!({"text": "The fence is blue.", "key": "fence-colour", "scope": "session"});
    let (_, said) = call(&house, "one", "remember", &again).await;
    assert!(said.ends_with("in place of what was remembered under that key."), "{said}");
    let (_, said) = call(&house, "one", "remember", &json!({"text": "Fences need paint.", "scope": "agent"})).await;
    assert!(said.starts_with("Remembered of this agent as \"fences-need-paint-"), "{said}");

    let (_, said) = call(&house, "one", "recall", &json!({"query": "which colour is my fence?"})).await;
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].starts_with("- fence-colour (session, core, 2"), "{said}");
    assert!(lines[0].contains(", relevance 0.") && lines[0].ends_with("): The fence is blue."), "{said}");
    assert!(lines[1].starts_with("- fences-need-paint-") && lines[1].contains("(agent, core, "), "{said}");

    let (_, said) = call(&house, "two", "recall", &json!({"query": "fence"})).await;
    assert!(said.contains("Fences need paint.") && !said.contains("blue"), "{said}");
    let (_, said) = call(&house, "two", "recall", &json!({"query": "boats"})).await;
    assert_eq!(said, "No note has words of \"boats\". With an empty query the newest are listed.");
    let (_, said) = call(&house, "one", "recall", &json!({"query": "", "limit": 1, "scope": "agent"})).await;
    assert!(said.ends_with("): Fences need paint.") && !said.contains("relevance"), "{said}");
    house.close().await;
}

#[rstest]
#[case("remember", json!({"text": " \n"}), "The text is empty")]
#[case("remember", json!({"text": "x", "key": ""}), "field `key`: expected a name of 1 to 200 characters")]
#[case("remember", json!({"text": "x", "key": "two\nlines"}), "field `key`: expected a name")]
#[case("remember", json!({"text": "x", "scope": "world"}), "field `scope`: \"world\" is neither `session` nor `agent`")]
#[case("remember", json!({"text": "x".repeat(4001)}), "The text has 4001 characters, a note at most 4000")]
#[case("remember", json!({"words": "x"}), "there is no field \"words\"; the fields are `key`, `scope`, `text`")]
#[case("recall", json!({}), "field `query` is missing")]
#[case("recall", json!({"query": "x", "limit": -1}), "field `limit`: expected a whole number")]
#[tokio::test]
async fn wrong_arguments_are_explained_and_remember_nothing(
    #[case] tool: &str,
    #[case] arguments: Value,
    #[case] wanted: &str,
) {
    let house = house(|_| {}).await;
    let (end, said) = call(&house, "s", tool, &arguments).await;
    assert_eq!(end, CallEnd::Error);
    assert!(said.contains(wanted), "{said}");
    assert!(notes(&house, of_session("s")).await.is_empty());
    house.close().await;
}

#[rstest]
#[case("\"")]
#[case("*")]
#[case("NEAR(")]
#[case("AND")]
#[case("fence\" OR \"")]
#[case("words:fence*")]
#[case("우리 집 울타리")]
#[case("栅栏")]
#[case("フェンス")]
#[tokio::test]
async fn any_query_is_answered(#[case] query: &str) {
    let house = house(|_| {}).await;
    let text = "The fence is green. 울타리는 초록색. 栅栏是绿色的。フェンスは緑。";
    remember(&house, "s", &json!({"text": text, "key": "it"})).await;
    let (end, said) = call(&house, "s", "recall", &json!({"query": query})).await;
    assert_eq!(end, CallEnd::Ok, "{said}");
    let has_words = query.contains("fence") || !query.is_ascii();
    assert_eq!(said.contains(text), has_words, "{said}");
    house.close().await;
}

#[tokio::test]
async fn an_agent_has_the_tools_that_it_is_allowed() {
    let house = house(|config| {
        config.agents.get_mut(&agent("main")).unwrap().tools = vec!["recall".to_owned()];
    })
    .await;
    let (end, said) = call(&house, "s", "remember", &json!({"text": "x"})).await;
    assert_eq!(end, CallEnd::Error);
    assert!(said.contains("there is no tool named \"remember\"; the tools are: recall"), "{said}");
    house.close().await;
}

/// From here on the database takes no write, until the guard is dropped.
struct Blocked(rusqlite::Connection);

impl Blocked {
    fn new(house: &House) -> Self {
        let database = rusqlite::Connection::open(house.dir.path().join("quell.db")).unwrap();
        database.busy_timeout(PATIENCE).unwrap();
        database.execute_batch("BEGIN IMMEDIATE").unwrap();
        Self(database)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.0.execute_batch("ROLLBACK").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_not_wait_for_a_database_that_takes_no_note() {
    let house = house(|_| {}).await;
    let run = run_id("blocked");
    house.script("blocked", [Behaviour::tool_call("c1", "remember", &json!({"text": "The fence is green."}))]);
    let blocked = std::sync::Arc::new(std::sync::Mutex::new(None));
    let database = rusqlite::Connection::open(house.dir.path().join("quell.db")).unwrap();
    let slot = std::sync::Arc::clone(&blocked);
    // The call is in the journal by then, so that nothing but the note waits for the database.
    house.trap.arm(Point::Remember, 1, move || {
        database.busy_timeout(PATIENCE).unwrap();
        database.execute_batch("BEGIN IMMEDIATE").unwrap();
        *slot.lock().unwrap() = Some(Blocked(database));
    });
    house.send(message_as(&run, "s", "note it marker:blocked")).await;
    house.trap.sprung().await;
    let cell = house.engine.live(&run).unwrap();
    assert_eq!(house.stop(&run).aborted, std::slice::from_ref(&run));
    // Its turn is not in the database yet, but all that it held is back.
    cell.sealed().await;
    let held = std::sync::Arc::clone(&cell);
    leaks::settled(PATIENCE, move || {
        let rows = held.scope.ledger().rows();
        let open = rows.iter().filter(|row| row.released.is_none() && row.kind != ResourceKind::Timer).count();
        if open == 0 { Ok(()) } else { Err(format!("{rows:?}")) }
    })
    .await;
    assert!(cell.progress() >= Progress::Ending);
    drop(blocked.lock().unwrap().take());
    let view = house.ended(&run).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), quell_protocol::StopReason::User);
    house.close().await;
}

#[tokio::test]
async fn a_database_that_cannot_be_searched_is_an_error_that_the_model_reads() {
    let house = house(|_| {}).await;
    remember(&house, "s", &json!({"text": "The fence is green."})).await;
    let database = rusqlite::Connection::open(house.dir.path().join("quell.db")).unwrap();
    database.execute_batch("DROP TABLE note_words").unwrap();
    drop(Blocked::new(&house));
    let (end, said) = call(&house, "s", "recall", &json!({"query": "fence"})).await;
    assert_eq!(end, CallEnd::Error);
    assert!(said.starts_with("The notes could not be read: "), "{said}");
    let (end, said) = call(&house, "s", "remember", &json!({"text": "The fence is red."})).await;
    assert_eq!(end, CallEnd::Error);
    assert!(said.starts_with("It could not be written down: "), "{said}");
    assert_eq!(notes(&house, of_session("s")).await.len(), 1, "no note without its words");
    house.close().await;
}
