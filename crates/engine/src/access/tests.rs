//! Tests of access: tokens against a real store, the page's codes and cookies against a clock that is held still.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use tempfile::TempDir;

use super::*;

struct House {
    access: Access,
    store: Store,
    home: TempDir,
}

impl House {
    async fn new() -> Self {
        Self::in_home(tempfile::tempdir().unwrap()).await
    }

    async fn in_home(home: TempDir) -> Self {
        let store = Store::open(home.path(), "quell.db").unwrap();
        let access = Access::open(&home.path().join("token"), store.clone(), Clock::start()).await.unwrap();
        Self { access, store, home }
    }

    async fn restarted(self) -> Self {
        self.store.close().await;
        Self::in_home(self.home).await
    }

    fn token_file(&self) -> PathBuf {
        self.home.path().join("token")
    }

    fn admin_token(&self) -> String {
        fs::read_to_string(self.token_file()).unwrap().trim().to_owned()
    }

    async fn by_link(&self, code: &str) -> Option<SignedIn> {
        self.access.sign_in_by_link(code).await.unwrap()
    }

    fn cookie(&self, value: &str) -> Option<(Principal, Scope)> {
        self.access.owner(&Credential::cookie(value))
    }

    /// The cookie of a browser that showed this token.
    async fn signed_in(&self, token: &str) -> String {
        self.access.sign_in(token).await.unwrap().unwrap().cookie.expose_secret().to_owned()
    }
}

fn named(name: &str, scope: Scope) -> Option<(Principal, Scope)> {
    Some((Principal::parse(name).unwrap(), scope))
}

#[tokio::test]
async fn the_first_start_makes_a_private_admin_token_and_later_ones_keep_it() {
    let house = House::new().await;
    let line = fs::read_to_string(house.token_file()).unwrap();
    let token = line.strip_suffix('\n').unwrap().to_string();
    assert!(token.starts_with("quell_") && token.len() == 6 + 64, "{token}");
    assert_eq!(fs::metadata(house.token_file()).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!house.home.path().join("token.new").exists());
    assert_eq!(house.access.authenticate(&token), named("admin", Scope::Admin));
    let house = house.restarted().await;
    assert_eq!(fs::read_to_string(house.token_file()).unwrap(), line);
    assert_eq!(house.access.authenticate(&token), named("admin", Scope::Admin));
}

#[tokio::test]
async fn what_is_no_token_is_nobody() {
    let house = House::new().await;
    let token = fs::read_to_string(house.token_file()).unwrap();
    for wrong in ["", " ", "quell_", "admin", token.as_str(), &token.trim().to_uppercase(), &token[..69]] {
        assert_eq!(house.access.authenticate(wrong), None, "{wrong:?}");
    }
    assert!(house.access.authenticate(token.trim()).is_some());
}

#[tokio::test]
async fn a_token_file_of_no_use_is_refused_with_its_remedy() {
    let store_home = tempfile::tempdir().unwrap();
    let store = Store::open(store_home.path(), "quell.db").unwrap();
    let file = store_home.path().join("token");
    let long = "x".repeat(5000);
    for (content, word) in
        [("", "empty"), ("\n \n", "empty"), ("two words", "one line"), ("a\nb", "one line"), (&long, "too long")]
    {
        fs::write(&file, content).unwrap();
        let error = Access::open(&file, store.clone(), Clock::start()).await.unwrap_err();
        assert!(matches!(error, AccessError::TokenFile { .. }), "{error:?}");
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), content, "the file was changed");
    }
    fs::write(&file, "my-own-token\n").unwrap();
    let access = Access::open(&file, store, Clock::start()).await.unwrap();
    assert_eq!(access.authenticate("my-own-token"), named("admin", Scope::Admin));
}

