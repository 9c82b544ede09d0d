//! Validate the `[channels.X]` keys of an IRC channel.

use secrecy::{ExposeSecret, SecretString};

use crate::config::{ChannelConfig, ChannelConfigError};
use crate::wire::byte_stream::StreamSecurity;

/// No network allows longer nicks.
const MAX_NICK_BYTES: usize = 64;

/// The keys of one IRC channel in the configuration, validated.
#[derive(Debug, Clone)]
pub(super) struct IrcAccount {
    /// For logs.
    pub(super) channel_name: String,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) security: StreamSecurity,
    /// The nick to use if it is free.
    pub(super) configured_nick: String,
    pub(super) configured_rooms: Vec<String>,
    pub(super) credentials: IrcCredentials,
}

#[derive(Debug, Clone)]
pub(super) enum IrcCredentials {
    Unauthenticated,
    /// With the server's password (`PASS`).
    ServerPassword(SecretString),
    /// With an account of the network, by SASL.
    Sasl {
        account: String,
        password: SecretString,
    },
}

impl IrcAccount {
    pub(super) fn new(channel: &str, config: &ChannelConfig) -> Result<Self, ChannelConfigError> {
        let config_error = |key, problem: &str| ChannelConfigError::new(channel, key, problem);
        config.check_network_keys(channel, &["mention_only", "server", "tls", "nick", "sasl_account", "join"])?;
        let server = config
            .server
            .as_deref()
            .ok_or_else(|| config_error("server", "is missing: say `server = \"HOST:PORT\"`"))?;
        let (host, port) = parse_server(server).ok_or_else(|| {
            config_error("server", &format!("{server:?} is not HOST:PORT, such as \"irc.libera.chat:6697\""))
        })?;
        let nick = config.nick.as_deref().ok_or_else(|| config_error("nick", "is missing: say which nick to use"))?;
        if !is_valid_nick(nick) {
            return Err(config_error(
                "nick",
                &format!("{nick:?} is no nick: letters, digits and `-_[]{{}}\\|^`, no digit first"),
            ));
        }
        if let Some(room) = config.join.iter().find(|room| !is_valid_room(room)) {
            return Err(config_error(
                "join",
                &format!("{room:?} is no room: its name begins with `#`, without spaces or commas"),
            ));
        }
        // Nicks are compared in lower case; every `CASEMAPPING` of a server lowers at least ASCII letters.
        let rule = "never matches a sender: write nicks in lower case";
        config.check_sender_ids(channel, |nick| !nick.contains(|c: char| c.is_ascii_uppercase()), rule)?;
        let security = if config.tls.unwrap_or(true) { StreamSecurity::Tls } else { StreamSecurity::Plain };
        let (channel, nick, rooms) = (channel.to_owned(), nick.to_owned(), config.join.clone());
        Ok(Self {
            credentials: parse_credentials(&channel, config)?,
            channel_name: channel,
            host,
            port,
            security,
            configured_nick: nick,
            configured_rooms: rooms,
        })
    }
}

fn parse_credentials(channel: &str, config: &ChannelConfig) -> Result<IrcCredentials, ChannelConfigError> {
    let config_error = |key, problem: &str| ChannelConfigError::new(channel, key, problem);
    let is_one_line = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_control());
    if config.token.as_ref().is_some_and(|token| !is_one_line(token.expose_secret())) {
        return Err(config_error("token_env", "the password is empty or not one line"));
    }
    match (&config.sasl_account, &config.token) {
        (None, None) => Ok(IrcCredentials::Unauthenticated),
        (None, Some(password)) => Ok(IrcCredentials::ServerPassword(password.clone())),
        (Some(account), Some(_)) if !is_one_line(account) => {
            Err(config_error("sasl_account", "is empty or not one line"))
        }
        (Some(account), Some(password)) => {
            Ok(IrcCredentials::Sasl { account: account.clone(), password: password.clone() })
        }
        (Some(_), None) => Err(config_error(
            "sasl_account",
            "has no password: say `token_env = \"VARIABLE\"` or `token_file = \"PATH\"`",
        )),
    }
}

fn parse_server(server: &str) -> Option<(String, u16)> {
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

/// RFC 2812 2.3.1, except the length limit, and with letters of other scripts, which some networks allow.
fn is_valid_nick(nick: &str) -> bool {
    let is_inside = |c: char| c.is_alphanumeric() || "-_[]{}\\|^`".contains(c);
    nick.len() <= MAX_NICK_BYTES
        && nick.chars().all(is_inside)
        && nick.chars().next().is_some_and(|first| !first.is_ascii_digit() && first != '-')
}

fn is_valid_room(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| "#&+!".contains(first))
        && chars.next().is_some()
        && !name.contains(|c: char| c.is_control() || c.is_whitespace() || c == ',')
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::network::test_support::channel_config;

    fn parse_account(changes: Value, token: Option<&str>) -> Result<IrcAccount, ChannelConfigError> {
        let keys = json!({"kind": "irc", "server": "irc.test:6697", "nick": "quell"});
        let config = channel_config(keys, &changes, token);
        IrcAccount::new("chat", &config)
    }

    #[test]
    fn valid_settings_are_accepted() {
        let plain = parse_account(json!({"tls": false, "join": ["#tea", "&x"], "allow": ["*", "ann"]}), None).unwrap();
        assert_eq!((plain.host.as_str(), plain.port, plain.security), ("irc.test", 6697, StreamSecurity::Plain));
        assert_eq!(plain.configured_rooms, ["#tea", "&x"]);
        assert!(matches!(plain.credentials, IrcCredentials::Unauthenticated));
        assert_eq!(
            parse_account(json!({}), None).unwrap().security,
            StreamSecurity::Tls,
            "encrypted without being told"
        );
        assert_eq!(parse_account(json!({"server": "[::1]:6697"}), None).unwrap().host, "::1");
        assert!(matches!(
            parse_account(json!({}), Some("secret")).unwrap().credentials,
            IrcCredentials::ServerPassword(_)
        ));
        let sasl = parse_account(json!({"sasl_account": "quell"}), Some("secret")).unwrap();
        assert!(matches!(&sasl.credentials, IrcCredentials::Sasl { account, .. } if account == "quell"));
        assert!(!format!("{sasl:?}").contains("secret"));
    }

    #[test]
    fn invalid_settings_are_named_by_their_key() {
        let key = |changes, token| parse_account(changes, token).unwrap_err().key;
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
