//! Messages that show calls which wait for a person, and the answers of people to them, by button or command.
//!
//! One task for each call sends its message and edits it: when a quorum counts one person more, and when the call is
//! settled, by an answer, its time limit or a stop. It follows the approval itself, so no event can be lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_engine::engine::{AnswerError, Caller};
use quell_kernel::approval::DecisionForbidden;
use quell_kernel::channel::approval_button::{ApprovalButton, ButtonChoice};
use quell_kernel::channel::chat_language::ChatLanguage;
use quell_protocol::api::{AccessLevel, Grants};
use quell_protocol::approval::{AllowanceScope, ApprovalAnswer, ApprovalRow, ApprovalState, Decision};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, timeout};

use super::approval_texts::{self as texts, ApprovalMessage};
use super::channel::ActiveChannel;
use super::notices::NoticePriority;
use super::reply_target::ReplyTarget;
use super::send_retry::{RetrySafety, SendPersistence, retry};
use super::{Channels, channel_caller};
use crate::network::{ButtonPress, ChatAddress, MessageId, PressReply, SendError, SenderIdentity};

/// Calls that are shown with buttons at the same time. Further ones get a notice without buttons.
const MAX_SHOWN: usize = 256;
/// Time limit for sending the message.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for showing that one person more has allowed the call.
const COUNT_EDIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for showing the end.
const FINAL_EDIT_TIMEOUT: Duration = Duration::from_secs(60);
/// A press is answered within this time, retries included. Discord waits for three seconds, the others longer.
const PRESS_DEADLINE: Duration = Duration::from_millis(2500);
/// Time limit of one answer to a press, for a network that does not respond.
const PRESS_TIMEOUT: Duration = Duration::from_secs(10);

/// The messages with buttons that show calls which wait now, by the id of the approval.
#[derive(Default)]
pub(super) struct ApprovalMessages(Mutex<BTreeMap<String, ApprovalMessageState>>);

struct ApprovalMessageState {
    channel: String,
    address: ChatAddress,
    /// None until the network has named it.
    message: Option<MessageId>,
    /// False if the chat does not show the whole call.
    offers_allow: bool,
}

/// Removes its entry when the message shows the end of the call.
struct ShownGuard<'a> {
    messages: &'a ApprovalMessages,
    id: String,
}

/// Shows in its chat that a call waits, and returns at once. Nothing waits for the message.
pub(super) fn show_approval(channels: &Channels, target: &ReplyTarget, id: &str) {
    let Some(rows) = channels.engine().watch_approval(id) else { return };
    if target.channel.network.features().buttons.is_some() && channels.approval_messages().has_room() {
        channels.scope().spawn(run_approval_message(channels.clone(), target.clone(), rows));
    } else {
        push_notice(channels, target, &rows.borrow());
    }
}

fn push_notice(channels: &Channels, target: &ReplyTarget, row: &ApprovalRow) {
    let text = texts::approval_notice_text(row, channels.approval_language(row));
    target.channel.notices.push(NoticePriority::Text, &target.address, text);
}

