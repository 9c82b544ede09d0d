//! From the first line to the server's welcome: capabilities (IRCv3 `CAP`), the proof of who it is, and a nick.

use jiff::Timestamp;
use secrecy::ExposeSecret;

use super::account::{Account, Proof};
use super::message::{Line, Message, is_name, told};
use super::sasl;
use crate::channels::seam::Lost;

/// What is asked for where it is offered. Echoes of own messages are not.
const WANTED: &[&str] = &["message-tags", "server-time", "account-tag"];
/// How many capabilities of a server are looked at.
const MOST_OFFERED: usize = 200;
/// The name in front of the host, and the one that people see when they ask.
const USER: &str = "quell";
const REAL_NAME: &str = "Quell, a gateway for agents";

/// A registration in its course.
#[derive(Debug)]
pub(super) struct Registration<'a> {
    account: &'a Account,
    offered: Vec<String>,
    /// Which nicks were refused: the wished one and so many others.
    refused: usize,
    proving: Proving,
}

/// Where the proof by SASL stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proving {
    /// It has not begun, or is not wanted.
    Not,
    /// The server was asked for it.
    Asked,
    Done,
}

/// What a line of the server leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// These lines are the answer.
    Say(Vec<Line>),
    /// It is over.
    Welcome(Welcome),
    /// It is over without success.
    Lost(Lost),
}

/// What the welcome tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Welcome {
    /// The nick that the server gave.
    pub(super) nick: String,
    /// The server's name.
    pub(super) server: String,
    /// When it was, by the server's clock, where it tells that.
    pub(super) at: Option<Timestamp>,
}

impl<'a> Registration<'a> {
    pub(super) fn new(account: &'a Account) -> Self {
        Self { account, offered: Vec::new(), refused: 0, proving: Proving::Not }
    }

    /// The first lines. A server that knows no capabilities refuses the first and goes on with the others.
    pub(super) fn begin(&self) -> Vec<Line> {
        let mut lines = vec![Line::of(&["CAP", "LS", "302"])];
        if let Proof::Password(password) = &self.account.proof {
            lines.push(Line::with_text(&["PASS"], password.expose_secret()));
        }
        lines.push(Line::of(&["NICK", &self.account.nick]));
        lines.push(Line::with_text(&["USER", USER, "0", "*"], REAL_NAME));
        lines
    }

    /// Takes in a line of the server.
    pub(super) fn take(&mut self, message: &Message) -> Progress {
        match message.command.as_str() {
            "CAP" => self.capabilities(message),
            "AUTHENTICATE" => match &self.account.proof {
                Proof::Sasl { account, password } if self.proving == Proving::Asked && message.text() == "+" => {
                    Progress::Say(sasl::plain(account, password))
                }
                _ => Progress::Say(vec![Line::of(&["AUTHENTICATE", "*"])]),
            },
            // RPL_SASLSUCCESS
            "903" => {
                self.proving = Proving::Done;
                Progress::Say(vec![end_of_capabilities()])
            }
            // ERR_NICKLOCKED, ERR_SASLFAIL, ERR_SASLTOOLONG, ERR_SASLABORTED, RPL_SASLMECHS
            "902" | "904" | "905" | "906" | "908" => refused("the account was refused", message),
            // ERR_PASSWDMISMATCH, ERR_YOUREBANNEDCREEP
            "464" | "465" => refused("the server refuses the connection", message),
            // ERR_NICKNAMEINUSE, ERR_NICKCOLLISION, ERR_UNAVAILRESOURCE
            "433" | "436" | "437" => self.another_nick(message),
            // ERR_ERRONEUSNICKNAME: one that was made longer may be too long.
            "432" if self.refused > 0 => self.another_nick(message),
            "432" => refused("the server does not take the nick", message),
            "ERROR" => Progress::Lost(parting(message)),
            "001" => self.welcome(message),
            _ => Progress::Say(Vec::new()),
        }
    }

    fn capabilities(&mut self, message: &Message) -> Progress {
        let names = message.text().split_whitespace();
        match message.param(1) {
            "LS" => {
                let free = MOST_OFFERED.saturating_sub(self.offered.len());
                self.offered.extend(names.take(free).map(str::to_owned));
                // More lines follow one with a star.
                if message.param(2) == "*" { Progress::Say(Vec::new()) } else { self.request() }
            }
            "ACK" if names.clone().any(|name| name == "sasl") => {
                self.proving = Proving::Asked;
                Progress::Say(vec![Line::of(&["AUTHENTICATE", "PLAIN"])])
            }
            "ACK" => Progress::Say(vec![end_of_capabilities()]),
            "NAK" if self.wants_sasl() => refused("the server offers no SASL for the account", message),
            "NAK" => Progress::Say(vec![end_of_capabilities()]),
            _ => Progress::Say(Vec::new()),
        }
    }

