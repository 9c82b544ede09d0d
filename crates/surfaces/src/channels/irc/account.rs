//! The keys of `[channels.X]` that IRC knows, checked.

use secrecy::{ExposeSecret, SecretString};

use crate::channels::config::{BadChannel, ChannelConfig};
use crate::channels::wire::stream::Security;

/// No network has longer ones.
const LONGEST_NICK: usize = 64;

/// Who connects where.
#[derive(Debug, Clone)]
pub(super) struct Account {
    /// The channel's name, for logs.
    pub(super) channel: String,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) security: Security,
    /// The wished nick.
    pub(super) nick: String,
    pub(super) rooms: Vec<String>,
    pub(super) proof: Proof,
}

/// How it proves that it may connect.
#[derive(Debug, Clone)]
pub(super) enum Proof {
    /// It need not.
    Nothing,
    /// With the server's password.
    Password(SecretString),
    /// With an account of the network, by SASL.
    Sasl { account: String, password: SecretString },
}

impl Account {
    /// # Errors
    /// [`BadChannel`] names the key that is wrong.
    pub(super) fn new(channel: &str, config: &ChannelConfig) -> Result<Self, BadChannel> {
        let bad = |key, problem: &str| BadChannel { channel: channel.to_owned(), key, problem: problem.to_owned() };
        let foreign = [
            ("api_base", config.api_base.is_some(), "IRC has no API: say `server = \"HOST:PORT\"`"),
            ("app_token_env", config.app_token_env.is_some(), "is for Slack alone: leave it out"),
            ("reply_url", config.reply_url.is_some(), "is for webhooks alone: leave it out"),
        ];
        if let Some((key, _, problem)) = foreign.into_iter().find(|(_, is_there, _)| *is_there) {
            return Err(bad(key, problem));
        }
        let server =
            config.server.as_deref().ok_or_else(|| bad("server", "is missing: say `server = \"HOST:PORT\"`"))?;
        let (host, port) = host_and_port(server)
            .ok_or_else(|| bad("server", &format!("{server:?} is not HOST:PORT, such as \"irc.libera.chat:6697\"")))?;
        let nick = config.nick.as_deref().ok_or_else(|| bad("nick", "is missing: say under which nick to be there"))?;
        if !is_nick(nick) {
            return Err(bad(
                "nick",
                &format!("{nick:?} is no nick: letters, digits and `-_[]{{}}\\|^`, no digit first"),
            ));
        }
        if let Some(room) = config.join.iter().find(|room| !is_room(room)) {
            return Err(bad(
                "join",
                &format!("{room:?} is no room: its name begins with `#`, without spaces or commas"),
            ));
        }
        for (key, nicks) in [("allow", &config.allow), ("operators", &config.operators)] {
            // Senders are known by them; a server's `CASEMAPPING` does at least this.
            if let Some(nick) = nicks.iter().find(|nick| nick.contains(|c: char| c.is_ascii_uppercase())) {
                return Err(bad(key, &format!("{nick:?} is never heard of: write nicks in lower case")));
            }
        }
        let security = if config.tls.unwrap_or(true) { Security::Tls } else { Security::Plain };
        let (channel, nick, rooms) = (channel.to_owned(), nick.to_owned(), config.join.clone());
        Ok(Self { proof: proof(&channel, config)?, channel, host, port, security, nick, rooms })
    }
}

fn proof(channel: &str, config: &ChannelConfig) -> Result<Proof, BadChannel> {
    let bad = |key, problem: &str| BadChannel { channel: channel.to_owned(), key, problem: problem.to_owned() };
    let is_one_line = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_control());
    if config.token.as_ref().is_some_and(|token| !is_one_line(token.expose_secret())) {
        return Err(bad("token_env", "the password is empty or not one line"));
    }
    match (&config.sasl_account, &config.token) {
        (None, None) => Ok(Proof::Nothing),
        (None, Some(password)) => Ok(Proof::Password(password.clone())),
        (Some(account), Some(_)) if !is_one_line(account) => Err(bad("sasl_account", "is empty or not one line")),
        (Some(account), Some(password)) => Ok(Proof::Sasl { account: account.clone(), password: password.clone() }),
        (Some(_), None) => {
            Err(bad("sasl_account", "has no password: say `token_env = \"VARIABLE\"` or `token_file = \"PATH\"`"))
        }
    }
}

