//! Sign in at a server by OAuth: a person opens a URL, and the browser brings the code to a listener on loopback.

use std::io;
use std::path::Path;
use std::time::Duration;

use rmcp::transport::auth::{AuthError, AuthorizationMetadata, AuthorizationRequest, AuthorizationSession};
use secrecy::ExposeSecret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use url::{Host, Url};

use super::config::{McpConfig, ServerLocation};
use super::connect_problem::ConnectProblem;
use super::oauth::{TokenFile, TokenSource};

/// Where the authorization server sends the browser.
const CALLBACK_PATH: &str = "/callback";
/// The maximum size of the head of a request.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// How long one connection may take to send its request.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// A sign-in that waits for a person.
pub struct McpSignIn {
    session: AuthorizationSession,
    listener: TcpListener,
    file: TokenFile,
}

/// Begins a sign-in at the server `name`: finds its authorization server and registers this program there, unless the
/// configuration names a client.
///
/// # Errors
/// Why the sign-in is not possible and what to do, for people.
pub async fn start_sign_in(data_dir: &Path, name: &str, config: &McpConfig) -> Result<McpSignIn, String> {
    let url = match config.location() {
        Ok(ServerLocation::Url(url)) if config.oauth => url,
        _ => return Err(format!("[mcp.{name}] needs `url` and `oauth = true` for a sign-in")),
    };
    let describe = |problem: ConnectProblem| {
        let remedy = problem.remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
        format!("the MCP server {name}: {}{remedy}", problem.description)
    };
    let failed = |error: AuthError| describe(ConnectProblem::from_auth_error(&error));
    let file = TokenFile::of_server(data_dir, name);
    let source = TokenSource { url: url.as_str().into(), file: file.clone(), config: config.clone() };
    // waits: for a person's command, as all waits of this file; no run waits here.
    let mut manager = source.new_manager().await.map_err(failed)?;
    // waits: for the metadata of the authorization server, which the library bounds.
    let resolution = manager.resolve_metadata().await.map_err(failed)?;
    check_metadata(&resolution.metadata).map_err(describe)?;
    manager.set_metadata(resolution.metadata);
    let port = config.oauth_redirect_port.unwrap_or(0);
    let no_port = |error: io::Error| match port {
        0 => format!("no port on loopback is free: {error}"),
        port => format!("the port {port} of `oauth_redirect_port` cannot be used: {error}"),
    };
    // waits: not in practice.
    let listener = TcpListener::bind(("127.0.0.1", port)).await.map_err(no_port)?;
    let address = listener.local_addr().map_err(no_port)?;
    let mut request = AuthorizationRequest::new(format!("http://{address}{CALLBACK_PATH}"))
        .with_client_name("Quell")
        .with_initial_scope_selection();
    if let Some(client_id) = &config.oauth_client_id {
        request = request.with_preregistered_client(client_id);
    }
    if let Some(secret) = &config.oauth_client_secret {
        request = request.with_client_secret(secret.expose_secret());
    }
    // waits: for the registration, which the library bounds.
    let session = AuthorizationSession::new(manager, request).await.map_err(|(_, error)| failed(error))?;
    Ok(McpSignIn { session, listener, file })
}

/// Refuses what the library accepts of a foreign server: an address that a person must not open, and a server that does
/// not say that it supports PKCE (MCP specification 2025-11-25, authorization: such a server must be refused).
fn check_metadata(metadata: &AuthorizationMetadata) -> Result<(), ConnectProblem> {
    let methods = metadata.code_challenge_methods_supported.iter().flatten();
    if !methods.into_iter().any(|method| method == "S256") {
        return Err(ConnectProblem::from_auth_error(&AuthError::PkceUnsupported));
    }
    if !may_be_opened(&metadata.authorization_endpoint) {
        return Err(ConnectProblem::new(
            "its authorization server names an address for the sign-in that is not https",
            "check `url`: a browser would open something else than a page of that server",
        ));
    }
    Ok(())
}

/// True for a page by https, or by http on this machine.
fn may_be_opened(address: &str) -> bool {
    let Ok(url) = Url::parse(address) else { return false };
    let is_loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && is_loopback)
}

/// Deletes the tokens of the server `name`, after a refresh that is at work. Returns whether there were any.
///
/// # Errors
/// Why they cannot be deleted, for people.
pub async fn sign_out(data_dir: &Path, name: &str) -> Result<bool, String> {
    let file = TokenFile::of_server(data_dir, name);
    // waits: for a refresh of the daemon, which is bounded.
    let _lock = file.lock().await.map_err(|error| ConnectProblem::from_auth_error(&error).description)?;
    file.delete()
}

