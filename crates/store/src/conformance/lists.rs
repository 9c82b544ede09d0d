//! Lists and their cursors, the hold, the tokens.

use quell_protocol::Principal;
use quell_protocol::api::{AccessLevel, Hold, StandardApi, TokenRestrictions, TokenRow};

use super::*;
use crate::{StoreError, StoredToken};

pub(crate) async fn runs_page_from_new_to_old_while_new_ones_arrive<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for n in 0..7 {
        accept_run(&store, &format!("r{n}"), "s").await;
    }
    let page = |cursor| RunListFilter { limit: 3, cursor, ..all_runs() };
    let (first, cursor) = store.runs().list(page(None)).await.unwrap();
    assert_eq!(run_ids(&first), ["r6", "r5", "r4"]);
    accept_run(&store, "r7", "s").await;
    let (second, cursor) = store.runs().list(page(cursor)).await.unwrap();
    assert_eq!(run_ids(&second), ["r3", "r2", "r1"]);
    let (third, cursor) = store.runs().list(page(cursor)).await.unwrap();
    assert_eq!((run_ids(&third), cursor), (vec!["r0"], None));
}

pub(crate) async fn a_page_may_begin_behind_any_run<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for n in 0..4 {
        accept_run(&store, &format!("r{n}"), "s").await;
    }
    let (rows, _) = store.runs().list_with_cursors(RunListFilter { limit: 3, ..all_runs() }).await.unwrap();
    for (row, cursor) in rows {
        let rest = store.runs().list(RunListFilter { cursor: Some(cursor), ..all_runs() }).await.unwrap().0;
        let expected = match row.id.as_str() {
            "r3" => vec!["r2", "r1", "r0"],
            "r2" => vec!["r1", "r0"],
            _ => vec!["r0"],
        };
        assert_eq!(run_ids(&rest), expected);
    }
}

pub(crate) async fn a_page_that_just_fits_has_no_cursor<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for n in 0..3 {
        accept_run(&store, &format!("r{n}"), "s").await;
    }
    let (rows, cursor) = store.runs().list(RunListFilter { limit: 3, ..all_runs() }).await.unwrap();
    assert_eq!((rows.len(), cursor), (3, None));
}

pub(crate) async fn runs_are_found_by_session_and_principal<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for (id, session, principal) in [("a", "s", "anna"), ("b", "t", "anna"), ("c", "s", "ben"), ("d", "s", "anna")] {
        let principal = Principal::parse(principal).unwrap();
        store.runs().accept(RunRow { principal, ..accepted_row(id, session) }).await.unwrap();
    }
    let of = |session: Option<&str>, principal: Option<&str>| RunListFilter {
        session: session.map(session_key),
        principal: principal.map(|name| Principal::parse(name).unwrap()),
        ..all_runs()
    };
    let found = |filter| async { store.runs().list(filter).await.unwrap().0 };
    assert_eq!(run_ids(&found(of(Some("s"), None)).await), ["d", "c", "a"]);
    assert_eq!(run_ids(&found(of(None, Some("anna"))).await), ["d", "b", "a"]);
    assert_eq!(run_ids(&found(of(Some("s"), Some("anna"))).await), ["d", "a"]);
    assert_eq!(run_ids(&found(of(Some("t"), Some("ben"))).await), Vec::<&str>::new());
}

pub(crate) async fn open_runs_are_the_unfinished_ones_oldest_first<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for id in ["a", "b", "c"] {
        accept_run(&store, id, "s").await;
    }
    run_to_end(&store, "d", "s").await;
    store.runs().record_start(run_id("b"), "started".into()).await.unwrap();
    assert_eq!(run_ids(&store.runs().list_open().await.unwrap()), ["a", "b", "c"]);
    store.runs().record_end(run_id("b"), "ended".into(), no_spend()).await.unwrap();
    assert_eq!(run_ids(&store.runs().list_open().await.unwrap()), ["a", "c"]);
}

pub(crate) async fn sessions_are_listed_by_last_use_and_searched<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for (id, session) in [("1", "Alpha"), ("2", "beta_1"), ("3", "gamma")] {
        accept_run(&store, id, session).await;
    }
    let again = RunRow {
        accepted_at: "2026-11-21T00:00:00.000000Z".into(),
        agent: quell_protocol::AgentId::parse("writer").unwrap(),
        ..accepted_row("4", "Alpha")
    };
    store.runs().accept(again).await.unwrap();
    let keys = |rows: &[crate::StoredSession]| rows.iter().map(|row| row.key.to_string()).collect::<Vec<_>>();
    let (rows, cursor) = store.sessions().list(SessionListFilter { limit: 2, ..all_sessions() }).await.unwrap();
    assert_eq!(keys(&rows), ["Alpha", "gamma"]);
    let alpha = rows.first().unwrap();
    assert_eq!((alpha.agent.as_str(), alpha.turns), ("writer", 0));
    assert_eq!(alpha.created_at, "2026-11-20T10:00:00.000000Z");
    assert_eq!(alpha.last_used_at, "2026-11-21T00:00:00.000000Z");
    let (rest, end) = store.sessions().list(SessionListFilter { limit: 2, cursor, ..all_sessions() }).await.unwrap();
    assert_eq!((keys(&rest), end), (vec!["beta_1".to_string()], None));
    let search = |text: &str| SessionListFilter { search: Some(text.into()), ..all_sessions() };
    assert_eq!(keys(&store.sessions().list(search("alPHA")).await.unwrap().0), ["Alpha"]);
    assert_eq!(keys(&store.sessions().list(search("WRIT")).await.unwrap().0), ["Alpha"]);
    assert_eq!(keys(&store.sessions().list(search("a_1")).await.unwrap().0), ["beta_1"]);
    assert_eq!(keys(&store.sessions().list(search("%")).await.unwrap().0), Vec::<String>::new());
}

