//! Tests of access control: tokens with a real store, codes and cookies with a paused clock.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use quell_protocol::api::{TokenScope, TokenScopes};
use quell_store::memory::MemoryDatabase;
use secrecy::SecretString;
use tempfile::TempDir;

use super::*;

struct AccessFixture {
    access: AccessControl,
    store: Store,
    home: TempDir,
}

impl AccessFixture {
    async fn new() -> Self {
        Self::in_home(tempfile::tempdir().unwrap()).await
    }

    async fn in_home(home: TempDir) -> Self {
        let store = Store::open(home.path(), "quell.db").unwrap();
        let access =
            AccessControl::open(&home.path().join("token"), store.clone(), Clock::start(), None).await.unwrap();
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

    async fn sign_in_with_code(&self, code: &str) -> Option<BrowserSignIn> {
        self.access.sign_in_with_code(code).await.unwrap()
    }

    fn owner_of(&self, browser: &BrowserSignIn) -> Option<(Principal, AccessLevel)> {
        self.access.resolve_credential(&Credential::browser(browser.secrets()))
    }

    /// Signs a browser in with this token.
    async fn sign_in(&self, token: &str) -> BrowserSignIn {
        self.access.sign_in_with_token(token).await.unwrap().unwrap()
    }

    async fn sign_out(&self, browser: &BrowserSignIn) {
        self.access.sign_out(browser.secrets()).await.unwrap();
    }

    async fn create_token(&self, name: &str, level: AccessLevel) -> Result<SecretString, AccessError> {
        self.access.create_token(TokenSpec::new(name, level)).await.map(|made| made.token.into())
    }
}

fn identity(name: &str, scope: AccessLevel) -> Option<(Principal, AccessLevel)> {
    Some((Principal::parse(name).unwrap(), scope))
}

#[tokio::test]
async fn the_first_start_makes_a_private_admin_token_and_later_ones_keep_it() {
    let fixture = AccessFixture::new().await;
    let line = fs::read_to_string(fixture.token_file()).unwrap();
    let token = line.strip_suffix('\n').unwrap().to_string();
    assert!(token.starts_with("quell_") && token.len() == 6 + 64, "{token}");
    assert_eq!(fs::metadata(fixture.token_file()).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!fixture.home.path().join("token.new").exists());
    assert_eq!(fixture.access.authenticate(&token), identity("admin", AccessLevel::Admin));
    let fixture = fixture.restarted().await;
    assert_eq!(fs::read_to_string(fixture.token_file()).unwrap(), line);
    assert_eq!(fixture.access.authenticate(&token), identity("admin", AccessLevel::Admin));
}

#[tokio::test]
async fn an_invalid_token_authenticates_no_one() {
    let fixture = AccessFixture::new().await;
    let token = fs::read_to_string(fixture.token_file()).unwrap();
    for wrong in ["", " ", "quell_", "admin", token.as_str(), &token.trim().to_uppercase(), &token[..69]] {
        assert_eq!(fixture.access.authenticate(wrong), None, "{wrong:?}");
    }
    assert!(fixture.access.authenticate(token.trim()).is_some());
}

#[tokio::test]
async fn a_token_file_of_no_use_is_refused_with_its_remedy() {
    let home = tempfile::tempdir().unwrap();
    let store = MemoryDatabase::default().open();
    let file = home.path().join("token");
    let long = "x".repeat(5000);
    for (content, word) in
        [("", "empty"), ("\n \n", "empty"), ("two words", "one line"), ("a\nb", "one line"), (&long, "too long")]
    {
        fs::write(&file, content).unwrap();
        let error = AccessControl::open(&file, store.clone(), Clock::start(), None).await.unwrap_err();
        assert!(matches!(error, AccessError::TokenFile { .. }), "{error:?}");
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), content, "the file was changed");
    }
    fs::write(&file, "my-own-token\n").unwrap();
    let access = AccessControl::open(&file, store, Clock::start(), None).await.unwrap();
    assert_eq!(access.authenticate("my-own-token"), identity("admin", AccessLevel::Admin));
}

