//! State machine of the registration: capabilities (IRCv3 `CAP`), SASL, nick.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};

use super::account::{IrcAccount, IrcCredentials};
use super::message::{IrcMessage, OutgoingIrcLine, is_valid_name, printable};
use crate::network::ListenError;

/// Capabilities to request if the server offers them. Echoes of own messages are not wanted.
const WANTED_CAPABILITIES: &[&str] = &["message-tags", "server-time", "account-tag"];
/// Largest number of offered capabilities that are remembered.
const MAX_OFFERED_CAPABILITIES: usize = 200;
/// IRCv3 `sasl-3.1`: a response is sent in chunks of this many bytes; a shorter chunk ends it.
const MAX_SASL_CHUNK_BYTES: usize = 400;
/// The user name in front of the host, and the real name that `WHOIS` shows.
const USER_NAME: &str = "quell";
const REAL_NAME: &str = "Quell, a gateway for agents";

#[derive(Debug)]
pub(super) struct IrcRegistration<'a> {
    account: &'a IrcAccount,
    offered_capabilities: Vec<String>,
    /// Number of refused nicks: the configured one and variants of it.
    refused_nicks: usize,
    sasl_state: SaslState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SaslState {
    /// Not begun, or not wanted.
    NotStarted,
    /// `AUTHENTICATE` was sent.
    Requested,
    Done,
}

/// The reaction to a line of the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RegistrationStep {
    /// Send these lines and go on.
    SendLines(Vec<OutgoingIrcLine>),
    Welcome(IrcWelcome),
    Failed(ListenError),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IrcWelcome {
    /// The nick that the server assigned.
    pub(super) nick: String,
    pub(super) server_name: String,
    /// Time of the welcome by the server's clock, if the server sends it.
    pub(super) server_time: Option<Timestamp>,
}

impl<'a> IrcRegistration<'a> {
    pub(super) fn new(account: &'a IrcAccount) -> Self {
        Self { account, offered_capabilities: Vec::new(), refused_nicks: 0, sasl_state: SaslState::NotStarted }
    }

    /// The first lines. A server without capabilities refuses the first line and accepts the others.
    pub(super) fn initial_lines(&self) -> Vec<OutgoingIrcLine> {
        let mut lines = vec![OutgoingIrcLine::from_words(&["CAP", "LS", "302"])];
        if let IrcCredentials::ServerPassword(password) = &self.account.credentials {
            lines.push(OutgoingIrcLine::from_words_and_text(&["PASS"], password.expose_secret()));
        }
        lines.push(OutgoingIrcLine::from_words(&["NICK", &self.account.configured_nick]));
        lines.push(OutgoingIrcLine::from_words_and_text(&["USER", USER_NAME, "0", "*"], REAL_NAME));
        lines
    }

    /// Handles a line of the server.
    pub(super) fn handle_message(&mut self, message: &IrcMessage) -> RegistrationStep {
        match message.command.as_str() {
            "CAP" => self.handle_capabilities(message),
            "AUTHENTICATE" => match &self.account.credentials {
                IrcCredentials::Sasl { account, password }
                    if self.sasl_state == SaslState::Requested && message.text() == "+" =>
                {
                    RegistrationStep::SendLines(sasl_plain_lines(account, password))
                }
                _ => RegistrationStep::SendLines(vec![OutgoingIrcLine::from_words(&["AUTHENTICATE", "*"])]),
            },
            // RPL_SASLSUCCESS
            "903" => {
                self.sasl_state = SaslState::Done;
                RegistrationStep::SendLines(vec![cap_end_line()])
            }
            // ERR_NICKLOCKED, ERR_SASLFAIL, ERR_SASLTOOLONG, ERR_SASLABORTED, RPL_SASLMECHS
            "902" | "904" | "905" | "906" | "908" => refused_step("the account was refused", message),
            // ERR_PASSWDMISMATCH, ERR_YOUREBANNEDCREEP
            "464" | "465" => refused_step("the server refuses the connection", message),
            // ERR_NICKNAMEINUSE, ERR_NICKCOLLISION, ERR_UNAVAILRESOURCE
            "433" | "436" | "437" => self.try_next_nick(message),
            // ERR_ERRONEUSNICKNAME: a variant may be too long.
            "432" if self.refused_nicks > 0 => self.try_next_nick(message),
            "432" => refused_step("the server does not take the nick", message),
            "ERROR" => RegistrationStep::Failed(parse_error_message(message)),
            "001" => self.handle_welcome(message),
            _ => RegistrationStep::SendLines(Vec::new()),
        }
    }

    fn handle_capabilities(&mut self, message: &IrcMessage) -> RegistrationStep {
        let names = message.text().split_whitespace();
        match message.param(1) {
            "LS" => {
                let remaining = MAX_OFFERED_CAPABILITIES.saturating_sub(self.offered_capabilities.len());
                self.offered_capabilities.extend(names.take(remaining).map(str::to_owned));
                // A star means that more lines follow.
                if message.param(2) == "*" {
                    RegistrationStep::SendLines(Vec::new())
                } else {
                    self.request_capabilities()
                }
            }
            "ACK" if names.clone().any(|name| name == "sasl") => {
                self.sasl_state = SaslState::Requested;
                RegistrationStep::SendLines(vec![OutgoingIrcLine::from_words(&["AUTHENTICATE", "PLAIN"])])
            }
            "ACK" => RegistrationStep::SendLines(vec![cap_end_line()]),
            "NAK" if self.wants_sasl() => refused_step("the server offers no SASL for the account", message),
            "NAK" => RegistrationStep::SendLines(vec![cap_end_line()]),
            _ => RegistrationStep::SendLines(Vec::new()),
        }
    }

