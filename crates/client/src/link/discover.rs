//! Where the daemon is and which token it takes: what the person named, else what the daemon left in the data directory.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use url::{Host, Url};

use super::LinkError;

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
    pub(super) token: String,
    pub(super) token_origin: String,
}

impl Target {
    pub(super) fn find(&self) -> Result<Found, LinkError> {
        let (url, url_origin) = match given(self.url.as_deref()) {
            Some(url) => (named_url(url)?, "--url or QUELL_URL".to_owned()),
            None => self.local_url()?,
        };
        let (token, token_origin) = match given(self.token.as_deref()) {
            Some(token) => (token.to_owned(), "--token or QUELL_TOKEN".to_owned()),
            None => self.local_token(&url)?,
        };
        Ok(Found { url, url_origin, token, token_origin })
    }

    fn local_url(&self) -> Result<(Url, String), LinkError> {
        let no_daemon = |tried: String| LinkError::NoDaemon { tried };
        let Some(dir) = &self.data_dir else {
            return Err(no_daemon("there is no --url, no QUELL_URL and no data directory".into()));
        };
        let path = dir.join("address");
        let line = first_line(&path).map_err(|error| no_daemon(format!("{}: {error}", path.display())))?;
        let url = named_url(&line).map_err(|error| no_daemon(format!("{}: {error}", path.display())))?;
        Ok((url, path.display().to_string()))
    }

    /// The local admin token. It is shown to this machine only: a person who names a daemon elsewhere names its token too.
    fn local_token(&self, url: &Url) -> Result<(String, String), LinkError> {
        let no_token = |tried: String| LinkError::NoToken { url: url.to_string(), tried };
        if !is_loopback(url) && given(self.url.as_deref()).is_some() {
            return Err(no_token("the token in the data directory is only for a daemon on this machine".into()));
        }
        let Some(dir) = &self.data_dir else {
            return Err(no_token("there is no --token, no QUELL_TOKEN and no data directory".into()));
        };
        let path = dir.join("token");
        match first_line(&path) {
            Ok(line) if line.is_empty() => Err(no_token(format!("{} is empty", path.display()))),
            Ok(line) => Ok((line, path.display().to_string())),
            Err(error) => Err(no_token(format!("{}: {error}", path.display()))),
        }
    }
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

    #[test]
    fn the_data_directory_names_the_local_daemon_and_its_token() {
        let dir = data_dir(Some("127.0.0.1:7999\n"), Some("  secret \nmore"));
        let found = target(None, None, &dir).find().unwrap();
        assert_eq!((found.url.as_str(), found.token.as_str()), ("http://127.0.0.1:7999/", "secret"));
        assert!(found.url_origin.ends_with("address") && found.token_origin.ends_with("token"));
    }

    #[test]
    fn what_the_person_names_wins() {
        let dir = data_dir(Some("127.0.0.1:7999"), Some("local"));
        let found = target(Some("https://quell.example/base/"), Some("mine"), &dir).find().unwrap();
        assert_eq!((found.url.as_str(), found.token.as_str()), ("https://quell.example/base/", "mine"));
    }

    #[test]
    fn empty_variables_name_nothing() {
        let dir = data_dir(Some("127.0.0.1:7999"), Some("local"));
        let found = target(Some(" "), Some(""), &dir).find().unwrap();
        assert_eq!((found.url.as_str(), found.token.as_str()), ("http://127.0.0.1:7999/", "local"));
    }

    #[test]
    fn the_local_token_is_not_shown_to_another_machine() {
        let dir = data_dir(None, Some("local"));
        let near = target(Some("http://localhost:7999"), None, &dir).find().unwrap();
        assert_eq!(near.token, "local");
        let far = target(Some("http://quell.example"), None, &dir).find();
        assert!(matches!(far, Err(LinkError::NoToken { .. })));
    }

    #[rstest]
    #[case(None, Some("t"), "address")]
    #[case(Some("not a url"), Some("t"), "not a url")]
    fn without_a_usable_address_there_is_no_daemon(
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