    fn request(&self) -> Progress {
        let offered = |wanted: &&&str| self.offered.iter().any(|offer| offer.split('=').next() == Some(**wanted));
        let mut wanted: Vec<&str> = WANTED.iter().filter(offered).copied().collect();
        if self.wants_sasl() {
            let Some(offer) = self.offered.iter().find(|offer| offer.split('=').next() == Some("sasl")) else {
                return Progress::Lost(no_sasl());
            };
            // `sasl=PLAIN,EXTERNAL`, or nothing of mechanisms.
            let mechanisms = offer.split_once('=').map(|(_, mechanisms)| mechanisms);
            if mechanisms.is_some_and(|mechanisms| !mechanisms.split(',').any(|one| one == "PLAIN")) {
                return Progress::Lost(no_sasl());
            }
            wanted.push("sasl");
        }
        let line = match wanted.is_empty() {
            true => end_of_capabilities(),
            false => Line::with_text(&["CAP", "REQ"], &wanted.join(" ")),
        };
        Progress::Say(vec![line])
    }

    fn wants_sasl(&self) -> bool {
        matches!(self.account.proof, Proof::Sasl { .. })
    }

    fn another_nick(&mut self, message: &Message) -> Progress {
        self.refused += 1;
        match variant(&self.account.nick, self.refused) {
            Some(nick) => Progress::Say(vec![Line::of(&["NICK", &nick])]),
            None => Progress::Lost(Lost::Connection(format!(
                "the nick {} and others like it are taken: {}",
                self.account.nick,
                told(message.text())
            ))),
        }
    }

    fn welcome(&self, message: &Message) -> Progress {
        // A server that knows no capabilities welcomes whoever does not prove who they are.
        if self.wants_sasl() && self.proving != Proving::Done {
            return Progress::Lost(no_sasl());
        }
        let nick = message.param(0);
        if !is_name(nick) || nick == "*" {
            return Progress::Lost(Lost::Connection("the server's welcome names no nick".to_owned()));
        }
        let (nick, server) = (nick.to_owned(), message.source.clone());
        Progress::Welcome(Welcome { nick, server, at: time_of(message) })
    }
}

/// When the server got or said this, where it tells that (IRCv3 `server-time`).
pub(super) fn time_of(message: &Message) -> Option<Timestamp> {
    message.tag("time")?.parse().ok()
}

/// Why the server ends the connection, from its `ERROR`. It has no number: what it says is all that there is.
pub(super) fn parting(message: &Message) -> Lost {
    // ngircd: "Access denied: Bad password?"; solanum, InspIRCd and UnrealIRCd: "K-Lined", "G-Lined", "Z:Lined", "banned".
    const FOR_LONG: &[&str] =
        &["password", "denied", "banned", "k-line", "g-line", "z-line", "z:line", "not authorized"];
    let (said, lower) = (told(message.text()), message.text().to_lowercase());
    let why = format!("the server closed the connection: {said}");
    if FOR_LONG.iter().any(|word| lower.contains(word)) { Lost::Refused(why) } else { Lost::Connection(why) }
}

fn refused(what: &str, message: &Message) -> Progress {
    Progress::Lost(Lost::Refused(format!("{what}: {}", told(message.text()))))
}

fn no_sasl() -> Lost {
    Lost::Refused("the server offers no SASL PLAIN, without which the account cannot be proven".to_owned())
}

fn end_of_capabilities() -> Line {
    Line::of(&["CAP", "END"])
}

/// A nick like the wished one: longer at first, then, for servers with short nicks, as long as that.
fn variant(wished: &str, number: usize) -> Option<String> {
    let stem = |without: usize| -> String {
        let kept = wished.chars().count().saturating_sub(without).max(1);
        wished.chars().take(kept).collect()
    };
    match number {
        1..=3 => Some(format!("{wished}{}", "_".repeat(number))),
        4 => Some(format!("{}_", stem(1))),
        5..=8 => Some(format!("{}_{}", stem(2), number - 4)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
