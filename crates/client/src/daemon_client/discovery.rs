//! Resolve the address and the token of the daemon from flags, environment or the data directory.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use quell_net::is_loopback;
use url::{Host, Url};

use super::ClientError;
use super::local_daemon::{self, DaemonProcess, LocalSocket};

/// The address file and the token file have one short line each; no more is read.
const MAX_FILE_BYTES: u64 = 4096;

/// Which daemon to connect to, and with which token.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct DaemonTarget {
    /// Address of the daemon, such as http://127.0.0.1:7171; else the local one is found
    #[arg(long, env = "QUELL_URL", global = true, value_name = "URL", help_heading = "Connection")]
    pub url: Option<String>,
    /// Token to show to the daemon; else the local admin token is read
    #[arg(
        long,
        env = "QUELL_TOKEN",
        global = true,
        value_name = "TOKEN",
        hide_env_values = true,
        help_heading = "Connection"
    )]
    pub token: Option<String>,
    /// Data directory in which a local daemon stores its address and its token. Set by the binary.
    #[arg(skip)]
    pub data_dir: Option<PathBuf>,
}

pub(super) struct DiscoveredDaemon {
    pub(super) url: Url,
    pub(super) url_origin: String,
    /// None where only stops without a token are possible.
    pub(super) token: Option<String>,
    pub(super) token_origin: String,
    /// Connect to this socket instead of the URL's host.
    pub(super) socket: Option<LocalSocket>,
    /// The daemon's process, if it is on this machine and verified.
    pub(super) process: Option<DaemonProcess>,
}

impl DaemonTarget {
    pub(super) fn discover_daemon(&self) -> Result<DiscoveredDaemon, ClientError> {
        let Some(url) = non_empty(self.url.as_deref()) else { return self.discover_local() };
        let (url, url_origin) = (parse_daemon_url(url)?, "--url or QUELL_URL".to_owned());
        let (token, token_origin, daemon) = match non_empty(self.token.as_deref()) {
            Some(token) => (token.to_owned(), EXPLICIT_TOKEN_ORIGIN.to_owned(), None),
            None => self.local_token_for(&url)?,
        };
        Ok(DiscoveredDaemon { url, url_origin, token: Some(token), token_origin, socket: None, process: daemon })
    }

    /// Finds the daemon of the data directory by its socket, else by its address after verifying the listener.
    fn discover_local(&self) -> Result<DiscoveredDaemon, ClientError> {
        let no_daemon = |tried: String| ClientError::NoDaemon { tried };
        let Some(dir) = &self.data_dir else {
            return Err(no_daemon("there is no --url, no QUELL_URL and no data directory".into()));
        };
        let found =
            local_daemon::find_daemon_socket(dir).map_err(|why| no_daemon(format!("{why}; nothing was sent there")))?;
        let named = non_empty(self.token.as_deref()).map(|token| (token.to_owned(), EXPLICIT_TOKEN_ORIGIN.to_owned()));
        if let Some((socket, daemon)) = found {
            // The URL is for display and for the page's link: requests go through the socket.
            let url = read_address_file(dir).map(|(url, _)| url);
            let url = url.or_else(|_| parse_daemon_url("http://localhost/"))?;
            let path = dir.join("token");
            let (token, token_origin) = match named.map_or_else(|| read_token_file(&path), Ok) {
                Ok((token, origin)) => (Some(token), origin),
                Err(tried) => (None, tried),
            };
            let url_origin = socket.path().display().to_string();
            return Ok(DiscoveredDaemon {
                url,
                url_origin,
                token,
                token_origin,
                socket: Some(socket),
                process: daemon,
            });
        }
        let (url, url_origin) = read_address_file(dir)?;
        let daemon = verify_listener(dir, &url)
            .map_err(|why| no_daemon(format!("{url} (from {url_origin}): {why}, so nothing was sent there")))?;
        let (token, token_origin) = match named {
            Some(named) => named,
            None => read_token_file(&dir.join("token"))
                .map_err(|tried| ClientError::NoToken { url: url.to_string(), tried })?,
        };
        Ok(DiscoveredDaemon { url, url_origin, token: Some(token), token_origin, socket: None, process: daemon })
    }

