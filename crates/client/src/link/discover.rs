//! Where the daemon is and which token it takes: what the person named, else what the daemon left in the data directory.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use url::{Host, Url};

use super::LinkError;
use super::local::{self, DaemonProcess, LocalSocket};

/// The daemon's files are one short line each; more is not read.
const MOST_BYTES: u64 = 4096;

/// Which daemon to talk to, and as whom.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Target {
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
    /// The data directory, where a local daemon leaves its address and its token. Set by the roof.
    #[arg(skip)]
    pub data_dir: Option<PathBuf>,
}

/// What discovery found.
pub(super) struct Found {
    pub(super) url: Url,
    pub(super) url_origin: String,
    /// None where stops are taken without one.
    pub(super) token: Option<String>,
    pub(super) token_origin: String,
    /// The socket that is used in place of the URL's host.
    pub(super) socket: Option<LocalSocket>,
    /// The daemon's process, where it is on this machine and known for the real one.
    pub(super) daemon: Option<DaemonProcess>,
}

impl Target {
    pub(super) fn find(&self) -> Result<Found, LinkError> {
        let Some(url) = given(self.url.as_deref()) else { return self.local() };
        let (url, url_origin) = (named_url(url)?, "--url or QUELL_URL".to_owned());
        let (token, token_origin, daemon) = match given(self.token.as_deref()) {
            Some(token) => (token.to_owned(), NAMED_TOKEN.to_owned(), None),
            None => self.token_for(&url)?,
        };
        Ok(Found { url, url_origin, token: Some(token), token_origin, socket: None, daemon })
    }

    /// The daemon of the data directory: by its socket, else by its address once that is known to be its own.
    fn local(&self) -> Result<Found, LinkError> {
        let no_daemon = |tried: String| LinkError::NoDaemon { tried };
        let Some(dir) = &self.data_dir else {
            return Err(no_daemon("there is no --url, no QUELL_URL and no data directory".into()));
        };
        let found = local::find(dir).map_err(|why| no_daemon(format!("{why}; nothing was sent there")))?;
        let named = given(self.token.as_deref()).map(|token| (token.to_owned(), NAMED_TOKEN.to_owned()));
        if let Some((socket, daemon)) = found {
            // For people and for the page: requests go through the socket.
            let url = local_url(dir).map(|(url, _)| url);
            let url = url.or_else(|_| named_url("http://localhost/"))?;
            let path = dir.join("token");
            let (token, token_origin) = match named.map_or_else(|| token_in(&path), Ok) {
                Ok((token, origin)) => (Some(token), origin),
                Err(tried) => (None, tried),
            };
            let url_origin = socket.path().display().to_string();
            return Ok(Found { url, url_origin, token, token_origin, socket: Some(socket), daemon });
        }
        let (url, url_origin) = local_url(dir)?;
        let daemon = prove(dir, &url)
            .map_err(|why| no_daemon(format!("{url} (from {url_origin}): {why}, so nothing was sent there")))?;
        let (token, token_origin) = match named {
            Some(named) => named,
            None => token_in(&dir.join("token")).map_err(|tried| LinkError::NoToken { url: url.to_string(), tried })?,
        };
        Ok(Found { url, url_origin, token: Some(token), token_origin, socket: None, daemon })
    }

    /// The local admin token for a daemon that the person named. It is shown to the daemon of the data directory only: whoever
    /// names another names its token too.
    fn token_for(&self, url: &Url) -> Result<(String, String, Option<DaemonProcess>), LinkError> {
        let no_token = |tried: String| LinkError::NoToken { url: url.to_string(), tried };
        if !is_loopback(url) {
            return Err(no_token("the token in the data directory is only for a daemon on this machine".into()));
        }
        let Some(dir) = &self.data_dir else {
            return Err(no_token("there is no --token, no QUELL_TOKEN and no data directory".into()));
        };
        let (token, origin) = token_in(&dir.join("token")).map_err(no_token)?;
        let daemon = prove(dir, url).map_err(|why| no_token(format!("{why}, so the token in it was not sent")))?;
        Ok((token, origin, daemon))
    }
}

const NAMED_TOKEN: &str = "--token or QUELL_TOKEN";

/// The address that the daemon of a data directory left there.
fn local_url(dir: &Path) -> Result<(Url, String), LinkError> {
    let no_daemon = |tried: String| LinkError::NoDaemon { tried };
    let path = dir.join("address");
    let line = first_line(&path).map_err(|error| no_daemon(format!("{}: {error}", path.display())))?;
    let url = named_url(&line).map_err(|error| no_daemon(format!("{}: {error}", path.display())))?;
    Ok((url, path.display().to_string()))
}

