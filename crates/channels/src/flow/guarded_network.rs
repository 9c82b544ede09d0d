//! Send nothing to a network while this node may not work: it has lost its lease, and another node tells what is to be
//! told. A daemon that was stopped by a signal finds out here.

use std::sync::Arc;

use quell_engine::Engine;
use quell_protocol::Attachment;

use crate::format::{MessageFormat, MessagePiece};
use crate::network::{
    ButtonPress, ChatAddress, Drafts, FileTransfer, InboundSink, ListenError, MessageButton, MessageButtons, MessageId,
    Network, NetworkError, NetworkFeatures, NetworkLimits, PressReply, Reactions, SendError, SenderIdentity,
    TypingIndicator, async_trait,
};

pub(super) struct GuardedNetwork {
    engine: Engine,
    network: Arc<dyn Network>,
}

impl GuardedNetwork {
    /// The network itself without a cluster.
    pub(super) fn wrap(engine: &Engine, network: Arc<dyn Network>) -> Arc<dyn Network> {
        match engine.cluster() {
            Some(_) => Arc::new(Self { engine: engine.clone(), network }),
            None => network,
        }
    }

    fn check(&self) -> Result<(), SendError> {
        if self.engine.permits_work() {
            return Ok(());
        }
        Err(SendError::Refused { why: "this node has lost its lease".to_owned() })
    }

    /// The feature is there: `features` says so.
    fn missing() -> SendError {
        SendError::Refused { why: "the network cannot do that".to_owned() }
    }
}

#[async_trait]
impl Network for GuardedNetwork {
    fn limits(&self) -> NetworkLimits {
        self.network.limits()
    }

    fn sender_identity(&self) -> SenderIdentity {
        self.network.sender_identity()
    }

    async fn listen(&self, sink: &dyn InboundSink) -> ListenError {
        self.network.listen(sink).await
    }

    async fn send(&self, address: &ChatAddress, piece: &MessagePiece, key: &str) -> Result<MessageId, SendError> {
        self.check()?;
        self.network.send(address, piece, key).await
    }

    async fn send_urgent(
        &self,
        address: &ChatAddress,
        piece: &MessagePiece,
        key: &str,
    ) -> Result<MessageId, SendError> {
        self.check()?;
        self.network.send_urgent(address, piece, key).await
    }

    async fn probe(&self) -> Result<String, NetworkError> {
        self.network.probe().await
    }

    fn features(&self) -> NetworkFeatures<'_> {
        let inner = self.network.features();
        NetworkFeatures {
            drafts: inner.drafts.map(|_| self as &dyn Drafts),
            typing: inner.typing.map(|_| self as &dyn TypingIndicator),
            reactions: inner.reactions.map(|_| self as &dyn Reactions),
            files: inner.files.map(|_| self as &dyn FileTransfer),
            buttons: inner.buttons.map(|_| self as &dyn MessageButtons),
            inbound_endpoint: inner.inbound_endpoint,
        }
    }
}

#[async_trait]
impl Drafts for GuardedNetwork {
    async fn edit(&self, address: &ChatAddress, message: &MessageId, piece: &MessagePiece) -> Result<(), SendError> {
        self.check()?;
        self.network.features().drafts.ok_or_else(Self::missing)?.edit(address, message, piece).await
    }
}

#[async_trait]
impl TypingIndicator for GuardedNetwork {
    async fn show(&self, address: &ChatAddress) -> Result<(), SendError> {
        self.check()?;
        self.network.features().typing.ok_or_else(Self::missing)?.show(address).await
    }

    async fn hide(&self, address: &ChatAddress) -> Result<(), SendError> {
        self.check()?;
        self.network.features().typing.ok_or_else(Self::missing)?.hide(address).await
    }
}

#[async_trait]
impl Reactions for GuardedNetwork {
    async fn add(&self, address: &ChatAddress, message: &MessageId, emoji: &str) -> Result<(), SendError> {
        self.check()?;
        self.network.features().reactions.ok_or_else(Self::missing)?.add(address, message, emoji).await
    }

    async fn remove(&self, address: &ChatAddress, message: &MessageId, emoji: &str) -> Result<(), SendError> {
        self.check()?;
        self.network.features().reactions.ok_or_else(Self::missing)?.remove(address, message, emoji).await
    }
}

#[async_trait]
impl FileTransfer for GuardedNetwork {
    async fn fetch(&self, attachment: &Attachment, max_bytes: u64) -> Result<Vec<u8>, NetworkError> {
        let files = self.network.features().files.ok_or_else(|| NetworkError(Self::missing().to_string()))?;
        files.fetch(attachment, max_bytes).await
    }

    async fn send(
        &self,
        address: &ChatAddress,
        attachment: &Attachment,
        bytes: Vec<u8>,
    ) -> Result<MessageId, SendError> {
        self.check()?;
        self.network.features().files.ok_or_else(Self::missing)?.send(address, attachment, bytes).await
    }
}

#[async_trait]
impl MessageButtons for GuardedNetwork {
    fn message_format(&self) -> MessageFormat {
        let buttons = self.network.features().buttons;
        buttons.map_or_else(|| self.network.limits().message_format, MessageButtons::message_format)
    }

    async fn send(
        &self,
        address: &ChatAddress,
        piece: &MessagePiece,
        buttons: &[MessageButton],
        key: &str,
    ) -> Result<MessageId, SendError> {
        self.check()?;
        self.network.features().buttons.ok_or_else(Self::missing)?.send(address, piece, buttons, key).await
    }

    async fn edit(
        &self,
        address: &ChatAddress,
        message: &MessageId,
        piece: &MessagePiece,
        buttons: &[MessageButton],
    ) -> Result<(), SendError> {
        self.check()?;
        self.network.features().buttons.ok_or_else(Self::missing)?.edit(address, message, piece, buttons).await
    }

    async fn answer_press(&self, press: &ButtonPress, reply: &PressReply) -> Result<(), SendError> {
        self.check()?;
        self.network.features().buttons.ok_or_else(Self::missing)?.answer_press(press, reply).await
    }
}
