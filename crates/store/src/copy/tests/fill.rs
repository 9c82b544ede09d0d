//! A database with rows in every table.

use quell_protocol::api::{AccessLevel, Hold, TokenRestrictions, TokenRow};
use quell_protocol::{AgentId, Principal, Usage};

use crate::conformance::channels::pending_reply;
use crate::conformance::file_changes::file_change;
use crate::conformance::ownership::end_run_with;
use crate::conformance::push_targets::push_target_key;
use crate::conformance::responses::{conversation, items, response};
use crate::conformance::{
    accept_run, accepted_row, append_turn, delete_session, deletion_entry, no_spend, run_id, run_to_end,
    session_archive, session_key,
};
use crate::{
    ArchivedHistoryItem, EndedResponse, FileBefore, FileChange, JournalRow, Note, NoteScope, PrivateEndpoints,
    QueuedWebhook, RunRow, RunSpend, ScheduleQuota, SessionSetup, SessionSetupAccess, Store, StoredAgent, StoredCookie,
    StoredResponse, StoredRunState, StoredSchedule, StoredToken,
};

/// A zero byte, the character that encodes it, and what a line of `COPY` escapes.
const ODD: &str = "zero \0, \u{e000}0, \u{e000}, \\N \\ \t tab \n line \r\n, 'quote', \u{1f980}";

pub(super) const FILLED_SESSIONS: [&str; 3] = ["s", "imported", "set-up"];

/// The scope of notes, and a query that finds some of them.
pub(super) const NOTE_QUERIES: &[(ScopeName, &str)] = &[
    (ScopeName("session s"), "zero"),
    (ScopeName("agent main"), "서울은 어때?"),
    (ScopeName("agent main"), "我喜欢什么颜色？"),
    (ScopeName("agent main"), "cafe zurich?"),
    (ScopeName("agent main"), "ёлка"),
    (ScopeName("sender ann"), "東京に住む"),
    (ScopeName("session imported"), "colours"),
];

/// A kind, and a name.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScopeName(&'static str);

impl ScopeName {
    pub(super) fn parse(self) -> NoteScope {
        match self.0.split_once(' ').unwrap() {
            ("session", key) => NoteScope::Session(session_key(key)),
            ("agent", agent) => NoteScope::Agent(AgentId::parse(agent).unwrap()),
            (_, sender) => NoteScope::Sender(sender.to_owned()),
        }
    }
}

fn admin() -> Principal {
    Principal::parse("admin").unwrap()
}

pub(super) async fn fill_store(store: &Store) {
    fill_runs(store).await;
    fill_file_changes(store).await;
    fill_sessions(store).await;
    fill_notes(store).await;
    fill_access(store).await;
    fill_channels(store).await;
    fill_responses(store).await;
    fill_push_targets(store).await;
}

/// Runs in all states, a reset, journal lines, large counts of tokens.
async fn fill_runs(store: &Store) {
    run_to_end(store, "r1", "s").await;
    store.history().reset(session_key("s"), "2026-11-20T11:00:00.000000Z".into()).await.unwrap();
    accept_run(store, "odd", "s").await;
    append_turn(store, "s", "odd", ODD, ODD).await.unwrap();
    let usage = Usage { input_tokens: 1 << 47, output_tokens: 7, cached_tokens: 0, estimated: false };
    store
        .runs()
        .record_end(run_id("odd"), ODD.into(), RunSpend { usage, key: Some(admin()), cost: 77, ..no_spend() })
        .await
        .unwrap();
    for id in ["steered", "started", "accepted"] {
        store.runs().accept(RunRow { view: ODD.into(), ..accepted_row(id, "s") }).await.unwrap();
    }
    store.runs().record_steered(run_id("steered"), run_id("r1")).await.unwrap();
    store.runs().record_start(run_id("started"), ODD.into()).await.unwrap();
    let line = |number, line: &str| JournalRow { run: run_id("started"), number, line: line.to_owned() };
    store.journal().write(vec![line(1, ODD), line(0, ""), line(u32::MAX, "last")]).await.unwrap();
    store.spend().add(AgentId::parse("main").unwrap(), "2026-02-01".into(), usage).await.unwrap();
}