/// The token in a file and where it is; else why there is none.
fn token_in(path: &Path) -> Result<(String, String), String> {
    match first_line(path) {
        Ok(line) if line.is_empty() => Err(format!("{} is empty", path.display())),
        Ok(line) => Ok((line, path.display().to_string())),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn prove(dir: &Path, url: &Url) -> Result<Option<DaemonProcess>, String> {
    let host = match url.host() {
        Some(Host::Ipv4(ip)) => Some(ip.into()),
        Some(Host::Ipv6(ip)) => Some(ip.into()),
        Some(Host::Domain(_)) | None => None,
    };
    local::prove(dir, host, url.port_or_known_default().unwrap_or(0))
}

/// What was really given: an empty environment variable is none.
fn given(text: Option<&str>) -> Option<&str> {
    text.map(str::trim).filter(|text| !text.is_empty())
}

/// True when requests to this address do not leave the machine.
pub(super) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

fn named_url(text: &str) -> Result<Url, LinkError> {
    let text = text.trim();
    let bad = |problem: String| LinkError::BadUrl { url: text.into(), problem };
    let full = if text.contains("://") { text.to_owned() } else { format!("http://{}", reachable(text)) };
    let url = Url::parse(&full).map_err(|error| bad(error.to_string()))?;
    match url.scheme() {
        _ if !url.has_host() => Err(bad("it names no host".into())),
        "http" | "https" => Ok(url),
        other => Err(bad(format!("`{other}` is not http or https"))),
    }
}

/// A daemon that listens on every address is reached on the loopback one.
fn reachable(address: &str) -> String {
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

fn first_line(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MOST_BYTES).read_to_string(&mut text)?;
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

    fn target(url: Option<&str>, token: Option<&str>, dir: &tempfile::TempDir) -> Target {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Target { url: owned(url), token: owned(token), data_dir: Some(dir.path().to_owned()) }
    }

    /// A daemon without a socket of its own, and the URL of its address.
    fn daemon(dir: &tempfile::TempDir) -> ((std::net::TcpListener, File), String) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        fs::write(dir.path().join("address"), format!("{address}\n")).unwrap();
        ((listener, local::tests::lock(dir.path())), format!("http://{address}/"))
    }

    #[tokio::test]
    async fn the_data_directory_names_the_local_daemon_and_its_token() {
        let dir = data_dir(None, Some("  secret \nmore"));
        let (_living, url) = daemon(&dir);
        let found = target(None, None, &dir).find().unwrap();
        assert_eq!((found.url.as_str(), found.token.as_deref()), (url.as_str(), Some("secret")));
        assert!(found.url_origin.ends_with("address") && found.token_origin.ends_with("token"));
        assert!(found.socket.is_none() && found.daemon.is_some());
    }

    #[tokio::test]
    async fn the_socket_comes_first_and_needs_no_token() {
        let dir = data_dir(None, None);
        let _listener = std::os::unix::net::UnixListener::bind(dir.path().join("quell.sock")).unwrap();
        let found = target(None, None, &dir).find().unwrap();
        assert_eq!((found.url.as_str(), found.token.as_deref()), ("http://localhost/", None));
        assert!(found.socket.is_some() && found.daemon.is_some() && found.token_origin.contains("token"));
        fs::write(dir.path().join("token"), "secret").unwrap();
        let (_living, url) = daemon(&dir);
        let found = target(None, None, &dir).find().unwrap();
        assert_eq!((found.url.as_str(), found.token.as_deref()), (url.as_str(), Some("secret")));
        assert!(found.socket.is_some());
        let named = target(Some(&url), Some("mine"), &dir).find().unwrap();
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
        let refused = target(url, token, &dir).find().err().unwrap();
        assert!(matches!(refused, LinkError::NoDaemon { .. }), "{refused:?}");
        assert!(refused.to_string().contains("nothing was sent"), "{refused}");
    }

    #[tokio::test]
    async fn what_the_person_names_wins() {
        let dir = data_dir(Some("127.0.0.1:7999"), Some("local"));
        let found = target(Some("https://quell.example/base/"), Some("mine"), &dir).find().unwrap();
        assert_eq!((found.url.as_str(), found.token.as_deref()), ("https://quell.example/base/", Some("mine")));
    }

    #[tokio::test]
    async fn empty_variables_name_nothing() {
        let dir = data_dir(None, Some("local"));
        let (_living, url) = daemon(&dir);
        let found = target(Some(" "), Some(""), &dir).find().unwrap();
        assert_eq!((found.url.as_str(), found.token.as_deref()), (url.as_str(), Some("local")));
    }

    #[tokio::test]
    async fn the_local_token_is_shown_to_the_local_daemon_alone() {
        let dir = data_dir(None, Some("local"));
        let ((listener, lock), url) = daemon(&dir);
        let near = url.replace("127.0.0.1", "localhost");
        assert_eq!(target(Some(&near), None, &dir).find().unwrap().token.as_deref(), Some("local"));
        let far = target(Some("http://quell.example"), None, &dir).find();
        assert!(matches!(far, Err(LinkError::NoToken { .. })));
        drop(lock);
        let dead = target(Some(&near), None, &dir).find();
        assert!(matches!(dead, Err(LinkError::NoToken { .. })), "no daemon uses the directory");
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
        let error = target(None, None, &dir).find().err().unwrap();
        assert!(matches!(error, LinkError::NoDaemon { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(says) && text.contains("quell serve"), "{text}");
    }

    #[rstest]
    #[case("0.0.0.0:7171", "http://127.0.0.1:7171/")]
    #[case("[::]:7171", "http://[::1]:7171/")]
    #[case("localhost:7171", "http://localhost:7171/")]
    #[case(" http://h:1/p ", "http://h:1/p")]
    fn addresses_are_read_as_people_write_them(#[case] text: &str, #[case] url: &str) {
        assert_eq!(named_url(text).unwrap().as_str(), url);
    }

    #[test]
    fn other_schemes_are_refused() {
        assert!(matches!(named_url("ftp://h"), Err(LinkError::BadUrl { .. })));
    }
}