impl McpSignIn {
    /// The URL that a person has to open.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.session.auth_url
    }

    /// Waits until the browser brings the code, and stores the tokens. Other requests are answered with 404.
    ///
    /// # Errors
    /// The authorization server refused the sign-in or the code; the text is for people.
    ///
    /// # Cancel safety
    /// Safe: nothing is stored before the tokens are there.
    pub async fn finish(self) -> Result<(), String> {
        loop {
            // waits: for the browser of a person, who can end the command; so do all waits below.
            let (mut connection, _) =
                self.listener.accept().await.map_err(|error| format!("the listener on loopback failed: {error}"))?;
            // waits: at most `READ_TIMEOUT`.
            let Ok(Some(path)) = timeout(READ_TIMEOUT, read_path(&mut connection)).await else { continue };
            if path.split('?').next() != Some(CALLBACK_PATH) {
                // waits: for the same command.
                respond(&mut connection, "404 Not Found", "Nothing is here.").await;
                continue;
            }
            if !self.is_own_callback(&path) {
                // waits: for the same command.
                respond(&mut connection, "400 Bad Request", "This does not belong to the sign-in that waits here.")
                    .await;
                continue;
            }
            // waits: for the authorization server, which the library bounds.
            let outcome = self.exchange(&path).await;
            let (status, text) = match &outcome {
                Ok(()) => ("200 OK", "Signed in. You can close this page.".to_owned()),
                Err(why) => ("400 Bad Request", format!("The sign-in failed: {why}")),
            };
            // waits: for the same command.
            respond(&mut connection, status, &text).await;
            return outcome;
        }
    }

    /// True if the request has the state of this sign-in, which nobody else knows (RFC 6749, 10.12).
    fn is_own_callback(&self, path: &str) -> bool {
        let state_of = |url: &str| {
            let url = url::Url::parse(url).ok()?;
            url.query_pairs().find(|(key, _)| key == "state").map(|(_, value)| value.into_owned())
        };
        let own = state_of(&self.session.auth_url);
        own.is_some() && state_of(&format!("http://127.0.0.1{path}")) == own
    }

    async fn exchange(&self, path: &str) -> Result<(), String> {
        let url = url::Url::parse(&format!("http://127.0.0.1{path}")).map_err(|error| error.to_string())?;
        let parameter =
            |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
        if let Some(error) = parameter("error") {
            let detail = parameter("error_description").map(|text| format!(": {text}")).unwrap_or_default();
            return Err(quell_protocol::display_text::one_line(&format!("it was refused ({error}){detail}"), 300));
        }
        let failed = |error: AuthError| ConnectProblem::from_auth_error(&error).description;
        // waits: for a refresh of the daemon, which is bounded.
        let _lock = self.file.lock().await.map_err(failed)?;
        // waits: for the authorization server, which the library bounds.
        let exchanged = self.session.handle_callback_url(url.as_str()).await;
        exchanged.map(drop).map_err(failed)
    }
}

impl std::fmt::Debug for McpSignIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("McpSignIn")
    }
}

/// The path and query of a GET request; `None` for anything else.
async fn read_path(connection: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        let mut piece = [0; 1024];
        // waits: at most `READ_TIMEOUT`, in `finish`.
        let length = connection.read(&mut piece).await.ok()?;
        head.extend_from_slice(piece.get(..length)?);
        if length == 0 || head.len() > MAX_HEAD_BYTES {
            return None;
        }
    }
    let head = String::from_utf8(head).ok()?;
    let mut words = head.lines().next()?.split(' ');
    (words.next()? == "GET").then_some(())?;
    words.next().map(str::to_owned)
}

async fn respond(connection: &mut TcpStream, status: &str, text: &str) {
    let length = text.len();
    let response = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{text}"
    );
    // The browser may have left; the tokens are stored either way.
    // waits: for a person's command; no run waits here.
    let _ = connection.write_all(response.as_bytes()).await;
    // waits: as above, for a person's command.
    let _ = connection.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(endpoint: &str, methods: Option<&[&str]>) -> AuthorizationMetadata {
        serde_json::from_value(serde_json::json!({
            "authorization_endpoint": endpoint, "token_endpoint": "https://a.example/token",
            "code_challenge_methods_supported": methods,
        }))
        .unwrap()
    }

    #[test]
    fn only_pages_by_https_or_on_this_machine_are_opened() {
        let is_accepted = |endpoint: &str| check_metadata(&metadata(endpoint, Some(&["plain", "S256"]))).is_ok();
        for good in ["https://a.example/authorize", "http://127.0.0.1:8080/a", "http://[::1]/a", "http://localhost/a"] {
            assert!(is_accepted(good), "{good}");
        }
        for bad in [
            "javascript:alert(1)",
            "JavaScript:alert(1)",
            "file:///etc/passwd",
            "data:text/html,x",
            "http://a.example/authorize",
            "http://localhost.a.example/",
            "vscode://x",
            "//a.example",
            "",
        ] {
            assert!(!is_accepted(bad), "{bad}");
        }
    }

    #[test]
    fn a_server_that_does_not_say_that_it_supports_pkce_is_refused() {
        for methods in [None, Some(&[][..]), Some(&["plain"][..])] {
            let problem = check_metadata(&metadata("https://a.example", methods)).unwrap_err();
            assert!(problem.description.contains("PKCE"), "{}", problem.description);
        }
    }
}