/// A deleted, a changed and a new file.
async fn fill_file_changes(store: &Store) {
    let new = file_change(&["started"], ODD, None);
    let content = Some((0..=255).collect());
    let old = FileBefore { sha256: "ab".into(), mode: 0o644, content };
    let changed = FileChange { owner: Some(1000), ..file_change(&["r1", "started"], "a.txt", Some(old.clone())) };
    let deleted = FileChange { after_sha256: None, ..file_change(&["started"], "b.txt", Some(old)) };
    store.file_changes().add(run_id("started"), vec![new, changed, deleted]).await.unwrap();
    store.file_changes().mark_undone(vec![1], "2026-11-21T00:00:00.000000Z".into()).await.unwrap();
}

/// Imported, configured, shared and deleted sessions.
async fn fill_sessions(store: &Store) {
    let over = RunRow { state: StoredRunState::Ended, ..accepted_row("i1", "imported") };
    let turn = ArchivedHistoryItem::Turn { run: run_id("i1"), turn: "{\"turn\":1}".into() };
    let mut archive = session_archive("imported", vec![over], vec![turn]);
    archive.notes = vec![note("colour", "He likes colours")];
    store.archive().import(archive, "2026-11-21T00:00:00.000000Z".into()).await.unwrap();
    let setup = SessionSetup {
        key: session_key("set-up"),
        agent: AgentId::parse("writer").unwrap(),
        at: "2026-11-20T10:00:00.000000Z".into(),
        config: serde_json::json!({"name": ODD}).to_string(),
        secrets: Some((0..=255).collect()),
        private_endpoints: PrivateEndpoints { base_url: true, mcp_url: false },
        requested_by: admin(),
        access: SessionSetupAccess::OwnerOnly,
    };
    store.sessions().set_up(setup).await.unwrap();
    store.sessions().set_shared(session_key("set-up"), true).await.unwrap();
    end_run_with(store, "gone", "deleted", ODD).await;
    delete_session(store, "deleted", &[]).await;
    store.sessions().touch(session_key("s"), "2027-01-01T00:00:00.000000Z".into()).await.unwrap();
}

fn note(key: &str, text: &str) -> Note {
    Note { key: key.into(), category: "core".into(), text: text.into(), at: "noon".into() }
}

async fn fill_notes(store: &Store) {
    let notes = [
        ("session s", "odd", ODD),
        ("agent main", "korean", "안녕하세요, 서울에서 만나요"),
        ("agent main", "chinese", "我最喜欢的颜色是蓝色"),
        ("agent main", "german", "Mein Café heißt Zürich"),
        ("agent main", "russian", "Ответ: Ёлка"),
        ("sender ann", "japanese", "東京タワーの近くに住んでいます"),
        ("agent main", "forgotten", "the highest number is of no note"),
    ];
    for (scope, key, text) in notes {
        store.notes().save(ScopeName(scope).parse(), note(key, text)).await.unwrap();
    }
    store.notes().save(NoteScope::Sender(ODD.into()), note(ODD, ODD)).await.unwrap();
    store.notes().save(ScopeName("agent main").parse(), note("last", "gone")).await.unwrap();
    for key in ["forgotten", "last"] {
        store.notes().forget(ScopeName("agent main").parse(), key.into()).await.unwrap();
    }
}

