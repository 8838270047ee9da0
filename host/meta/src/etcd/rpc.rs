//! etcd's RPCs and their metadata.

use bytes::Bytes;
use futures::stream;
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, RangeRequest, RangeResponse, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest,
    WatchRequestUnion, WatchResponse,
};
use super::status::RESPONSE_BYTES_MAX;

pub(super) async fn range(channel: Channel, request: RangeRequest) -> Result<RangeResponse, Status> {
    unary(channel, "/etcdserverpb.KV/Range", request).await
}

pub(super) async fn transact(channel: Channel, request: TxnRequest) -> Result<TxnResponse, Status> {
    unary(channel, "/etcdserverpb.KV/Txn", request).await
}

pub(super) async fn grant(channel: Channel, request: LeaseGrantRequest) -> Result<LeaseGrantResponse, Status> {
    unary(channel, "/etcdserverpb.Lease/LeaseGrant", request).await
}

pub(super) async fn revoke(channel: Channel, request: LeaseRevokeRequest) -> Result<LeaseRevokeResponse, Status> {
    unary(channel, "/etcdserverpb.Lease/LeaseRevoke", request).await
}

/// A minimal linearizable read, which a majority answers.
pub(super) async fn probe(channel: Channel) -> Result<RangeResponse, Status> {
    range(channel, RangeRequest { key: Bytes::from_static(&[0]), count_only: true, ..Default::default() }).await
}

/// Renews one lease with a stream of one request; etcd's API streams renewals for clients with many leases.
pub(super) async fn keep_alive(
    channel: Channel,
    request: LeaseKeepAliveRequest,
) -> Result<LeaseKeepAliveResponse, Status> {
    let requests = stream::iter([request]);
    let mut responses = streaming(channel, "/etcdserverpb.Lease/LeaseKeepAlive", requests).await?;
    responses.message().await?.ok_or_else(|| Status::unavailable("the stream ended without an answer"))
}

/// Opens a watch. Returns the stream and etcd's creation response.
pub(super) async fn watch(
    channel: Channel,
    request: WatchCreateRequest,
) -> Result<(Streaming<WatchResponse>, WatchResponse), Status> {
    let create = WatchRequest { request: Some(WatchRequestUnion::Create(request)) };
    // The end of the request stream would end the watch.
    let requests = stream::StreamExt::chain(stream::iter([create]), stream::pending());
    let mut responses = streaming(channel, "/etcdserverpb.Watch/Watch", requests).await?;
    let first = responses.message().await?;
    let created = first.ok_or_else(|| Status::unavailable("the watch ended before it began"))?;
    Ok((responses, created))
}

async fn unary<Q, A>(channel: Channel, path: &'static str, request: Q) -> Result<A, Status>
where
    Q: Message + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    let mut grpc = ready(channel).await?;
    let codec = ProstCodec::<Q, A>::default();
    let response = grpc.unary(with_leader(request), PathAndQuery::from_static(path), codec).await?;
    Ok(response.into_inner())
}

async fn streaming<Q, A>(
    channel: Channel,
    path: &'static str,
    requests: impl futures::Stream<Item = Q> + Send + 'static,
) -> Result<Streaming<A>, Status>
where
    Q: Message + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    let mut grpc = ready(channel).await?;
    let codec = ProstCodec::<Q, A>::default();
    let responses = grpc.streaming(with_leader(requests), PathAndQuery::from_static(path), codec).await?;
    Ok(responses.into_inner())
}

async fn ready(channel: Channel) -> Result<Grpc<Channel>, Status> {
    let mut grpc = Grpc::new(channel).max_decoding_message_size(RESPONSE_BYTES_MAX);
    grpc.ready().await.map_err(|e| Status::from_error(Box::new(e)))?;
    Ok(grpc)
}

/// Adds etcd's `hasleader` metadata: a member without a leader fails requests and ends watches at once, instead of
/// waiting for one.
fn with_leader<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    request
}
