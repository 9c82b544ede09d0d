//! `quell store copy` with the real binary and a real PostgreSQL server.

use quell_testkit::postgres::TestPostgres;

use crate::prelude::*;

fn on_server(server: &TestPostgres, model: &ScriptedModel) -> DaemonHome {
    DaemonHome::new(&format!("[store]\nurl = \"{}\"\n{}", server.url(), config_toml(model, "")))
}

async fn complete_run(model: &ScriptedModel, api: &TestApiClient, text: &str) -> String {
    model.script(ScriptedResponse::text("an answer \u{1f980}"));
    let id = api.send_message("s", text).await;
    assert_eq!(api.wait_ended(&id).await["verdict"]["kind"], "completed");
    id
}

async fn export(api: &TestApiClient) -> String {
    api.request(Method::GET, "/api/sessions/s/export").send().await.unwrap().text().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: PostgreSQL"]
async fn a_copy_to_postgres_goes_on_there_and_comes_back() {
    let Some(server) = TestPostgres::start() else { return };
    let (model, daemon) = start_daemon("").await;
    let first = complete_run(&model, &daemon.api(), "the first").await;
    let (receipt, lines) = (daemon.api().run_view(&first).await["receipt"].clone(), export(&daemon.api()).await);
    let in_use = run_cli(daemon.home(), &["store", "copy", "sqlite:", &server.url()]);
    assert!(in_use.code == 1 && in_use.err.contains("another quell"), "{in_use:?}");
    daemon.stop().await;

    let to = run_cli(daemon.home(), &["store", "copy", "sqlite:", &server.url()]);
    assert!(to.code == 0 && to.out.contains("rows copied and checked") && to.out.contains("session.key"), "{to:?}");
    let again = run_cli(daemon.home(), &["store", "copy", "sqlite:", &server.url()]);
    assert!(again.code == 1 && again.err.contains("already has rows"), "{again:?}");
    let there = on_server(&server, &model).start(quell_exe()).await;
    assert_eq!(there.api().run_view(&first).await["receipt"], receipt);
    assert_eq!(export(&there.api()).await, lines);
    let second = complete_run(&model, &there.api(), "the second").await;
    let seen = messages_as_text(model.recorded_requests().last().unwrap().messages());
    assert!(seen.contains("the first") && seen.contains("the second"), "{seen}");
    let lines = export(&there.api()).await;
    let back = DaemonHome::new(&config_toml(&model, ""));
    let in_use = run_cli(&back, &["store", "copy", &server.url(), "sqlite:"]);
    assert!(in_use.code == 1 && in_use.err.contains("a quell is connected"), "{in_use:?}");
    there.stop().await;

    let from = run_cli(&back, &["store", "copy", &server.url(), "sqlite:", "--json"]);
    let result: Value = serde_json::from_str(&from.out).unwrap();
    assert_fields(&result, &json!({"checked": true, "tables": {"runs": 2, "history": 2, "sessions": 1}}));
    let here = back.start(quell_exe()).await;
    assert_eq!(export(&here.api()).await, lines);
    let _ = here.api().run_view(&second).await;
    complete_run(&model, &here.api(), "the third").await;
    model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full: PostgreSQL"]
async fn a_copy_reads_the_password_of_postgres_from_a_file_or_a_variable() {
    let Some(mut server) = TestPostgres::start() else { return };
    let (model, daemon) = start_daemon("").await;
    complete_run(&model, &daemon.api(), "the first").await;
    daemon.stop().await;
    server.sql("CREATE ROLE quell LOGIN PASSWORD 'right'");
    for database in ["one", "two"] {
        server.sql(&format!("CREATE DATABASE {database} OWNER quell"));
    }
    let rules = "'host all quell 127.0.0.1/32 scram-sha-256', 'host all all 127.0.0.1/32 trust'";
    server.sql(&format!("COPY (SELECT unnest(ARRAY[{rules}])) TO PROGRAM 'cat > pg_hba.conf'"));
    server.start_again();
    let url = |database: &str| format!("postgres://quell@127.0.0.1:{}/{database}", server.port());
    let copy = |database: &str, variable: &str, more: &[&str]| {
        let mut command = daemon.home().command(quell_exe());
        command.env("PGPASSWORD", variable).args(["store", "copy", "sqlite:", &url(database)]).args(more);
        run_to_exit(&mut command)
    };
    let refused = copy("one", "wrong", &[]);
    assert!(refused.code == 1 && refused.err.contains("password authentication failed"), "{refused:?}");
    assert!(!refused.err.contains("wrong"), "{refused:?}");
    assert_eq!(copy("one", "right", &[]).code, 0);
    let file = daemon.home().root_dir().join("password");
    std::fs::write(&file, "right\n").unwrap();
    let with_file = copy("two", "wrong", &["--password-file", file.to_str().unwrap()]);
    assert_eq!(with_file.code, 0, "{with_file:?}");
}

#[test]
fn databases_that_cannot_be_copied_say_what_to_name() {
    let home = DaemonHome::new("");
    let empty = tempfile::tempdir().unwrap();
    let (absent, file) = (format!("sqlite:{}", empty.path().display()), empty.path().join("password"));
    let cases: [(&[&str], &str); 4] = [
        (&["quell.db", "sqlite:"], "sqlite:DIRECTORY or postgres://USER@HOST/DATABASE"),
        (&["sqlite:", "sqlite:"], "the same database"),
        (&[&absent, "sqlite:"], "there is no database"),
        (&["postgres://quell@127.0.0.1:1/quell", "sqlite:", "--password-file", file.to_str().unwrap()], "password"),
    ];
    for (args, problem) in cases {
        let refused = run_cli(&home, &[&["store", "copy"], args].concat());
        assert!(refused.code == 1 && refused.err.contains(problem), "{args:?}: {refused:?}");
    }
}