/// Tokens, cookies, the hold, agents, the audit log.
async fn fill_access(store: &Store) {
    let row = TokenRow {
        name: ODD.into(),
        scope: AccessLevel::Write,
        scopes: vec![AccessLevel::Write.into()],
        created_at: "noon".into(),
        expires_at: Some("midnight".into()),
        rotated_at: None,
        previous_until: None,
        restrictions: TokenRestrictions { models: Some(vec![ODD.into()]), ..TokenRestrictions::default() },
        usage: None,
    };
    let plain = TokenRow { name: "ci".into(), expires_at: None, ..row.clone() };
    for (row, hash) in [(row, "11"), (plain, "22")] {
        store.access().create_token(StoredToken { row, sha256: hash.into(), previous_sha256: None }).await.unwrap();
    }
    let cookie = StoredCookie { sha256: "33".into(), token: "11".into(), expires: i64::MAX, verified_person: true };
    store.access().save_cookie(cookie, 10).await.unwrap();
    let hold =
        Hold { held: true, reason: Some(ODD.into()), since: Some("noon".into()), by: Some(admin()), ..Hold::default() };
    store.runs().set_hold(&hold, None).await.unwrap();
    let agent = StoredAgent {
        id: AgentId::parse("late").unwrap(),
        config: ODD.into(),
        created_at: "noon".into(),
        created_by: admin(),
    };
    store.agents().create(agent).await.unwrap();
    let schedule = StoredSchedule { id: "daily".into(), owner: admin(), revision: 7, definition: ODD.into() };
    store.schedules().create(schedule, ScheduleQuota { per_owner: 1, total: 1 }).await.unwrap();
    // The highest number is of an entry that is gone.
    let times = ["2026-11-20", "2026-11-20", "2026-01-01"];
    let mut entries: Vec<_> = times.iter().map(|time| deletion_entry(time, ODD)).collect();
    entries[0].from = Some(ODD.into());
    entries[1].target = None;
    store.audit().append(entries).await.unwrap();
    assert_eq!(store.audit().delete_before("2026-06-01".into()).await, Ok(1));
}

/// Webhooks, cursors, pending replies, commands.
async fn fill_channels(store: &Store) {
    let webhook = |id: &str, url: &str| QueuedWebhook {
        url: url.to_owned(),
        id: id.to_owned(),
        event: "on_run_end".to_owned(),
        body: ODD.to_owned(),
        queued_at: 1_700_000_000,
    };
    let queue = vec![webhook(ODD, "http://a/"), webhook("b", "http://b/"), webhook("c", "http://c/")];
    store.webhooks().save(queue, 100).await.unwrap();
    let last = store.webhooks().next("http://c/".into()).await.unwrap().unwrap();
    store.webhooks().count_failed_attempt(last.number).await.unwrap();
    let first = store.webhooks().next("http://b/".into()).await.unwrap().unwrap();
    store.webhooks().delete(first.number).await.unwrap();
    store.webhooks().save(vec![webhook("d", "http://d/")], 100).await.unwrap();
    let newest = store.webhooks().next("http://d/".into()).await.unwrap().unwrap();
    store.webhooks().delete(newest.number).await.unwrap();
    store.channels().save_cursor(ODD.into(), ODD.into()).await.unwrap();
    for run in ["started", "accepted"] {
        store.channels().save_pending_reply(pending_reply(run, ODD)).await.unwrap();
    }
    store.channels().mark_outcome_sent(run_id("accepted")).await.unwrap();
    for command in ["tg:1", ODD] {
        store.channels().mark_command_executed(command.into()).await.unwrap();
    }
}

/// An open response and an ended one in a conversation.
async fn fill_responses(store: &Store) {
    store.responses().create(response("open"), Vec::new()).await.unwrap();
    store.responses().create_conversation(conversation("c"), items(&["first", ODD])).await.unwrap();
    let ended = StoredResponse {
        previous: Some("open".into()),
        conversation: Some("c".into()),
        input: ODD.into(),
        ..response("ended")
    };
    store.responses().create(ended, Vec::new()).await.unwrap();
    let (id, events, conversation_items) = ("ended".into(), Some(ODD.into()), items(&["last"]));
    let end = EndedResponse { id, response: ODD.into(), events, conversation_items };
    assert_eq!(store.responses().end(end).await, Ok(true));
}

async fn fill_push_targets(store: &Store) {
    for (run, id) in [("r1", "id"), ("started", ODD)] {
        let key = push_target_key(run, "ann", id);
        store.push_targets().put(key, b"\0\xff\\N\n".to_vec(), 10).await.unwrap();
    }
}