pub(crate) async fn a_cursor_from_elsewhere_is_refused<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for n in 0..3 {
        run_to_end(&store, &format!("r{n}"), "s").await;
    }
    let (_, of_runs) = store.runs().list(RunListFilter { limit: 1, ..all_runs() }).await.unwrap();
    let sessions = SessionListFilter { cursor: of_runs.clone(), ..all_sessions() };
    assert_eq!(store.sessions().list(sessions).await, Err(StoreError::BadCursor));
    assert_eq!(store.history().page(session_key("s"), 1, of_runs).await, Err(StoreError::BadCursor));
    for bad in ["", "r", "r1", "r-000000000000001", "r+000000000000001", "rffffffffffffffff", "5", "'; DROP", "r\u{fc}"]
    {
        let filter = RunListFilter { cursor: Some(bad.into()), ..all_runs() };
        assert_eq!(store.runs().list(filter).await, Err(StoreError::BadCursor), "{bad}");
    }
}

pub(crate) async fn the_hold_is_kept_whole_and_lifted<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    assert_eq!(store.runs().hold().await, Ok(Hold::default()));
    let hold = Hold {
        held: true,
        reason: Some("upgrade".into()),
        since: Some("noon".into()),
        by: Some(Principal::parse("admin").unwrap()),
        ..Hold::default()
    };
    assert_eq!(store.runs().set_hold(&hold, None).await, Ok(Some(1)));
    assert_eq!(store.runs().hold().await, Ok(Hold { revision: 1, ..hold.clone() }));
    assert_eq!(store.runs().set_hold(&Hold::default(), Some(1)).await, Ok(Some(2)));
    // An older word comes too late.
    assert_eq!(store.runs().set_hold(&hold, Some(1)).await, Ok(None));
    assert_eq!(store.runs().hold().await, Ok(Hold { revision: 2, ..Hold::default() }));
}

fn token_row(name: &str, scope: AccessLevel) -> TokenRow {
    TokenRow {
        name: name.into(),
        scope,
        scopes: vec![scope.into()],
        created_at: "noon".into(),
        expires_at: Some("midnight".into()),
        rotated_at: None,
        previous_until: None,
        restrictions: TokenRestrictions::default(),
        usage: None,
    }
}

pub(crate) async fn a_rotated_token_keeps_its_scopes_and_is_rotated_from_its_last_secret<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let made = StoredToken { row: token_row("ci", AccessLevel::Write), sha256: "11".into(), previous_sha256: None };
    store.access().create_token(made.clone()).await.unwrap();
    let row = TokenRow {
        expires_at: None,
        rotated_at: Some("one".into()),
        previous_until: Some("two".into()),
        ..made.row.clone()
    };
    let rotated = StoredToken { row, sha256: "22".into(), previous_sha256: Some("11".into()) };
    assert_eq!(store.access().rotate_token(rotated.clone()).await, Ok(true));
    assert_eq!(store.access().list_tokens().await.unwrap(), std::slice::from_ref(&rotated));
    assert_eq!(store.access().rotate_token(rotated.clone()).await, Ok(false), "somebody else was first");
    assert_eq!(store.access().list_tokens().await.unwrap(), [rotated]);
    assert_eq!(store.access().revoke_token("ci".into()).await, Ok(true));
    assert_eq!(store.access().list_tokens().await.unwrap(), []);
}

pub(crate) async fn the_restrictions_of_a_token_outlive_its_rotation<D: TestDatabase>() {
    let (store, home) = new_store::<D>();
    let restrictions = TokenRestrictions {
        apis: Some(vec![StandardApi::OpenAi, StandardApi::A2a]),
        agents: Some(vec!["main".into(), "ärger 'x'".into()]),
        models: Some(vec!["openai/*".into()]),
        daily_cost: Some(0.1),
    };
    let row = TokenRow { restrictions, ..token_row("ci", AccessLevel::Write) };
    let made = StoredToken { row, sha256: "11".into(), previous_sha256: None };
    store.access().create_token(made.clone()).await.unwrap();
    assert_eq!(store.access().list_tokens().await.unwrap(), std::slice::from_ref(&made));
    let rotated = StoredToken { sha256: "22".into(), previous_sha256: Some("11".into()), ..made };
    assert_eq!(store.access().rotate_token(rotated.clone()).await, Ok(true));
    store.close().await;
    assert_eq!(home.open().access().list_tokens().await.unwrap(), [rotated]);
}

pub(crate) async fn names_of_tokens_are_unique_and_a_revoked_token_is_gone<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let token = |name: &str, scope: AccessLevel, sha256: &str| StoredToken {
        row: token_row(name, scope),
        sha256: sha256.into(),
        previous_sha256: None,
    };
    let (ci, bot) = (token("ci", AccessLevel::Write, "11"), token("bot", AccessLevel::Read, "22"));
    store.access().create_token(ci.clone()).await.unwrap();
    store.access().create_token(bot.clone()).await.unwrap();
    let taken = store.access().create_token(token("ci", AccessLevel::Admin, "33")).await;
    assert_eq!(taken, Err(StoreError::NameTaken("ci".into())));
    assert_eq!(store.access().list_tokens().await.unwrap(), [bot.clone(), ci]);
    assert_eq!(store.access().revoke_token("ci".into()).await, Ok(true));
    assert_eq!(store.access().revoke_token("ci".into()).await, Ok(false));
    assert_eq!(store.access().list_tokens().await.unwrap(), [bot]);
}