#[tokio::test]
async fn a_draft_that_a_crash_left_is_in_nobodys_way() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("token.new"), "half a tok").unwrap();
    let house = House::in_home(home).await;
    assert!(fs::read_to_string(house.token_file()).unwrap().starts_with("quell_"));
    assert_eq!(fs::metadata(house.token_file()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_token_works_at_once_survives_a_restart_and_is_stored_as_a_hash() {
    let house = House::new().await;
    let secret = house.access.create_token("ci", Scope::Write).await.unwrap();
    let secret = secret.expose_secret();
    assert_eq!(house.access.authenticate(secret), named("ci", Scope::Write));
    let house = house.restarted().await;
    assert_eq!(house.access.authenticate(secret), named("ci", Scope::Write));
    let rows = house.access.list_tokens().await.unwrap();
    assert_eq!(rows.iter().map(|row| (row.name.as_str(), row.scope)).collect::<Vec<_>>(), [("ci", Scope::Write)]);
    house.store.close().await;
    for entry in fs::read_dir(house.home.path()).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        let holds = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        assert!(!holds(secret.as_bytes()) && !holds(&secret.as_bytes()[6..]), "the secret is on the disk");
    }
}

#[tokio::test]
async fn a_revoked_token_stops_working_at_once_and_for_good() {
    let house = House::new().await;
    let kept = house.access.create_token("kept", Scope::Read).await.unwrap();
    let revoked = house.access.create_token("bot", Scope::Read).await.unwrap();
    let cookie = house.signed_in(revoked.expose_secret()).await;
    assert_eq!(house.access.revoke_token("bot").await, Ok(true));
    assert_eq!(house.access.authenticate(revoked.expose_secret()), None);
    assert_eq!(house.cookie(&cookie), None);
    assert_eq!(house.access.revoke_token("bot").await, Ok(false));
    let again = house.access.create_token("bot", Scope::Write).await.unwrap();
    assert_eq!(house.access.authenticate(revoked.expose_secret()), None);
    let house = house.restarted().await;
    assert_eq!(house.access.authenticate(revoked.expose_secret()), None);
    assert_eq!(house.access.authenticate(kept.expose_secret()), named("kept", Scope::Read));
    assert_eq!(house.access.authenticate(again.expose_secret()), named("bot", Scope::Write));
}

#[tokio::test]
async fn a_revoked_token_is_dead_although_the_database_is() {
    let house = House::new().await;
    let secret = house.access.create_token("bot", Scope::Read).await.unwrap();
    house.store.clone().close().await;
    assert_eq!(house.access.revoke_token("bot").await, Err(AccessError::Store(StoreError::Closed)));
    assert_eq!(house.access.authenticate(secret.expose_secret()), None);
}

#[tokio::test]
async fn a_token_that_was_not_written_does_not_work() {
    let house = House::new().await;
    let first = house.access.create_token("ci", Scope::Read).await.unwrap();
    let taken = house.access.create_token("ci", Scope::Admin).await.unwrap_err();
    assert_eq!(taken, AccessError::Store(StoreError::NameTaken("ci".into())));
    assert_eq!(house.access.authenticate(first.expose_secret()), named("ci", Scope::Read));
    assert_eq!(house.access.tokens().len(), 1);
}

#[tokio::test]
async fn names_that_could_be_taken_for_somebody_else_are_refused() {
    let house = House::new().await;
    for name in ["", "admin", "telegram:42", "a b", "a/b", "ü", &"x".repeat(65)] {
        let refused = house.access.create_token(name, Scope::Read).await;
        assert!(matches!(refused, Err(AccessError::BadName { .. })), "{name}");
    }
    assert!(house.access.create_token(&"x".repeat(64), Scope::Read).await.is_ok());
    assert!(house.access.create_token("Admin", Scope::Read).await.is_ok());
}

#[tokio::test]
async fn trying_to_revoke_the_admin_signs_nobody_out() {
    let house = House::new().await;
    let cookie = house.signed_in(&house.admin_token()).await;
    assert_eq!(house.access.revoke_token("admin").await, Ok(false));
    assert_eq!(house.cookie(&cookie), named("admin", Scope::Admin));
}

#[tokio::test]
async fn a_sign_in_code_works_once_and_for_ten_minutes() {
    let house = House::new().await;
    tokio::time::pause();
    let code = house.access.issue_link().unwrap();
    assert!(house.by_link("guess").await.is_none());
    tokio::time::advance(Duration::from_secs(600)).await;
    let signed_in = house.by_link(code.expose_secret()).await.unwrap();
    assert_eq!(Some((signed_in.principal, signed_in.scope)), named("admin", Scope::Admin));
    assert_eq!(house.cookie(signed_in.cookie.expose_secret()), named("admin", Scope::Admin));
    assert!(house.by_link(code.expose_secret()).await.is_none());
    let late = house.access.issue_link().unwrap();
    tokio::time::advance(Duration::from_secs(601)).await;
    assert!(house.by_link(late.expose_secret()).await.is_none());
    // Neither a code nor a cookie is a token, nor the other.
    let code = house.access.issue_link().unwrap();
    assert_eq!(house.access.authenticate(code.expose_secret()), None);
    assert_eq!(house.cookie(code.expose_secret()), None);
    assert!(house.access.sign_in(code.expose_secret()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_cookie_works_until_it_is_signed_out_or_old() {
    let house = House::new().await;
    let token = house.access.create_token("anna", Scope::Write).await.unwrap();
    tokio::time::pause();
    let cookie = house.signed_in(token.expose_secret()).await;
    let other = house.signed_in(token.expose_secret()).await;
    assert_eq!(house.cookie(&cookie), named("anna", Scope::Write));
    house.access.sign_out(&cookie).await.unwrap();
    assert_eq!(house.cookie(&cookie), None);
    tokio::time::advance(Duration::from_secs(30 * 86400)).await;
    assert_eq!(house.cookie(&other), named("anna", Scope::Write));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(house.cookie(&other), None);
}

#[tokio::test]
async fn a_restart_signs_nobody_out_who_was_not_signed_out() {
    let house = House::new().await;
    let anna = house.access.create_token("anna", Scope::Write).await.unwrap();
    let bot = house.access.create_token("bot", Scope::Read).await.unwrap();
    let kept = house.signed_in(anna.expose_secret()).await;
    let left = house.signed_in(anna.expose_secret()).await;
    let revoked = house.signed_in(bot.expose_secret()).await;
    let admin = house.signed_in(&house.admin_token()).await;
    house.access.sign_out(&left).await.unwrap();
    house.access.revoke_token("bot").await.unwrap();
    let house = house.restarted().await;
    assert_eq!(house.cookie(&kept), named("anna", Scope::Write));
    assert_eq!(house.cookie(&admin), named("admin", Scope::Admin));
    assert_eq!(house.cookie(&left), None);
    assert_eq!(house.cookie(&revoked), None);
    // A new admin token is a new admin: who came in with the old one has to come in again.
    fs::remove_file(house.token_file()).unwrap();
    let house = house.restarted().await;
    assert_eq!(house.cookie(&admin), None);
    assert_eq!(house.cookie(&kept), named("anna", Scope::Write));
}

#[tokio::test]
async fn no_token_signs_the_browsers_of_another_out() {
    let house = House::new().await;
    let admin = house.signed_in(&house.admin_token()).await;
    let reader = house.access.create_token("reader", Scope::Read).await.unwrap();
    let mut last = String::new();
    for _ in 0..40 {
        last = house.signed_in(reader.expose_secret()).await;
    }
    assert_eq!(house.cookie(&admin), named("admin", Scope::Admin));
    assert_eq!(house.cookie(&last), named("reader", Scope::Read));
    assert_eq!(house.store.good_cookies(0, 1000).await.unwrap().len(), 33);
    let house = house.restarted().await;
    assert_eq!(house.cookie(&admin), named("admin", Scope::Admin));
}

#[tokio::test]
async fn what_was_shown_can_be_asked_for_again_and_turns_are_told() {
    let house = House::new().await;
    let token = house.access.create_token("anna", Scope::Write).await.unwrap();
    let cookie = house.signed_in(token.expose_secret()).await;
    let (by_token, by_cookie) = (Credential::token(token.expose_secret()), Credential::cookie(&cookie));
    assert_eq!(house.access.owner(&by_token), named("anna", Scope::Write));
    assert_eq!(house.access.owner(&by_cookie), named("anna", Scope::Write));
    assert_eq!(house.access.owner(&Credential::token(&cookie)), None, "a cookie is no token");
    let mut withdrawals = house.access.withdrawals();
    house.access.sign_out(&cookie).await.unwrap();
    withdrawals.changed().await.unwrap();
    assert_eq!((house.access.owner(&by_cookie), house.access.owner(&by_token).is_some()), (None, true));
    house.access.revoke_token("anna").await.unwrap();
    withdrawals.changed().await.unwrap();
    assert_eq!(house.access.owner(&by_token), None);
    assert!(house.access.cookie_name().starts_with("quell_session_"));
}

#[tokio::test]
async fn signing_in_cannot_fill_the_memory() {
    let house = House::new().await;
    tokio::time::pause();
    let first = house.access.issue_link().unwrap();
    for _ in 0..1024 {
        tokio::time::advance(Duration::from_millis(1)).await;
        house.access.issue_link().unwrap();
    }
    let last = house.access.issue_link().unwrap();
    assert!(house.by_link(first.expose_secret()).await.is_none());
    assert!(house.by_link(last.expose_secret()).await.is_some());
}

#[test]
fn scopes_say_what_a_caller_may() {
    let caller = |scope| Caller {
        principal: Principal::parse("anna").unwrap(),
        scope,
        grants: Grants::of(scope),
        surface: Surface::Http,
        origin: Origin::inside(),
    };
    let rights = |scope| (caller(scope).may_write(), caller(scope).is_admin(), caller(scope).who().admin);
    assert_eq!(rights(Scope::Read), (false, false, false));
    assert_eq!(rights(Scope::Write), (true, false, false));
    assert_eq!(rights(Scope::Admin), (true, true, true));
    assert_eq!(caller(Scope::Read).who().principal.as_str(), "anna");
}
