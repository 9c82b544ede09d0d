//! The crate of the protocol: the only module, with [`v1`] and [`v2`], that names its paths.

pub(crate) mod v1;
pub(crate) mod v2;

pub(crate) use agent_client_protocol::schema::ProtocolVersion;
pub(crate) use agent_client_protocol::{
    Agent, Client as Editor, ConnectTo, Error as RpcError, JsonRpcResponse, Lines, Protocol, RequestCancellation,
    Responder, on_receive_notification, on_receive_request,
};

/// Metadata of a message, by reserved names.
pub(crate) type Meta = serde_json::Map<String, serde_json::Value>;
