//! Show the nodes of the cluster; drain the node that answers.

use axum::Json;
use quell_protocol::ErrorCode;
use quell_protocol::cluster::{ClusterView, DrainRequest, DrainView};

use super::extractors::OptionalJsonBody;
use super::{ApiCall, ApiResult, ProblemResponse, problem_response};

pub(super) async fn show(call: ApiCall) -> ApiResult<ClusterView> {
    call.engine().cluster_view().await.map(Json).ok_or_else(no_cluster)
}

pub(super) async fn drain(
    call: ApiCall,
    OptionalJsonBody(request): OptionalJsonBody<DrainRequest>,
) -> ApiResult<DrainView> {
    let caller = call.require_admin()?;
    call.engine().drain(caller, request).await.map(Json).ok_or_else(no_cluster)
}

pub(super) async fn end_drain(call: ApiCall) -> ApiResult<DrainView> {
    let caller = call.require_admin()?;
    call.engine().end_drain(caller).map(Json).ok_or_else(no_cluster)
}

fn no_cluster() -> ProblemResponse {
    problem_response(
        ErrorCode::NotFound,
        "this daemon is not a node of a cluster: it has its database for itself. To let several daemons share one, give \
         each the url of the same PostgreSQL database in [store] and a [cluster] section with a name of its own; \
         docs/how-to/cluster.md shows each step",
    )
}
