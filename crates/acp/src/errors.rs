//! Errors of the daemon as JSON-RPC errors.

use quell_client::ClientError;
use serde_json::json;

use crate::wire::RpcError;

const AUTH_REQUIRED: i32 = -32000;
const RESOURCE_NOT_FOUND: i32 = -32002;
const INVALID_PARAMS: i32 = -32602;
const INTERNAL_ERROR: i32 = -32603;

pub(crate) fn invalid(message: impl Into<String>) -> RpcError {
    RpcError::new(INVALID_PARAMS, message)
}

pub(crate) fn failed(message: impl Into<String>) -> RpcError {
    RpcError::new(INTERNAL_ERROR, message)
}

pub(crate) fn session_unknown(id: &str) -> RpcError {
    RpcError::new(
        RESOURCE_NOT_FOUND,
        format!("there is no open session {id:?}; open one with session/new, session/load or session/resume"),
    )
    .data(json!({"sessionId": id}))
}

/// An answer of the daemon, or why there is none. The code of the daemon is in `data`.
pub(crate) fn from_client(error: &ClientError) -> RpcError {
    let code = match error {
        ClientError::NoToken { .. } | ClientError::BadToken { .. } => AUTH_REQUIRED,
        ClientError::Refused(problem) => match problem.status {
            401 => AUTH_REQUIRED,
            404 => RESOURCE_NOT_FOUND,
            400 | 413 | 422 => INVALID_PARAMS,
            _ => INTERNAL_ERROR,
        },
        _ => INTERNAL_ERROR,
    };
    RpcError::new(code, error.to_string()).data(json!({"code": error.code()}))
}