    fn request_capabilities(&self) -> RegistrationStep {
        let offered =
            |wanted: &&&str| self.offered_capabilities.iter().any(|offer| offer.split('=').next() == Some(**wanted));
        let mut wanted: Vec<&str> = WANTED_CAPABILITIES.iter().filter(offered).copied().collect();
        if self.wants_sasl() {
            let Some(offer) = self.offered_capabilities.iter().find(|offer| offer.split('=').next() == Some("sasl"))
            else {
                return RegistrationStep::Failed(sasl_unavailable());
            };
            // `sasl=PLAIN,EXTERNAL`, or no list of mechanisms.
            let mechanisms = offer.split_once('=').map(|(_, mechanisms)| mechanisms);
            if mechanisms.is_some_and(|mechanisms| !mechanisms.split(',').any(|one| one == "PLAIN")) {
                return RegistrationStep::Failed(sasl_unavailable());
            }
            wanted.push("sasl");
        }
        let line = match wanted.is_empty() {
            true => cap_end_line(),
            false => OutgoingIrcLine::from_words_and_text(&["CAP", "REQ"], &wanted.join(" ")),
        };
        RegistrationStep::SendLines(vec![line])
    }

    fn wants_sasl(&self) -> bool {
        matches!(self.account.credentials, IrcCredentials::Sasl { .. })
    }

    fn try_next_nick(&mut self, message: &IrcMessage) -> RegistrationStep {
        self.refused_nicks += 1;
        match nick_variant(&self.account.configured_nick, self.refused_nicks) {
            Some(nick) => RegistrationStep::SendLines(vec![OutgoingIrcLine::from_words(&["NICK", &nick])]),
            None => RegistrationStep::Failed(ListenError::Connection(format!(
                "the nick {} and others like it are taken: {}",
                self.account.configured_nick,
                printable(message.text())
            ))),
        }
    }

    fn handle_welcome(&self, message: &IrcMessage) -> RegistrationStep {
        // A server without capabilities welcomes a client that did not authenticate.
        if self.wants_sasl() && self.sasl_state != SaslState::Done {
            return RegistrationStep::Failed(sasl_unavailable());
        }
        let nick = message.param(0);
        if !is_valid_name(nick) || nick == "*" {
            return RegistrationStep::Failed(ListenError::Connection("the server's welcome names no nick".to_owned()));
        }
        let (nick, server) = (nick.to_owned(), message.source.clone());
        RegistrationStep::Welcome(IrcWelcome { nick, server_name: server, server_time: server_time(message) })
    }
}

/// The time of a message by the server's clock, if the server sends it (IRCv3 `server-time`).
pub(super) fn server_time(message: &IrcMessage) -> Option<Timestamp> {
    message.tag("time")?.parse().ok()
}

/// The reason for which the server ends the connection, from its `ERROR`. The line has no numeric code, so the text
/// decides.
pub(super) fn parse_error_message(message: &IrcMessage) -> ListenError {
    // ngircd: "Access denied: Bad password?".
    // solanum, InspIRCd and UnrealIRCd: "K-Lined", "G-Lined", "Z:Lined", "banned".
    const REFUSAL_WORDS: &[&str] =
        &["password", "denied", "banned", "k-line", "g-line", "z-line", "z:line", "not authorized"];
    let (reason, lower) = (printable(message.text()), message.text().to_lowercase());
    let why = format!("the server closed the connection: {reason}");
    if REFUSAL_WORDS.iter().any(|word| lower.contains(word)) {
        ListenError::Refused(why)
    } else {
        ListenError::Connection(why)
    }
}

fn refused_step(problem: &str, message: &IrcMessage) -> RegistrationStep {
    RegistrationStep::Failed(ListenError::Refused(format!("{problem}: {}", printable(message.text()))))
}

fn sasl_unavailable() -> ListenError {
    ListenError::Refused("the server offers no SASL PLAIN, without which the account cannot be proven".to_owned())
}

/// The lines that authenticate an account by SASL PLAIN (RFC 4616).
fn sasl_plain_lines(account: &str, password: &SecretString) -> Vec<OutgoingIrcLine> {
    let response = STANDARD.encode(format!("\0{account}\0{}", password.expose_secret()));
    let mut chunks: Vec<_> = response.as_bytes().chunks(MAX_SASL_CHUNK_BYTES).map(String::from_utf8_lossy).collect();
    if chunks.last().is_none_or(|chunk| chunk.len() == MAX_SASL_CHUNK_BYTES) {
        chunks.push("+".into());
    }
    chunks.iter().map(|chunk| OutgoingIrcLine::from_words(&["AUTHENTICATE", chunk])).collect()
}

fn cap_end_line() -> OutgoingIrcLine {
    OutgoingIrcLine::from_words(&["CAP", "END"])
}

/// A variant of the configured nick: first longer variants, then, for servers with short nicks, variants of the same
/// length.
fn nick_variant(configured_nick: &str, number: usize) -> Option<String> {
    let stem = |without: usize| -> String {
        let kept = configured_nick.chars().count().saturating_sub(without).max(1);
        configured_nick.chars().take(kept).collect()
    };
    match number {
        1..=3 => Some(format!("{configured_nick}{}", "_".repeat(number))),
        4 => Some(format!("{}_", stem(1))),
        5..=8 => Some(format!("{}_{}", stem(2), number - 4)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