fn host_and_port(server: &str) -> Option<(String, u16)> {
    let (host, port) = server.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let is_host = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/');
    is_host.then(|| (host.to_owned(), port))
}

/// RFC 2812 2.3.1, but for the length and for letters of other scripts, which some networks have.
fn is_nick(nick: &str) -> bool {
    let is_inside = |c: char| c.is_alphanumeric() || "-_[]{}\\|^`".contains(c);
    nick.len() <= LONGEST_NICK
        && nick.chars().all(is_inside)
        && nick.chars().next().is_some_and(|first| !first.is_ascii_digit() && first != '-')
}

fn is_room(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| "#&+!".contains(first))
        && chars.next().is_some()
        && !name.contains(|c: char| c.is_control() || c.is_whitespace() || c == ',')
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn account(changes: Value, token: Option<&str>) -> Result<Account, BadChannel> {
        let mut keys = json!({"kind": "irc", "server": "irc.test:6697", "nick": "quell"});
        keys.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let mut config: ChannelConfig = serde_json::from_value(keys).unwrap();
        config.token = token.map(Into::into);
        Account::new("chat", &config)
    }

    #[test]
    fn what_is_right_is_taken() {
        let plain = account(json!({"tls": false, "join": ["#tea", "&x"], "allow": ["*", "ann"]}), None).unwrap();
        assert_eq!((plain.host.as_str(), plain.port, plain.security), ("irc.test", 6697, Security::Plain));
        assert_eq!(plain.rooms, ["#tea", "&x"]);
        assert!(matches!(plain.proof, Proof::Nothing));
        assert_eq!(account(json!({}), None).unwrap().security, Security::Tls, "encrypted without being told");
        assert_eq!(account(json!({"server": "[::1]:6697"}), None).unwrap().host, "::1");
        assert!(matches!(account(json!({}), Some("secret")).unwrap().proof, Proof::Password(_)));
        let sasl = account(json!({"sasl_account": "quell"}), Some("secret")).unwrap();
        assert!(matches!(&sasl.proof, Proof::Sasl { account, .. } if account == "quell"));
        assert!(!format!("{sasl:?}").contains("secret"));
    }

    #[test]
    fn what_is_wrong_is_named_by_its_key() {
        let key = |changes, token| account(changes, token).unwrap_err().key;
        for server in
            ["irc.test", "irc.test:", ":6697", "irc.test:0", "irc.test:70000", "::1:6697", "http://a:1", "[::1:1"]
        {
            assert_eq!(key(json!({"server": server}), None), "server", "{server}");
        }
        assert_eq!(key(json!({"server": null}), None), "server");
        assert_eq!(key(json!({"nick": null}), None), "nick");
        for nick in ["", "1a", "-a", "a b", "a:", "#a", "a,b", "a!b", "a\r\nQUIT"] {
            assert_eq!(key(json!({"nick": nick}), None), "nick", "{nick:?}");
        }
        assert_eq!(key(json!({"nick": "x".repeat(65)}), None), "nick");
        for room in ["", "#", "tea", "#a b", "#a,#b", "#a\n"] {
            assert_eq!(key(json!({"join": ["#tea", room]}), None), "join", "{room:?}");
        }
        assert_eq!(key(json!({"allow": ["*", "Ann"]}), None), "allow");
        assert_eq!(key(json!({"operators": ["Ann"]}), None), "operators");
        assert_eq!(key(json!({"sasl_account": "quell"}), None), "sasl_account");
        assert_eq!(key(json!({"sasl_account": "a\0b"}), Some("secret")), "sasl_account");
        assert_eq!(key(json!({}), Some("two\nlines")), "token_env");
        assert_eq!(key(json!({"api_base": "http://a"}), None), "api_base");
        assert_eq!(key(json!({"reply_url": "http://a"}), None), "reply_url");
        assert_eq!(key(json!({"app_token_env": "A"}), None), "app_token_env");
    }
}