    /// Reads the local admin token for a daemon that the user named. It is sent only to the daemon of the data
    /// directory; any other daemon needs `--token`.
    fn local_token_for(&self, url: &Url) -> Result<(String, String, Option<DaemonProcess>), ClientError> {
        let no_token = |tried: String| ClientError::NoToken { url: url.to_string(), tried };
        if !is_loopback(url) {
            return Err(no_token("the token in the data directory is only for a daemon on this machine".into()));
        }
        let Some(dir) = &self.data_dir else {
            return Err(no_token("there is no --token, no QUELL_TOKEN and no data directory".into()));
        };
        let (token, origin) = read_token_file(&dir.join("token")).map_err(no_token)?;
        let daemon =
            verify_listener(dir, url).map_err(|why| no_token(format!("{why}, so the token in it was not sent")))?;
        Ok((token, origin, daemon))
    }
}

const EXPLICIT_TOKEN_ORIGIN: &str = "--token or QUELL_TOKEN";

/// Reads the address that the daemon of a data directory stored there.
fn read_address_file(dir: &Path) -> Result<(Url, String), ClientError> {
    let no_daemon = |tried: String| ClientError::NoDaemon { tried };
    let path = dir.join("address");
    let line = read_first_line(&path).map_err(|error| no_daemon(format!("{}: {error}", path.display())))?;
    let url = parse_daemon_url(&line).map_err(|error| no_daemon(format!("{}: {error}", path.display())))?;
    Ok((url, path.display().to_string()))
}

