//! What is done with a server's lines after its welcome. It knows no socket and no clock.

use std::time::Duration;

use jiff::Timestamp;
use tracing::warn;
use uuid::Uuid;

use super::account::Account;
use super::message::{Line, Message, is_name, told};
use super::reach::Reach;
use super::registration::{Welcome, parting, time_of};
use super::server::Server;
use super::words;
use crate::channels::seam::{Heard, Lost, MessageId, Own, Place};

/// How many bytes of rooms go into one `JOIN`.
const ROOMS_IN_A_LINE: usize = 400;
/// A longer id of a message is none: the specification has them short.
const LONGEST_ID: usize = 200;
/// How many warnings one connection is worth.
const MOST_WARNINGS: u32 = 100;
/// Servers that show a room's past to who comes in mark it with its time. What is older than the connection by more than clocks
/// of servers differ was meant for others.
const PAST: Duration = Duration::from_secs(60);

/// A connection that the server has welcomed.
#[derive(Debug)]
pub(super) struct Live<'a> {
    account: &'a Account,
    nick: String,
    server: Server,
    reach: Reach,
    welcomed: Option<Timestamp>,
    /// With a count it is the id of a message that has none.
    connection: Uuid,
    count: u64,
    warnings: u32,
}

/// What a line leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// This is the answer.
    Say(Line),
    /// Somebody said something.
    Hear(Heard),
    /// The account is called so now.
    Called(Own),
    /// The connection reaches others than before.
    Reaches(Reach),
    /// The server has told all about itself.
    Introduced,
    /// It is over.
    Lost(Lost),
}

impl<'a> Live<'a> {
    pub(super) fn new(account: &'a Account, welcome: Welcome) -> Self {
        let reach = Reach::new(&welcome.nick);
        let (server, connection) = (Server::new(&welcome.server), Uuid::now_v7());
        Self { account, nick: welcome.nick, server, reach, welcomed: welcome.at, connection, count: 0, warnings: 0 }
    }

