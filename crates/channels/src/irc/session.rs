//! State machine of a registered connection; has no socket and no clock.

use std::time::Duration;

use jiff::Timestamp;
use tracing::warn;
use uuid::Uuid;

use super::account::IrcAccount;
use super::message::{IrcMessage, OutgoingIrcLine, is_valid_name, printable};
use super::registration::{IrcWelcome, parse_error_message, server_time};
use super::send_limits::IrcSendLimits;
use super::server_info::IrcServerInfo;
use super::text;
use crate::network::{ChatAddress, InboundMessage, ListenError, MessageId, OwnAccount};

/// Largest length of the room list in one `JOIN`, in bytes.
const MAX_JOIN_LINE_BYTES: usize = 400;
/// A longer message id is ignored: the specification has short ids.
const MAX_MESSAGE_ID_BYTES: usize = 200;
/// Largest number of warnings per connection.
const MAX_WARNINGS: u32 = 100;
/// Servers that replay the history of a room mark the lines with their time. A line that is older than the connection
/// by more than this (for different clocks of servers) is ignored.
const MAX_BACKLOG_AGE: Duration = Duration::from_secs(60);

/// A connection that the server has welcomed.
#[derive(Debug)]
pub(super) struct IrcSession<'a> {
    account: &'a IrcAccount,
    nick: String,
    server_info: IrcServerInfo,
    send_limits: IrcSendLimits,
    welcomed_at: Option<Timestamp>,
    /// With `message_count` it is the id of a message without an id.
    connection_id: Uuid,
    message_count: u64,
    warning_count: u32,
}

/// The reaction to a line of the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum IrcEffect {
    SendLine(OutgoingIrcLine),
    Receive(InboundMessage),
    /// The message of the day is over: the server has announced everything.
    MotdEnded,
    Disconnected(ListenError),
}

impl<'a> IrcSession<'a> {
    pub(super) fn new(account: &'a IrcAccount, welcome: IrcWelcome) -> Self {
        let send_limits = IrcSendLimits::new(&welcome.nick);
        let (server_info, connection_id) = (IrcServerInfo::new(&welcome.server_name), Uuid::now_v7());
        Self {
            account,
            nick: welcome.nick,
            server_info,
            send_limits,
            welcomed_at: welcome.server_time,
            connection_id,
            message_count: 0,
            warning_count: 0,
        }
    }

    /// The account under its present nick.
    pub(super) fn own_account(&self) -> OwnAccount {
        OwnAccount { id: self.server_info.casemapping.fold_case(&self.nick), name: self.nick.clone() }
    }

    pub(super) fn server_info(&self) -> &IrcServerInfo {
        &self.server_info
    }

    pub(super) fn send_limits(&self) -> &IrcSendLimits {
        &self.send_limits
    }

    /// The lines that join the configured rooms.
    pub(super) fn join_lines(&self) -> Vec<OutgoingIrcLine> {
        let mut lines: Vec<String> = Vec::new();
        for room in &self.account.configured_rooms {
            match lines.last_mut().filter(|line| line.len() + room.len() < MAX_JOIN_LINE_BYTES) {
                Some(line) => {
                    line.push(',');
                    line.push_str(room);
                }
                None => lines.push(room.clone()),
            }
        }
        lines.iter().map(|rooms| OutgoingIrcLine::from_words(&["JOIN", rooms])).collect()
    }

    /// Requests the configured nick, if the account has another one.
    pub(super) fn reclaim_nick_line(&self) -> Option<OutgoingIrcLine> {
        let configured = &self.account.configured_nick;
        (!self.server_info.casemapping.equals(&self.nick, configured))
            .then(|| OutgoingIrcLine::from_words(&["NICK", configured]))
    }

    /// Handles a line of the server. Any line may change the account and the send limits.
    pub(super) fn handle_message(&mut self, message: &IrcMessage) -> Option<IrcEffect> {
        match message.command.as_str() {
            "PRIVMSG" => return self.parse_privmsg(message).map(IrcEffect::Receive),
            "PING" => return Some(IrcEffect::SendLine(pong_line(message))),
            "005" => {
                self.server_info.apply_isupport(message);
                self.send_limits.set_casemapping(self.server_info.casemapping);
            }
            // RPL_ENDOFMOTD, ERR_NOMOTD
            "376" | "422" => return Some(IrcEffect::MotdEnded),
            "NICK" if self.is_own_nick(message.nick()) => self.change_nick(message.param(0)),
            "NICK" | "QUIT" => return self.handle_freed_nick(message.nick()).map(IrcEffect::SendLine),
            "JOIN" if self.is_own_nick(message.nick()) => {
                self.send_limits.mark_joined(message.param(0));
                self.send_limits.observe_source(&message.source);
            }
            "PART" if self.is_own_nick(message.nick()) && self.is_configured_room(message.param(0)) => {
                self.leave_room(message.param(0), "it was made to leave");
            }
            "KICK" if self.is_own_nick(message.param(1)) && self.is_configured_room(message.param(0)) => {
                let why = format!("kicked by {}: {}", printable(message.nick()), printable(message.text()));
                self.leave_room(message.param(0), &why);
            }
            "INVITE" if self.is_own_nick(message.param(0)) && self.is_configured_room(message.param(1)) => {
                return Some(IrcEffect::SendLine(OutgoingIrcLine::from_words(&["JOIN", message.param(1)])));
            }
            // ERR_NOSUCHCHANNEL, ERR_TOOMANYCHANNELS, ERR_CHANNELISFULL, ERR_INVITEONLYCHAN, ERR_BANNEDFROMCHAN,
            // ERR_BADCHANNELKEY, ERR_BADCHANMASK, ERR_NEEDREGGEDNICK
            "403" | "405" | "471" | "473" | "474" | "475" | "476" | "477"
                if self.is_configured_room(message.param(1)) =>
            {
                self.leave_room(message.param(1), &printable(message.text()));
            }
            // ERR_NOSUCHNICK, ERR_CANNOTSENDTOCHAN, ERR_TOOMANYTARGETS, ERR_NOTEXTTOSEND, ERR_INPUTTOOLONG
            "401" | "404" | "407" | "412" | "417" if self.allow_warning() => {
                let (target, why) = (printable(message.param(1)), printable(message.text()));
                warn!(channel = self.account.channel_name, target, why, "the server did not pass a message on");
            }
            "KILL" if self.is_own_nick(message.param(0)) => {
                let why = format!("the network ended the connection: {}", printable(message.text()));
                return Some(IrcEffect::Disconnected(ListenError::Connection(why)));
            }
            "ERROR" => return Some(IrcEffect::Disconnected(parse_error_message(message))),
            _ => {}
        }
        None
    }

