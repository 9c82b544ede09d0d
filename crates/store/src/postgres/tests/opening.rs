//! Databases and settings that cannot be used, TLS, passwords.

use std::fs;

use super::*;
use crate::StoreError;
use crate::conformance::accept_run;

/// A shell command that makes `server.crt`, which is its own authority, and its key.
const MAKE_CERTIFICATE: &str = "\
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test \
-addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE -keyout server.key -out server.crt \
&& chmod 600 server.key";

fn open(settings: &PostgresSettings) -> Result<Store, StoreError> {
    let home = tempfile::tempdir().unwrap();
    PostgresStore::open(settings, home.path()).map(Store::new)
}

/// The message of the error with which a store with these settings does not open.
fn refusal(settings: &PostgresSettings) -> String {
    open(settings).unwrap_err().to_string()
}

fn with_url(url: &str) -> PostgresSettings {
    PostgresSettings { url: url.to_owned(), password: None, tls_ca_file: None, cluster: None }
}

/// Replaces the rules for logins, and starts the server again.
fn set_login_rules(server: &mut TestPostgres, rules: &str) {
    server.sql(&format!("COPY (SELECT unnest(ARRAY[{rules}])) TO PROGRAM 'cat > pg_hba.conf'"));
    server.start_again();
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_database_of_another_program_is_refused_and_left_alone() {
    let Some(server) = TestPostgres::start() else { return };
    server.sql("CREATE TABLE theirs (n int)");
    assert!(refusal(&settings(&server)).contains("tables of another program"));
    assert_eq!(server.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"), "theirs");
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_newer_schema_is_refused_and_left_alone() {
    let Some(server) = TestPostgres::start() else { return };
    open(&settings(&server)).unwrap().close().await;
    server.sql("UPDATE quell_schema SET version = 99");
    let refused = open(&settings(&server)).unwrap_err();
    assert_eq!(refused, StoreError::NewerServerSchema { found: 99, known: 12 });
    assert!(refused.to_string().contains("upgrade quell"), "{refused}");
    assert_eq!(server.sql("SELECT version FROM quell_schema"), "99");
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn two_daemons_that_start_at_once_make_one_schema() {
    let Some(server) = TestPostgres::start() else { return };
    let starts = (0..4).map(|_| {
        let settings = settings(&server);
        std::thread::spawn(move || open(&settings).map(drop))
    });
    let starts: Vec<_> = starts.collect();
    for start in starts {
        assert_eq!(start.join().unwrap(), Ok(()));
    }
    assert_eq!(server.sql("SELECT version, (SELECT number FROM boot) FROM quell_schema"), "12|4");
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_database_that_cannot_hold_all_characters_is_refused() {
    let Some(server) = TestPostgres::start() else { return };
    server.sql("CREATE DATABASE narrow TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'");
    let refused = refusal(&with_url(&format!("postgres://postgres@127.0.0.1:{}/narrow", server.port())));
    assert!(refused.contains("LATIN1") && refused.contains("createdb --encoding=UTF8"), "{refused}");
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn settings_that_lead_nowhere_say_what_to_do() {
    let Some(mut server) = TestPostgres::start() else { return };
    assert!(refusal(&with_url("postgres://host:port:port/x")).contains("the URL of the database cannot be read"));
    let missing = refusal(&with_url(&format!("{}_missing", server.url())));
    assert!(missing.contains("postgres_missing") && missing.contains("createdb"), "{missing}");
    let ca_file = PostgresSettings { tls_ca_file: Some("/nowhere/ca.pem".into()), ..settings(&server) };
    assert!(refusal(&ca_file).contains("/nowhere/ca.pem"));
    server.kill();
    let down = refusal(&settings(&server));
    assert!(down.contains("PostgreSQL cannot be reached") && down.contains("refused"), "{down}");
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_wrong_password_is_named_and_the_right_one_works() {
    let Some(mut server) = TestPostgres::start() else { return };
    server.sql("CREATE ROLE quell LOGIN PASSWORD 'right'");
    server.sql("CREATE DATABASE quell OWNER quell");
    set_login_rules(&mut server, "'host all quell 127.0.0.1/32 scram-sha-256', 'host all all 127.0.0.1/32 trust'");
    let url = format!("postgres://quell:ignored@127.0.0.1:{}/quell", server.port());
    let with_password = |password: &str| PostgresSettings { password: Some(password.to_owned()), ..with_url(&url) };
    let refused = refusal(&with_password("wrong"));
    assert!(refused.contains("password authentication failed") && refused.contains("check the user"), "{refused}");
    assert!(!refused.contains("wrong") && !format!("{:?}", with_password("secret")).contains("secret"), "{refused}");
    accept_run(&open(&with_password("right")).unwrap(), "r", "s").await;
}

#[tokio::test]
#[ignore = "full: PostgreSQL"]
async fn a_server_is_known_by_its_certificate() {
    let Some(mut server) = TestPostgres::start() else { return };
    server.sql(&format!("COPY (SELECT '') TO PROGRAM '{MAKE_CERTIFICATE}'"));
    server.sql("ALTER SYSTEM SET ssl = on");
    set_login_rules(
        &mut server,
        "'hostssl all quell 127.0.0.1/32 scram-sha-256', 'hostssl all all 127.0.0.1/32 trust',
         'hostnossl postgres postgres 127.0.0.1/32 trust'",
    );
    server.sql("CREATE ROLE quell LOGIN PASSWORD 'right'");
    server.sql("CREATE DATABASE quell OWNER quell");
    let url = format!("postgres://quell@127.0.0.1:{}/quell?sslmode=require&channel_binding=require", server.port());
    let files = tempfile::tempdir().unwrap();
    let (certificate, none) = (files.path().join("ca.pem"), files.path().join("none.pem"));
    fs::write(&certificate, server.sql("SELECT pg_read_file('server.crt')")).unwrap();
    fs::write(&none, "no certificate").unwrap();
    let password = Some("right".to_owned());
    let trusting = PostgresSettings { password, tls_ca_file: Some(certificate), ..with_url(&url) };
    let store = open(&trusting).unwrap();
    accept_run(&store, "r", "s").await;
    assert_eq!(
        server.sql("SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE datname = 'quell'"),
        "t"
    );
    store.close().await;
    let unknown = refusal(&with_url(&url));
    assert!(unknown.contains("certificate") && unknown.contains("tls_ca_file"), "{unknown}");
    assert!(refusal(&with_url(&url.replace("require", "prefer"))).contains("tls_ca_file"), "it offers TLS");
    let other_name = PostgresSettings { url: url.replace("127.0.0.1", "localhost"), ..trusting };
    assert!(refusal(&other_name).contains("certificate"), "{}", refusal(&other_name));
    assert!(refusal(&PostgresSettings { tls_ca_file: Some(none), ..with_url(&url) }).contains("no certificate"));
    assert!(refusal(&with_url(&url.replace("require", "disable"))).contains("pg_hba.conf"));
}