    /// The account, as it is called now.
    pub(super) fn own(&self) -> Own {
        Own { id: self.server.casemapping.fold(&self.nick), name: self.nick.clone() }
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    pub(super) fn reach(&self) -> &Reach {
        &self.reach
    }

    /// The first lines: into all rooms.
    pub(super) fn begin(&self) -> Vec<Line> {
        let mut lines: Vec<String> = Vec::new();
        for room in &self.account.rooms {
            match lines.last_mut().filter(|line| line.len() + room.len() < ROOMS_IN_A_LINE) {
                Some(line) => {
                    line.push(',');
                    line.push_str(room);
                }
                None => lines.push(room.clone()),
            }
        }
        lines.iter().map(|rooms| Line::of(&["JOIN", rooms])).collect()
    }

    /// A good moment for what is not urgent: to ask for the wished nick.
    pub(super) fn quiet(&self) -> Option<Line> {
        let wished = &self.account.nick;
        (!self.server.casemapping.is_same(&self.nick, wished)).then(|| Line::of(&["NICK", wished]))
    }

    /// Takes in a line of the server.
    pub(super) fn take(&mut self, message: &Message) -> Vec<Effect> {
        match message.command.as_str() {
            "PRIVMSG" => self.heard(message).map(Effect::Hear).into_iter().collect(),
            "PING" => vec![Effect::Say(pong(message))],
            "005" => {
                self.server.learn(message);
                self.reach.compares(self.server.casemapping);
                vec![Effect::Called(self.own()), self.reaches()]
            }
            // RPL_ENDOFMOTD, ERR_NOMOTD
            "376" | "422" => vec![Effect::Introduced],
            "NICK" => self.renamed(message),
            "QUIT" => self.nick_is_free(message).into_iter().collect(),
            "JOIN" if self.is_own(message.nick()) => {
                self.reach.is_in(message.param(0));
                self.reach.seen_as(&message.source);
                vec![self.reaches()]
            }
            "PART" if self.is_own(message.nick()) && self.is_wished(message.param(0)) => {
                self.out_of(message.param(0), "it was made to leave")
            }
            "KICK" if self.is_own(message.param(1)) && self.is_wished(message.param(0)) => {
                let why = format!("kicked by {}: {}", told(message.nick()), told(message.text()));
                self.out_of(message.param(0), &why)
            }
            "INVITE" if self.is_own(message.param(0)) => self.invited(message.param(1)),
            // ERR_NOSUCHCHANNEL, ERR_TOOMANYCHANNELS, ERR_CHANNELISFULL, ERR_INVITEONLYCHAN, ERR_BANNEDFROMCHAN,
            // ERR_BADCHANNELKEY, ERR_BADCHANMASK, ERR_NEEDREGGEDNICK
            "403" | "405" | "471" | "473" | "474" | "475" | "476" | "477" if self.is_wished(message.param(1)) => {
                self.out_of(message.param(1), &told(message.text()))
            }
            // ERR_NOSUCHNICK, ERR_CANNOTSENDTOCHAN, ERR_TOOMANYTARGETS, ERR_NOTEXTTOSEND, ERR_INPUTTOOLONG
            "401" | "404" | "407" | "412" | "417" => {
                let (target, why) = (told(message.param(1)), told(message.text()));
                if self.may_warn() {
                    warn!(channel = self.account.channel, target, why, "the server did not pass a message on");
                }
                Vec::new()
            }
            "KILL" if self.is_own(message.param(0)) => {
                vec![Effect::Lost(Lost::Connection(format!(
                    "the network ended the connection: {}",
                    told(message.text())
                )))]
            }
            "ERROR" => vec![Effect::Lost(parting(message))],
            _ => Vec::new(),
        }
    }

    /// What a person said, if one said something here.
    fn heard(&mut self, message: &Message) -> Option<Heard> {
        let (nick, target) = (message.nick(), message.param(0));
        // A server's name holds a dot, a nick does not.
        let somebody = is_name(nick) && !nick.contains('.') && !self.is_own(nick);
        if !somebody || !is_name(target) || self.is_past(message) {
            return None;
        }
        let text = words::heard(message.params.get(1)?)?;
        let group = self.server.is_room(target);
        if !group && !self.is_own(target) {
            return None;
        }
        let said_to_us = self.server.said_to(&self.nick, &text).map(str::to_owned);
        let addressed = !group || said_to_us.is_some();
        // Also a private message may begin with the nick, out of habit.
        let text = said_to_us.unwrap_or(text);
        if text.is_empty() {
            return None;
        }
        let casemapping = self.server.casemapping;
        let sender = casemapping.fold(nick);
        let target = if group { casemapping.fold(target) } else { sender.clone() };
        let id = self.id_of(message);
        Some(Heard {
            message: MessageId(id.clone()),
            id,
            sender_name: Some(match message.tag("account") {
                Some(account) => format!("{nick} (account {})", told(account)),
                None => nick.to_owned(),
            }),
            sender,
            place: Place { target, thread: None },
            scope_id: None,
            text,
            addressed,
            group,
            attachments: Vec::new(),
        })
    }

    /// The server's id, or one of our own.
    fn id_of(&mut self, message: &Message) -> String {
        self.count += 1;
        match message.tag("msgid") {
            Some(id) if id.len() <= LONGEST_ID && is_name(id) => id.to_owned(),
            _ => format!("{}-{}", self.connection.simple(), self.count),
        }
    }

    fn is_past(&self, message: &Message) -> bool {
        match (time_of(message), self.welcomed) {
            (Some(at), Some(welcomed)) => {
                Duration::try_from(welcomed.duration_since(at)).is_ok_and(|before| before > PAST)
            }
            _ => false,
        }
    }

    fn is_own(&self, nick: &str) -> bool {
        self.server.casemapping.is_same(nick, &self.nick)
    }

    fn is_wished(&self, room: &str) -> bool {
        self.account.rooms.iter().any(|wished| self.server.casemapping.is_same(room, wished))
    }

    fn renamed(&mut self, message: &Message) -> Vec<Effect> {
        if !self.is_own(message.nick()) {
            return self.nick_is_free(message).into_iter().collect();
        }
        if !is_name(message.param(0)) {
            return Vec::new();
        }
        self.nick = message.param(0).to_owned();
        self.reach.called(&self.nick);
        vec![Effect::Called(self.own()), self.reaches()]
    }

    /// Somebody has left a nick. If it was the wished one, it is taken.
    fn nick_is_free(&self, message: &Message) -> Option<Effect> {
        let is_wished = self.server.casemapping.is_same(message.nick(), &self.account.nick);
        if is_wished { self.quiet().map(Effect::Say) } else { None }
    }

    /// Who put it out of a room may have had a reason, so it comes back with the next connection or when it is invited.
    fn out_of(&mut self, room: &str, why: &str) -> Vec<Effect> {
        if self.may_warn() {
            warn!(channel = self.account.channel, room = told(room), why, "not in the room");
        }
        self.reach.is_out(room, why);
        vec![self.reaches()]
    }

    /// A server cannot fill the log.
    fn may_warn(&mut self) -> bool {
        self.warnings += 1;
        self.warnings <= MOST_WARNINGS
    }

    fn invited(&self, room: &str) -> Vec<Effect> {
        if self.is_wished(room) { vec![Effect::Say(Line::of(&["JOIN", room]))] } else { Vec::new() }
    }

    fn reaches(&self) -> Effect {
        Effect::Reaches(self.reach.clone())
    }
}

/// The answer that keeps a connection alive: what was asked, again.
pub(super) fn pong(message: &Message) -> Line {
    let mut words = vec!["PONG"];
    let last = message.params.len().saturating_sub(1);
    words.extend(message.params.iter().take(last).map(String::as_str));
    Line::with_text(&words, message.text())
}

#[cfg(test)]
mod tests;