#[tokio::test]
async fn a_draft_that_a_crash_left_is_in_nobodys_way() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("token.new"), "half a tok").unwrap();
    let fixture = AccessFixture::in_home(home).await;
    assert!(fs::read_to_string(fixture.token_file()).unwrap().starts_with("quell_"));
    assert_eq!(fs::metadata(fixture.token_file()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_token_works_at_once_survives_a_restart_and_is_stored_as_a_hash() {
    let fixture = AccessFixture::new().await;
    let secret = fixture.create_token("ci", AccessLevel::Write).await.unwrap();
    let secret = secret.expose_secret();
    assert_eq!(fixture.access.authenticate(secret), identity("ci", AccessLevel::Write));
    let fixture = fixture.restarted().await;
    assert_eq!(fixture.access.authenticate(secret), identity("ci", AccessLevel::Write));
    let rows = fixture.access.list_tokens().await.unwrap();
    assert_eq!(rows.iter().map(|row| (row.name.as_str(), row.scope)).collect::<Vec<_>>(), [("ci", AccessLevel::Write)]);
    fixture.store.close().await;
    for entry in fs::read_dir(fixture.home.path()).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        let holds = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
        assert!(!holds(secret.as_bytes()) && !holds(&secret.as_bytes()[6..]), "the secret is on the disk");
    }
}

#[tokio::test]
async fn a_revoked_token_stops_working_at_once_and_for_good() {
    let fixture = AccessFixture::new().await;
    let kept = fixture.create_token("kept", AccessLevel::Read).await.unwrap();
    let revoked = fixture.create_token("bot", AccessLevel::Read).await.unwrap();
    let cookie = fixture.sign_in(revoked.expose_secret()).await;
    assert_eq!(fixture.access.revoke_token("bot").await, Ok(true));
    assert_eq!(fixture.access.authenticate(revoked.expose_secret()), None);
    assert_eq!(fixture.owner_of(&cookie), None);
    assert_eq!(fixture.access.revoke_token("bot").await, Ok(false));
    let again = fixture.create_token("bot", AccessLevel::Write).await.unwrap();
    assert_eq!(fixture.access.authenticate(revoked.expose_secret()), None);
    let fixture = fixture.restarted().await;
    assert_eq!(fixture.access.authenticate(revoked.expose_secret()), None);
    assert_eq!(fixture.access.authenticate(kept.expose_secret()), identity("kept", AccessLevel::Read));
    assert_eq!(fixture.access.authenticate(again.expose_secret()), identity("bot", AccessLevel::Write));
}

#[tokio::test]
async fn a_revoked_token_is_dead_although_the_database_is() {
    let fixture = AccessFixture::new().await;
    let secret = fixture.create_token("bot", AccessLevel::Read).await.unwrap();
    fixture.store.clone().close().await;
    assert_eq!(fixture.access.revoke_token("bot").await, Err(AccessError::Store(StoreError::Closed)));
    assert_eq!(fixture.access.authenticate(secret.expose_secret()), None);
}

#[tokio::test]
async fn a_token_that_was_not_written_does_not_work() {
    let fixture = AccessFixture::new().await;
    let first = fixture.create_token("ci", AccessLevel::Read).await.unwrap();
    let taken = fixture.create_token("ci", AccessLevel::Admin).await.unwrap_err();
    assert_eq!(taken, AccessError::Store(StoreError::NameTaken("ci".into())));
    assert_eq!(fixture.access.authenticate(first.expose_secret()), identity("ci", AccessLevel::Read));
    assert_eq!(fixture.access.lock_tokens().len(), 1);
}

#[tokio::test]
async fn names_that_could_be_taken_for_somebody_else_are_refused() {
    let fixture = AccessFixture::new().await;
    for name in ["", "admin", "telegram:42", "a b", "a/b", "ü", &"x".repeat(65)] {
        let refused = fixture.create_token(name, AccessLevel::Read).await;
        assert!(matches!(refused, Err(AccessError::BadName { .. })), "{name}");
    }
    assert!(fixture.create_token(&"x".repeat(64), AccessLevel::Read).await.is_ok());
    assert!(fixture.create_token("Admin", AccessLevel::Read).await.is_ok());
}

#[tokio::test]
async fn trying_to_revoke_the_admin_signs_nobody_out() {
    let fixture = AccessFixture::new().await;
    let cookie = fixture.sign_in(&fixture.admin_token()).await;
    assert_eq!(fixture.access.revoke_token("admin").await, Ok(false));
    assert_eq!(fixture.owner_of(&cookie), identity("admin", AccessLevel::Admin));
}

#[tokio::test]
async fn a_sign_in_code_works_once_and_for_ten_minutes() {
    let fixture = AccessFixture::new().await;
    tokio::time::pause();
    let code = fixture.access.issue_login_code(LinkIssuer::Person).unwrap();
    assert!(fixture.sign_in_with_code("guess").await.is_none());
    tokio::time::advance(Duration::from_secs(600)).await;
    let signed_in = fixture.sign_in_with_code(code.expose_secret()).await.unwrap();
    assert_eq!(Some((signed_in.principal.clone(), signed_in.scope)), identity("admin", AccessLevel::Admin));
    assert_eq!(fixture.owner_of(&signed_in), identity("admin", AccessLevel::Admin));
    assert!(fixture.sign_in_with_code(code.expose_secret()).await.is_none());
    let late = fixture.access.issue_login_code(LinkIssuer::Person).unwrap();
    tokio::time::advance(Duration::from_secs(601)).await;
    assert!(fixture.sign_in_with_code(late.expose_secret()).await.is_none());
    // A code is neither a token nor a cookie.
    let code = fixture.access.issue_login_code(LinkIssuer::Person).unwrap();
    assert_eq!(fixture.access.authenticate(code.expose_secret()), None);
    let as_cookie = BrowserSecrets { cookie: code.expose_secret(), page_secret: "" };
    assert_eq!(fixture.access.resolve_credential(&Credential::browser(as_cookie)), None);
    assert!(fixture.access.sign_in_with_token(code.expose_secret()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_cookie_works_until_it_is_signed_out_or_old() {
    let fixture = AccessFixture::new().await;
    let token = fixture.create_token("anna", AccessLevel::Write).await.unwrap();
    tokio::time::pause();
    let cookie = fixture.sign_in(token.expose_secret()).await;
    let other = fixture.sign_in(token.expose_secret()).await;
    assert_eq!(fixture.owner_of(&cookie), identity("anna", AccessLevel::Write));
    fixture.sign_out(&cookie).await;
    assert_eq!(fixture.owner_of(&cookie), None);
    tokio::time::advance(Duration::from_secs(30 * 86400)).await;
    assert_eq!(fixture.owner_of(&other), identity("anna", AccessLevel::Write));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(fixture.owner_of(&other), None);
}

#[tokio::test]
async fn a_restart_signs_nobody_out_who_was_not_signed_out() {
    let fixture = AccessFixture::new().await;
    let anna = fixture.create_token("anna", AccessLevel::Write).await.unwrap();
    let bot = fixture.create_token("bot", AccessLevel::Read).await.unwrap();
    let kept = fixture.sign_in(anna.expose_secret()).await;
    let left = fixture.sign_in(anna.expose_secret()).await;
    let revoked = fixture.sign_in(bot.expose_secret()).await;
    let admin = fixture.sign_in(&fixture.admin_token()).await;
    fixture.sign_out(&left).await;
    fixture.access.revoke_token("bot").await.unwrap();
    let fixture = fixture.restarted().await;
    assert_eq!(fixture.owner_of(&kept), identity("anna", AccessLevel::Write));
    assert_eq!(fixture.owner_of(&admin), identity("admin", AccessLevel::Admin));
    assert_eq!(fixture.owner_of(&left), None);
    assert_eq!(fixture.owner_of(&revoked), None);
    // A new admin token invalidates the cookies of the old one.
    fs::remove_file(fixture.token_file()).unwrap();
    let fixture = fixture.restarted().await;
    assert_eq!(fixture.owner_of(&admin), None);
    assert_eq!(fixture.owner_of(&kept), identity("anna", AccessLevel::Write));
}

#[tokio::test]
async fn no_token_signs_the_browsers_of_another_out() {
    let fixture = AccessFixture::new().await;
    let admin = fixture.sign_in(&fixture.admin_token()).await;
    let reader = fixture.create_token("reader", AccessLevel::Read).await.unwrap();
    let mut last = fixture.sign_in(reader.expose_secret()).await;
    for _ in 1..40 {
        last = fixture.sign_in(reader.expose_secret()).await;
    }
    assert_eq!(fixture.owner_of(&admin), identity("admin", AccessLevel::Admin));
    assert_eq!(fixture.owner_of(&last), identity("reader", AccessLevel::Read));
    assert_eq!(fixture.store.access().list_valid_cookies(0, 1000).await.unwrap().len(), 33);
    let fixture = fixture.restarted().await;
    assert_eq!(fixture.owner_of(&admin), identity("admin", AccessLevel::Admin));
}

#[tokio::test]
async fn credentials_are_checked_again_and_revocations_announced() {
    let fixture = AccessFixture::new().await;
    let token = fixture.create_token("anna", AccessLevel::Write).await.unwrap();
    let cookie = fixture.sign_in(token.expose_secret()).await;
    let (by_token, by_cookie) = (Credential::token(token.expose_secret()), Credential::browser(cookie.secrets()));
    assert_eq!(fixture.access.resolve_credential(&by_token), identity("anna", AccessLevel::Write));
    assert_eq!(fixture.access.resolve_credential(&by_cookie), identity("anna", AccessLevel::Write));
    let secrets = cookie.secrets();
    for no_token in [secrets.cookie, secrets.page_secret] {
        assert_eq!(fixture.access.resolve_credential(&Credential::token(no_token)), None, "a cookie is no token");
    }
    let other = fixture.sign_in(token.expose_secret()).await;
    for page_secret in ["", "wrong", other.secrets().page_secret] {
        let stolen = Credential::browser(BrowserSecrets { page_secret, ..secrets });
        assert_eq!(fixture.access.resolve_credential(&stolen), None, "a cookie without the secret of its page");
        assert!(!fixture.access.is_verified_person(&stolen));
    }
    let cookie_end = fixture.access.wait_credential_end(&by_cookie);
    let token_end = fixture.access.wait_credential_end(&by_token);
    let (mut cookie_end, mut token_end) = (std::pin::pin!(cookie_end), std::pin::pin!(token_end));
    assert!(futures_util::poll!(&mut cookie_end).is_pending() && futures_util::poll!(&mut token_end).is_pending());
    fixture.sign_out(&cookie).await;
    assert_eq!(cookie_end.await, CredentialRefusal::Unknown);
    assert!(futures_util::poll!(&mut token_end).is_pending());
    assert_eq!(
        (fixture.access.resolve_credential(&by_cookie), fixture.access.resolve_credential(&by_token).is_some()),
        (None, true)
    );
    fixture.access.revoke_token("anna").await.unwrap();
    assert_eq!(token_end.await, CredentialRefusal::Unknown);
    assert_eq!(fixture.access.resolve_credential(&by_token), None);
    assert!(fixture.access.cookie_name().starts_with("quell_session_"));
}

/// What happens to a secret, its cookie and whoever waits for their end.
#[tokio::test(start_paused = true)]
async fn an_expired_token_is_refused_by_name_and_ends_what_is_open() {
    let store = MemoryDatabase::default().open();
    let home = tempfile::tempdir().unwrap();
    let access = AccessControl::open(&home.path().join("token"), store, Clock::start(), None).await.unwrap();
    let lifetime = Some(Duration::from_secs(60));
    let made = access.create_token(TokenSpec { lifetime, ..TokenSpec::new("ci", AccessLevel::Write) }).await.unwrap();
    let signed_in = access.sign_in_with_token(&made.token).await.unwrap().unwrap();
    let by_cookie = Credential::browser(signed_in.secrets());
    let listed = access.list_tokens().await.unwrap();
    assert_eq!((listed[0].expires_at.clone(), made.expires_at.is_some()), (made.expires_at.clone(), true));
    let mut cookie_end = std::pin::pin!(access.wait_credential_end(&by_cookie));
    assert!(futures_util::poll!(&mut cookie_end).is_pending());
    tokio::time::advance(Duration::from_millis(59_990)).await;
    assert!(futures_util::poll!(&mut cookie_end).is_pending());
    assert_eq!(access.authenticate(&made.token), identity("ci", AccessLevel::Write));
    let has_ended = |name| access.has_token_ended(&Principal::parse(name).unwrap());
    assert!(!has_ended("ci"));
    tokio::time::advance(Duration::from_millis(20)).await;
    assert!(has_ended("ci") && !has_ended("admin") && !has_ended("irc:ann"));
    let refused = access.check_credential(&Credential::token(&made.token)).unwrap_err();
    assert!(matches!(refused, CredentialRefusal::Expired { .. }), "{refused:?}");
    assert_eq!(cookie_end.await, refused);
    let text = refused.to_string();
    assert!(text.contains("ci expired at ") && text.contains("quell token rotate ci --expires 30d"), "{text}");
    let refused = access.rotate_token("ci", RotationSpec::default()).await.unwrap_err();
    assert_eq!(refused, AccessError::Lifetime(LifetimeError::NewSecretExpired));
    let again = access.rotate_token("ci", RotationSpec { lifetime, ..RotationSpec::default() }).await.unwrap().unwrap();
    assert!(!has_ended("ci"));
    assert_eq!(access.authenticate(&again.token), identity("ci", AccessLevel::Write));
    assert_eq!(access.resolve_credential(&by_cookie), None);
}

#[tokio::test]
async fn a_rotated_token_keeps_its_rights_and_its_old_secret_ends() {
    let fixture = AccessFixture::new().await;
    let scopes = TokenScopes::Several(vec![TokenScope::Write, TokenScope::Approve]);
    let first = fixture.access.create_token(TokenSpec::new("ci", scopes)).await.unwrap();
    let rotate = |spec| fixture.access.rotate_token("ci", spec);
    let overlap = RotationSpec { overlap: Duration::from_secs(3600), lifetime: None };
    let second = rotate(overlap).await.unwrap().unwrap();
    assert_eq!(second.scopes, first.scopes);
    for token in [&first.token, &second.token] {
        assert_eq!(fixture.access.authenticate(token), identity("ci", AccessLevel::Write));
    }
    let fixture = fixture.restarted().await;
    assert_eq!(fixture.access.authenticate(&first.token), identity("ci", AccessLevel::Write), "the overlap goes on");
    let third = fixture.access.rotate_token("ci", RotationSpec::default()).await.unwrap().unwrap();
    let refusal =
        |fixture: &AccessFixture, token: &str| fixture.access.check_credential(&Credential::token(token)).err();
    assert_eq!(refusal(&fixture, &first.token), Some(CredentialRefusal::Unknown), "only the last secret overlaps");
    let replaced = refusal(&fixture, &second.token).unwrap();
    assert!(matches!(&replaced, CredentialRefusal::Replaced { principal, .. } if principal.as_str() == "ci"));
    let fixture = fixture.restarted().await;
    assert_eq!(refusal(&fixture, &second.token), Some(replaced));
    let (principal, level) = fixture.access.authenticate(&third.token).unwrap();
    assert!(fixture.access.grants_of(&principal, level).approve);
    assert_eq!(fixture.access.rotate_token("nobody", RotationSpec::default()).await.unwrap(), None);
    assert_eq!(fixture.access.rotate_token("admin", RotationSpec::default()).await.unwrap(), None);
    fixture.access.revoke_token("ci").await.unwrap();
    assert_eq!(fixture.access.authenticate(&third.token), None);
    assert_eq!(refusal(&fixture, &second.token), Some(CredentialRefusal::Unknown));
}

#[tokio::test]
async fn a_rotation_that_cannot_be_stored_leaves_the_old_secret_valid() {
    let fixture = AccessFixture::new().await;
    let token = fixture.create_token("ci", AccessLevel::Read).await.unwrap();
    fixture.store.close().await;
    assert!(fixture.access.rotate_token("ci", RotationSpec::default()).await.is_err());
    assert_eq!(fixture.access.authenticate(token.expose_secret()), identity("ci", AccessLevel::Read));
}

#[tokio::test]
async fn signing_in_cannot_fill_the_memory() {
    let fixture = AccessFixture::new().await;
    tokio::time::pause();
    let first = fixture.access.issue_login_code(LinkIssuer::Person).unwrap();
    for _ in 0..1024 {
        tokio::time::advance(Duration::from_millis(1)).await;
        fixture.access.issue_login_code(LinkIssuer::Person).unwrap();
    }
    let last = fixture.access.issue_login_code(LinkIssuer::Person).unwrap();
    assert!(fixture.sign_in_with_code(first.expose_secret()).await.is_none());
    assert!(fixture.sign_in_with_code(last.expose_secret()).await.is_some());
}

#[test]
fn scopes_say_what_a_caller_may() {
    let caller = |scope| Caller {
        principal: Principal::parse("anna").unwrap(),
        scope,
        grants: Grants::for_level(scope),
        key: quell_kernel::api_key::ApiKey::default(),
        verified_person: false,
        surface: Surface::Http,
        origin: RequestOrigin::internal(),
    };
    let rights = |scope| (caller(scope).may_write(), caller(scope).is_admin(), caller(scope).who().admin);
    assert_eq!(rights(AccessLevel::Read), (false, false, false));
    assert_eq!(rights(AccessLevel::Write), (true, false, false));
    assert_eq!(rights(AccessLevel::Admin), (true, true, true));
    assert_eq!(caller(AccessLevel::Read).who().principal.as_str(), "anna");
}
