//! Validate the `[channels.X]` keys of a Matrix channel; id helpers.

use secrecy::SecretString;
use url::Url;

use crate::config::{ChannelConfig, ChannelConfigError};

/// The keys of one Matrix channel in the configuration, validated.
#[derive(Debug, Clone)]
pub(super) struct MatrixSettings {
    pub(super) homeserver_url: Url,
    pub(super) token: SecretString,
    /// Variable or file of the token, for people.
    pub(super) token_source: String,
    allow: Vec<String>,
    /// Ids and aliases of rooms to join.
    pub(super) rooms_to_join: Vec<String>,
    pub(super) mention_only: bool,
}

impl MatrixSettings {
    pub(super) fn parse(channel: &str, config: &ChannelConfig) -> Result<Self, ChannelConfigError> {
        let config_error = |key, problem: String| ChannelConfigError::new(channel, key, problem);
        config.check_network_keys(channel, &["api_base", "mention_only", "join", "voice"])?;
        let homeserver_url = config.api_base.as_deref().ok_or_else(|| {
            config_error(
                "api_base",
                "is missing: the URL of your homeserver, such as \"https://matrix.example.org\"".to_owned(),
            )
        })?;
        let homeserver_url =
            parse_homeserver_url(homeserver_url).map_err(|problem| config_error("api_base", problem))?;
        let token = config.token.clone().ok_or_else(|| {
            let needed = "is missing: the environment variable that holds the account's access token (or token_file)";
            config_error("token_env", needed.to_owned())
        })?;
        let rule = "is no user id; user ids look like \"@name:server\"";
        config.check_sender_ids(channel, is_user_id, rule)?;
        if let Some(invalid) = config.join.iter().find(|room| !is_room_id_or_alias(room)) {
            let forms = "rooms look like \"!id:server\" or \"#alias:server\"";
            return Err(config_error("join", format!("{invalid:?} is no room; {forms}")));
        }
        Ok(Self {
            homeserver_url,
            token,
            token_source: token_source(config),
            allow: config.allow.clone(),
            rooms_to_join: config.join.clone(),
            mention_only: config.mention_only,
        })
    }

    /// True if the account joins the room that `sender` put in the place of another one. `sender` needs the same rights
    /// as for an invitation, except if `join` names the old room: then anybody with the power to replace it may do so.
    pub(super) fn allows_replacement(&self, sender: &str, old: &str, new: &str) -> bool {
        self.accepts_invitation(sender, new) || self.rooms_to_join.iter().any(|id| id == old)
    }

    /// True if an invitation by `inviter` to `room` is accepted.
    pub(super) fn accepts_invitation(&self, inviter: &str, room: &str) -> bool {
        self.allow.iter().any(|allowed| allowed == "*" || allowed == inviter)
            || self.rooms_to_join.iter().any(|id| id == room)
    }
}

pub(super) fn server_name(id: &str) -> Option<&str> {
    id.split_once(':').map(|(_, server)| server).filter(|server| !server.is_empty())
}

fn parse_homeserver_url(base: &str) -> Result<Url, String> {
    let wanted = "such as \"https://matrix.example.org\"";
    let url = Url::parse(base).map_err(|error| format!("is no URL ({error}); give one {wanted}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(format!("is not the URL of a web server; give one {wanted}"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(format!("must not have a query or a fragment; give one {wanted}"));
    }
    if url.path_segments().is_some_and(|mut parts| parts.any(|part| part == "_matrix")) {
        return Err("must end before /_matrix".to_owned());
    }
    Ok(url)
}

fn token_source(config: &ChannelConfig) -> String {
    match (&config.token_env, &config.token_file) {
        (Some(name), _) => name.clone(),
        (None, Some(path)) => path.display().to_string(),
        (None, None) => "token_env".to_owned(),
    }
}

/// True for `@name:server`. The allowed characters changed over time, so they are not checked (Matrix specification:
/// user identifiers).
fn is_user_id(id: &str) -> bool {
    is_matrix_id(id, '@') && server_name(id).is_some()
}

/// True for `!id` (with a server in older rooms) and `#alias:server`.
fn is_room_id_or_alias(id: &str) -> bool {
    is_matrix_id(id, '!') || is_matrix_id(id, '#') && server_name(id).is_some()
}

/// True if the text can be an id that begins with `sigil` (Matrix specification: common identifier format, at most 255
/// bytes).
pub(super) fn is_matrix_id(id: &str, sigil: char) -> bool {
    id.len() <= 255 && id.strip_prefix(sigil).is_some_and(|rest| !rest.is_empty()) && !id.chars().any(char::is_control)
}

/// The local part of a user id.
pub(super) fn local_part(id: &str) -> &str {
    let name = id.strip_prefix('@').unwrap_or(id);
    name.split_once(':').map_or(name, |(name, _)| name)
}
