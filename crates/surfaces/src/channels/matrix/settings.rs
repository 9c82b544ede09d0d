//! What `[channels.X]` says of a Matrix account, checked.

use secrecy::SecretString;
use url::Url;

use crate::channels::config::{BadChannel, ChannelConfig};

/// A channel's configuration, as far as this network is concerned.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) base: Url,
    pub(super) token: SecretString,
    /// Where the token was read from, for people.
    pub(super) token_from: String,
    allow: Vec<String>,
    /// Ids and aliases of rooms to be in.
    pub(super) join: Vec<String>,
    pub(super) mention_only: bool,
}

impl Settings {
    /// Takes and checks them.
    pub(super) fn of(channel: &str, config: &ChannelConfig) -> Result<Self, BadChannel> {
        let bad = |key, problem: String| BadChannel { channel: channel.to_owned(), key, problem };
        if let Some(key) = foreign_key(config) {
            return Err(bad(key, "is not for Matrix; remove it".to_owned()));
        }
        let base = config.api_base.as_deref().ok_or_else(|| {
            bad("api_base", "is missing: the URL of your homeserver, such as \"https://matrix.example.org\"".to_owned())
        })?;
        let base = homeserver(base).map_err(|problem| bad("api_base", problem))?;
        let token = config.token.clone().ok_or_else(|| {
            let needed = "is missing: the environment variable that holds the account's access token (or token_file)";
            bad("token_env", needed.to_owned())
        })?;
        for (key, users) in [("allow", &config.allow), ("operators", &config.operators)] {
            if let Some(odd) = users.iter().find(|user| !is_user(user) && *user != "*") {
                return Err(bad(key, format!("{odd:?} is nobody's id; Matrix has \"@name:server\"")));
            }
        }
        if let Some(odd) = config.join.iter().find(|room| !is_room(room)) {
            let forms = "Matrix has \"!id:server\" and \"#alias:server\"";
            return Err(bad("join", format!("{odd:?} is no room; {forms}")));
        }
        Ok(Self {
            base,
            token,
            token_from: token_from(config),
            allow: config.allow.clone(),
            join: config.join.clone(),
            mention_only: config.mention_only,
        })
    }

    /// Whether a room is followed into the one that somebody has put in its place: as if they had invited the account there. Who
    /// named the room itself has said that the account is to be in it, whoever rules there.
    pub(super) fn follows(&self, sender: &str, old: &str, new: &str) -> bool {
        self.welcomes(sender, new) || self.join.iter().any(|id| id == old)
    }

    /// Whether an invitation into a room is accepted.
    pub(super) fn welcomes(&self, inviter: &str, room: &str) -> bool {
        self.allow.iter().any(|allowed| allowed == "*" || allowed == inviter) || self.join.iter().any(|id| id == room)
    }
}

/// The server in an id.
pub(super) fn server_of(id: &str) -> Option<&str> {
    id.split_once(':').map(|(_, server)| server).filter(|server| !server.is_empty())
}

/// A set key that means nothing here.
fn foreign_key(config: &ChannelConfig) -> Option<&'static str> {
    let set = [
        ("app_token_env", config.app_token_env.is_some()),
        ("server", config.server.is_some()),
        ("tls", config.tls.is_some()),
        ("nick", config.nick.is_some()),
        ("sasl_account", config.sasl_account.is_some()),
        ("reply_url", config.reply_url.is_some()),
    ];
    set.iter().find(|(_, is_set)| *is_set).map(|(key, _)| *key)
}

fn homeserver(base: &str) -> Result<Url, String> {
    let wanted = "such as \"https://matrix.example.org\"";
    let url = Url::parse(base).map_err(|error| format!("is no URL ({error}); give one {wanted}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(format!("is not the URL of a web server; give one {wanted}"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(format!("goes on after the path; give one {wanted}"));
    }
    if url.path_segments().is_some_and(|mut parts| parts.any(|part| part == "_matrix")) {
        return Err("ends before /_matrix".to_owned());
    }
    Ok(url)
}

fn token_from(config: &ChannelConfig) -> String {
    match (&config.token_env, &config.token_file) {
        (Some(name), _) => name.clone(),
        (None, Some(path)) => path.display().to_string(),
        (None, None) => "token_env".to_owned(),
    }
}

/// `@name:server`. What names may hold has changed over time, so that no more is asked (Matrix specification: user identifiers).
fn is_user(id: &str) -> bool {
    is_id(id, '@') && server_of(id).is_some()
}

/// `!id`, with a server in older rooms, or `#alias:server`.
fn is_room(id: &str) -> bool {
    is_id(id, '!') || is_id(id, '#') && server_of(id).is_some()
}

/// Whether this can be an id of the kind that begins so (Matrix specification: common identifier format, 255 bytes at the most).
pub(super) fn is_id(id: &str, sigil: char) -> bool {
    id.len() <= 255 && id.strip_prefix(sigil).is_some_and(|rest| !rest.is_empty()) && !id.chars().any(char::is_control)
}

/// The name in a user's id.
pub(super) fn local_part(id: &str) -> &str {
    let name = id.strip_prefix('@').unwrap_or(id);
    name.split_once(':').map_or(name, |(name, _)| name)
}