    /// The message of a person in a `PRIVMSG`, if it is for a room or this account.
    fn parse_privmsg(&mut self, message: &IrcMessage) -> Option<InboundMessage> {
        let (nick, target) = (message.nick(), message.param(0));
        // The name of a server has a dot, a nick does not.
        let is_person = is_valid_name(nick) && !nick.contains('.') && !self.is_own_nick(nick);
        if !is_person || !is_valid_name(target) || self.is_backlog(message) {
            return None;
        }
        let text = text::spoken_text(message.params.get(1)?)?;
        let is_group = self.server_info.is_room_name(target);
        if !is_group && !self.is_own_nick(target) {
            return None;
        }
        let addressed_text = self.server_info.strip_nick_prefix(&self.nick, &text).map(str::to_owned);
        let is_addressed = !is_group || addressed_text.is_some();
        // A private message may also begin with the nick.
        let text = addressed_text.unwrap_or(text);
        if text.is_empty() {
            return None;
        }
        let casemapping = self.server_info.casemapping;
        let sender = casemapping.fold_case(nick);
        let target = if is_group { casemapping.fold_case(target) } else { sender.clone() };
        let id = self.message_id(message);
        Some(InboundMessage {
            message_id: MessageId(id.clone()),
            id,
            sender_name: Some(match message.tag("account") {
                Some(account) => format!("{nick} (account {})", printable(account)),
                None => nick.to_owned(),
            }),
            sender,
            address: ChatAddress { target, thread: None },
            scope_id: None,
            text,
            is_addressed,
            is_group,
            attachments: Vec::new(),
        })
    }

    /// The server's message id, or a generated one.
    fn message_id(&mut self, message: &IrcMessage) -> String {
        self.message_count += 1;
        match message.tag("msgid") {
            Some(id) if id.len() <= MAX_MESSAGE_ID_BYTES && is_valid_name(id) => id.to_owned(),
            _ => format!("{}-{}", self.connection_id.simple(), self.message_count),
        }
    }

    fn is_backlog(&self, message: &IrcMessage) -> bool {
        match (server_time(message), self.welcomed_at) {
            (Some(at), Some(welcomed)) => {
                Duration::try_from(welcomed.duration_since(at)).is_ok_and(|before| before > MAX_BACKLOG_AGE)
            }
            _ => false,
        }
    }

    fn is_own_nick(&self, nick: &str) -> bool {
        self.server_info.casemapping.equals(nick, &self.nick)
    }

    fn is_configured_room(&self, room: &str) -> bool {
        self.account.configured_rooms.iter().any(|configured| self.server_info.casemapping.equals(room, configured))
    }

    fn change_nick(&mut self, nick: &str) {
        if is_valid_name(nick) {
            self.nick = nick.to_owned();
            self.send_limits.set_nick(nick);
        }
    }

    /// Another user gave up a nick. If it is the configured one, request it.
    fn handle_freed_nick(&self, nick: &str) -> Option<OutgoingIrcLine> {
        let is_configured = self.server_info.casemapping.equals(nick, &self.account.configured_nick);
        if is_configured { self.reclaim_nick_line() } else { None }
    }

    /// Marks a room as left. The account does not rejoin at once, since the removal may have a reason: it rejoins on
    /// the next connection or on an invitation.
    fn leave_room(&mut self, room: &str, why: &str) {
        if self.allow_warning() {
            warn!(channel = self.account.channel_name, room = printable(room), why, "not in the room");
        }
        self.send_limits.mark_left(room, why);
    }

    /// Limits the number of warnings, so that a server cannot fill the log.
    fn allow_warning(&mut self) -> bool {
        self.warning_count += 1;
        self.warning_count <= MAX_WARNINGS
    }
}

/// The reply to `PING`: the same parameters.
pub(super) fn pong_line(message: &IrcMessage) -> OutgoingIrcLine {
    let mut words = vec!["PONG"];
    let last = message.params.len().saturating_sub(1);
    words.extend(message.params.iter().take(last).map(String::as_str));
    OutgoingIrcLine::from_words_and_text(&words, message.text())
}

#[cfg(test)]
mod tests;