/// Sends the message and edits it until the call is settled.
async fn run_approval_message(channels: Channels, target: ReplyTarget, mut rows: watch::Receiver<ApprovalRow>) {
    let Some(buttons) = target.channel.network.features().buttons else { return };
    let row = rows.borrow_and_update().clone();
    if row.state != ApprovalState::Pending {
        return;
    }
    let message = ApprovalMessage::new(&row, &buttons.message_format(), channels.approval_language(&row));
    // Before the message is sent: a press may come before the network's response.
    let shown = channels.approval_messages().register(&target, &row.id, message.offers(Decision::Allow));
    let (address, key) = (&target.address, format!("{}-approval", row.id));
    let send = || buttons.send(address, &message.piece, &message.buttons, &key);
    match timeout(SEND_TIMEOUT, retry(send, RetrySafety::OnlyWithKey, SendPersistence::FewTries)).await {
        Ok(Ok(message)) => shown.set_message(message),
        Ok(Err(error @ (SendError::NotDelivered { .. } | SendError::Refused { .. }))) => {
            tracing::warn!(run = %row.run_id, %error, "a message with buttons was not delivered");
            return push_notice(&channels, &target, &row);
        }
        // It may be shown. A press then says which message it is.
        unknown @ (Ok(Err(SendError::Unknown { .. })) | Err(_)) => {
            tracing::warn!(run = %row.run_id, ?unknown, "it is not known whether a message with buttons is shown");
        }
    }
    // Fails only after a panic of the table; then there is no end to show.
    while rows.changed().await.is_ok() {
        let row = rows.borrow_and_update().clone();
        let is_settled = row.state != ApprovalState::Pending;
        if let Some(message) = shown.message() {
            // The configuration of the channel may have changed, its token included.
            let channel = channels.current_channel(&target.channel);
            show_change(&channel, address, &message, &row, channels.approval_language(&row)).await;
        }
        if is_settled {
            return;
        }
    }
}

async fn show_change(
    channel: &ActiveChannel,
    address: &ChatAddress,
    message: &MessageId,
    row: &ApprovalRow,
    language: ChatLanguage,
) {
    let Some(buttons) = channel.network.features().buttons else { return };
    let content = ApprovalMessage::new(row, &buttons.message_format(), language);
    let edit = || buttons.edit(address, message, &content.piece, &content.buttons);
    let is_pending = row.state == ApprovalState::Pending;
    let limit = if is_pending { COUNT_EDIT_TIMEOUT } else { FINAL_EDIT_TIMEOUT };
    let edited = timeout(limit, retry(edit, RetrySafety::Idempotent, SendPersistence::UntilCancelled)).await;
    if !matches!(edited, Ok(Ok(()))) {
        tracing::warn!(run = %row.run_id, ?edited, "a message with buttons was not changed");
    }
}

/// Decides what a press does. The networks with buttons vouch for its sender; everything else in it may be forged.
pub(super) fn decide_press(channels: &Channels, channel: &ActiveChannel, press: &ButtonPress) -> PressReply {
    if channel.access_level(&press.sender).is_none() {
        let language = channels.channel_language(channel);
        return PressReply::Refused(plain(texts::NOT_AN_APPROVER.text(language)));
    }
    let Some(button) = ApprovalButton::parse(&press.data) else {
        return PressReply::Refused(plain(texts::WRONG_BUTTON.text(channels.channel_language(channel))));
    };
    let row = channels.engine().find_approval(&button.approval_id);
    let language = match &row {
        Some(row) => channels.approval_language(row),
        None => channels.channel_language(channel),
    };
    let is_pending = row.is_some_and(|row| row.state == ApprovalState::Pending);
    if is_pending && !channels.approval_messages().has_button(channel, press, &button) {
        return PressReply::Refused(plain(texts::WRONG_BUTTON.text(language)));
    }
    match answer_approval(channels, channel, &press.sender, &button.approval_id, button.choice.answer(), language) {
        PressReply::Counted(text) => PressReply::Counted(plain(&text)),
        PressReply::Refused(text) => PressReply::Refused(plain(&text)),
    }
}

/// Tells the network and the person what came of a press. `_permit` limits the number of these calls.
pub(super) async fn answer_press(
    channel: Arc<ActiveChannel>,
    press: ButtonPress,
    reply: PressReply,
    _permit: OwnedSemaphorePermit,
) {
    let Some(buttons) = channel.network.features().buttons else { return };
    let before_deadline = SendPersistence::FewTriesBefore(Instant::now() + PRESS_DEADLINE);
    let answer = || buttons.answer_press(&press, &reply);
    let answered = timeout(PRESS_TIMEOUT, retry(answer, RetrySafety::OnlyWithKey, before_deadline)).await;
    if !matches!(answered, Ok(Ok(()))) {
        tracing::debug!(channel = channel.name, ?answered, "the press of a button was not answered");
    }
}