/// Returns the token in a file and the file's path; else why there is none.
fn read_token_file(path: &Path) -> Result<(String, String), String> {
    match read_first_line(path) {
        Ok(line) if line.is_empty() => Err(format!("{} is empty", path.display())),
        Ok(line) => Ok((line, path.display().to_string())),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn verify_listener(dir: &Path, url: &Url) -> Result<Option<DaemonProcess>, String> {
    let host = match url.host() {
        Some(Host::Ipv4(ip)) => Some(ip.into()),
        Some(Host::Ipv6(ip)) => Some(ip.into()),
        Some(Host::Domain(_)) | None => None,
    };
    local_daemon::verify_daemon_listener(dir, host, url.port_or_known_default().unwrap_or(0))
}

/// An empty environment variable counts as not set.
fn non_empty(text: Option<&str>) -> Option<&str> {
    text.map(str::trim).filter(|text| !text.is_empty())
}

fn parse_daemon_url(text: &str) -> Result<Url, ClientError> {
    let text = text.trim();
    let bad = |problem: String| ClientError::BadUrl { url: text.into(), problem };
    let full = if text.contains("://") { text.to_owned() } else { format!("http://{}", connectable_address(text)) };
    let url = Url::parse(&full).map_err(|error| bad(error.to_string()))?;
    match url.scheme() {
        _ if !url.has_host() => Err(bad("it names no host".into())),
        "http" | "https" => Ok(url),
        other => Err(bad(format!("`{other}` is not http or https"))),
    }
}

/// Replaces an unspecified address (`0.0.0.0`, `[::]`) by the loopback address.
fn connectable_address(address: &str) -> String {
    match address.parse::<SocketAddr>() {
        Ok(mut socket) if socket.ip().is_unspecified() => {
            socket.set_ip(match socket.ip() {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            });
            socket.to_string()
        }
        _ => address.into(),
    }
}

fn read_first_line(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rstest::rstest;

    use super::*;

    fn data_dir(address: Option<&str>, token: Option<&str>) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("address", address), ("token", token)] {
            if let Some(text) = text {
                fs::write(dir.path().join(name), text).unwrap();
            }
        }
        dir
    }

    fn target(url: Option<&str>, token: Option<&str>, dir: &tempfile::TempDir) -> DaemonTarget {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        DaemonTarget { url: owned(url), token: owned(token), data_dir: Some(dir.path().to_owned()) }
    }

    /// A daemon without a Unix socket, and the URL of its address.
    fn daemon(dir: &tempfile::TempDir) -> ((std::net::TcpListener, File), String) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        fs::write(dir.path().join("address"), format!("{address}\n")).unwrap();
        ((listener, local_daemon::tests::lock(dir.path())), format!("http://{address}/"))
    }

    #[tokio::test]
    async fn the_data_directory_names_the_local_daemon_and_its_token() {
        let dir = data_dir(None, Some("  secret \nmore"));
        let (_living, url) = daemon(&dir);
        let found = target(None, None, &dir).discover_daemon().unwrap();
        assert_eq!((found.url.as_str(), found.token.as_deref()), (url.as_str(), Some("secret")));
        assert!(found.url_origin.ends_with("address") && found.token_origin.ends_with("token"));
        assert!(found.socket.is_none() && found.process.is_some());
    }

    #[tokio::test]
    async fn the_socket_comes_first_and_needs_no_token() {
        let dir = data_dir(None, None);
        let _listener = std::os::unix::net::UnixListener::bind(dir.path().join("quell.sock")).unwrap();
        let found = target(None, None, &dir).discover_daemon().unwrap();
        assert_eq!((found.url.as_str(), found.token.as_deref()), ("http://localhost/", None));
        assert!(found.socket.is_some() && found.process.is_some() && found.token_origin.contains("token"));
        fs::write(dir.path().join("token"), "secret").unwrap();
        let (_living, url) = daemon(&dir);
        let found = target(None, None, &dir).discover_daemon().unwrap();
        assert_eq!((found.url.as_str(), found.token.as_deref()), (url.as_str(), Some("secret")));
        assert!(found.socket.is_some());
        let named = target(Some(&url), Some("mine"), &dir).discover_daemon().unwrap();
        assert!(named.socket.is_none(), "a URL that is named means TCP");
    }

    #[rstest]
    #[case::by_the_address_file(None, None)]
    #[case::with_a_token_of_their_own(None, Some("mine"))]
    #[tokio::test]
    async fn the_address_of_a_killed_daemon_gets_no_token(#[case] url: Option<&str>, #[case] token: Option<&str>) {
        let dir = data_dir(None, Some("local"));
        let ((_somebody, lock), _) = daemon(&dir);
        drop(lock);
        let refused = target(url, token, &dir).discover_daemon().err().unwrap();
        assert!(matches!(refused, ClientError::NoDaemon { .. }), "{refused:?}");
        assert!(refused.to_string().contains("nothing was sent"), "{refused}");
    }

    #[tokio::test]
    async fn the_given_url_and_token_win() {
        let dir = data_dir(Some("127.0.0.1:7999"), Some("local"));
        let found = target(Some("https://quell.example/base/"), Some("mine"), &dir).discover_daemon().unwrap();
        assert_eq!((found.url.as_str(), found.token.as_deref()), ("https://quell.example/base/", Some("mine")));
    }

    #[tokio::test]
    async fn empty_variables_name_nothing() {
        let dir = data_dir(None, Some("local"));
        let (_living, url) = daemon(&dir);
        let found = target(Some(" "), Some(""), &dir).discover_daemon().unwrap();
        assert_eq!((found.url.as_str(), found.token.as_deref()), (url.as_str(), Some("local")));
    }

    #[tokio::test]
    async fn the_local_token_is_shown_to_the_local_daemon_alone() {
        let dir = data_dir(None, Some("local"));
        let ((listener, lock), url) = daemon(&dir);
        let near = url.replace("127.0.0.1", "localhost");
        assert_eq!(target(Some(&near), None, &dir).discover_daemon().unwrap().token.as_deref(), Some("local"));
        let far = target(Some("http://quell.example"), None, &dir).discover_daemon();
        assert!(matches!(far, Err(ClientError::NoToken { .. })));
        drop(lock);
        let dead = target(Some(&near), None, &dir).discover_daemon();
        assert!(matches!(dead, Err(ClientError::NoToken { .. })), "no daemon uses the directory");
        drop(listener);
    }

    #[rstest]
    #[case(None, Some("t"), "address")]
    #[case(Some("not a url"), Some("t"), "not a url")]
    #[tokio::test]
    async fn without_a_usable_address_there_is_no_daemon(
        #[case] address: Option<&str>,
        #[case] token: Option<&str>,
        #[case] says: &str,
    ) {
        let dir = data_dir(address, token);
        let error = target(None, None, &dir).discover_daemon().err().unwrap();
        assert!(matches!(error, ClientError::NoDaemon { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(says) && text.contains("quell serve"), "{text}");
    }

    #[rstest]
    #[case("0.0.0.0:7171", "http://127.0.0.1:7171/")]
    #[case("[::]:7171", "http://[::1]:7171/")]
    #[case("localhost:7171", "http://localhost:7171/")]
    #[case(" http://h:1/p ", "http://h:1/p")]
    fn addresses_are_read_as_people_write_them(#[case] text: &str, #[case] url: &str) {
        assert_eq!(parse_daemon_url(text).unwrap().as_str(), url);
    }

    #[test]
    fn other_schemes_are_refused() {
        assert!(matches!(parse_daemon_url("ftp://h"), Err(ClientError::BadUrl { .. })));
    }
}
