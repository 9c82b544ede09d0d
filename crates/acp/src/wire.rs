//! The crate of the protocol: the only module, with [`v1`] and [`v2`], that names its paths.

pub(crate) mod v1;
pub(crate) mod v2;

pub(crate) use agent_client_protocol::schema::ProtocolVersion;
pub(crate) use agent_client_protocol::{
    Agent, ByteStreams, Client as Editor, ConnectTo, Error as RpcError, JsonRpcResponse, Protocol, RequestCancellation,
    Responder, on_receive_notification, on_receive_request,
};

#[cfg(test)]
pub(crate) use agent_client_protocol::Lines;

/// Metadata of a message, by reserved names.
pub(crate) type Meta = serde_json::Map<String, serde_json::Value>;