/// Answers a call of a run in this channel. An approver answers as a person, also for a run of their own: the
/// configuration trusts the name. An operator is no approver. The reply is Markdown.
pub(super) fn answer_approval(
    channels: &Channels,
    channel: &ActiveChannel,
    sender: &str,
    id: &str,
    answer: ApprovalAnswer,
    language: ChatLanguage,
) -> PressReply {
    let of_channel = format!("{}:", channel.name);
    let row = channels.engine().find_approval(id).filter(|row| row.principal.as_str().starts_with(&of_channel));
    let Some(row) = row else { return PressReply::Refused(texts::NO_SUCH_APPROVAL.text(language).to_owned()) };
    let is_approver = channel.is_approver(sender);
    let grants = Grants { approve: is_approver, ..Grants::NONE };
    let caller = channel_caller(&channel.name, sender, AccessLevel::Write);
    // A question is for the user who sent the message, if the network vouches for them.
    let is_asked = row.question.is_some() && channel.network.sender_identity() == SenderIdentity::Proven;
    let caller = Caller { grants, verified_person: is_approver || is_asked, ..caller };
    let (decision, scope) = (answer.decision, answer.scope.unwrap_or(AllowanceScope::Once));
    let answered = channels.engine().answer_approval(&caller, id, answer);
    if let Err(refused @ AnswerError::NotAllowed(..)) = &answered {
        let attempt = if decision == Decision::Allow { "approve" } else { "deny" };
        channels.engine().audit_refusal(&caller, &format!("{attempt} {id}"), &refused.to_string());
    }
    match answered {
        Ok(row) if decision == Decision::Allow => PressReply::Counted(texts::allowed_text(&row, scope, language)),
        Ok(row) => PressReply::Counted(texts::denied_text(&row, language)),
        Err(AnswerError::NotAllowed(_, DecisionForbidden::MissingApproveScope)) => {
            PressReply::Refused(texts::NOT_AN_APPROVER.text(language).to_owned())
        }
        Err(AnswerError::AlreadySettled(row)) => PressReply::Refused(texts::settled_before_text(&row, language)),
        Err(error) => PressReply::Refused(texts::unanswered_text(&error, language)),
    }
}

/// A text without the marks of code, for networks that show the answer to a press as it is.
fn plain(text: &str) -> String {
    text.replace('`', "")
}

impl ApprovalMessages {
    fn has_room(&self) -> bool {
        self.lock().len() < MAX_SHOWN
    }

    fn register(&self, target: &ReplyTarget, id: &str, offers_allow: bool) -> ShownGuard<'_> {
        let (channel, address) = (target.channel.name.clone(), target.address.clone());
        self.lock().insert(id.to_owned(), ApprovalMessageState { channel, address, message: None, offers_allow });
        ShownGuard { messages: self, id: id.to_owned() }
    }

    /// True if the message of the press shows this call and has this button. As long as the network has not named the
    /// message, the press of an approver names it.
    fn has_button(&self, channel: &ActiveChannel, press: &ButtonPress, button: &ApprovalButton) -> bool {
        let mut messages = self.lock();
        let Some(shown) = messages.get_mut(&button.approval_id) else { return false };
        let is_here = shown.channel == channel.name && shown.address.target == press.address.target;
        let is_offered = button.choice == ButtonChoice::Deny || shown.offers_allow;
        if !is_here || !is_offered {
            return false;
        }
        if shown.message.is_none() && channel.is_approver(&press.sender) {
            shown.message = Some(press.message_id.clone());
        }
        shown.message.as_ref().is_none_or(|message| *message == press.message_id)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, ApprovalMessageState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ShownGuard<'_> {
    fn message(&self) -> Option<MessageId> {
        self.messages.lock().get(&self.id)?.message.clone()
    }

    fn set_message(&self, message: MessageId) {
        if let Some(shown) = self.messages.lock().get_mut(&self.id) {
            shown.message = Some(message);
        }
    }
}

impl Drop for ShownGuard<'_> {
    fn drop(&mut self) {
        self.messages.lock().remove(&self.id);
    }
}
