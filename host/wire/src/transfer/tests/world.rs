//! Test nodes: honest ones, and ones with scripted answers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use quinn::{Connection, Endpoint, SendStream};
use sandbar_core::{NodeId, ObjectId};
use tokio::sync::mpsc;

use super::super::message::{PieceRequest, TransferRequest};
use super::super::*;
use super::loopback::endpoint;
use crate::{WireLimits, transport_config};

pub const OBJECT: ObjectId = ObjectId(42);

/// Limits with short timeouts.
pub fn limits() -> TransferLimits {
    TransferLimits {
        piece_bytes_max: 256 << 10,
        stall_ms_max: 400,
        wait_ms_max: 200,
        idle_ms_max: 1_000,
        connect_ms_max: 1_000,
        request_ms_max: 1_000,
        rest_ms: 5,
        ..TransferLimits::default()
    }
}

pub fn transport() -> Arc<quinn::TransportConfig> {
    Arc::new(transport_config(&WireLimits::default()))
}

/// Pseudo-random bytes without repetition.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// A node with a transfer engine.
pub struct Host {
    pub node: NodeId,
    pub endpoint: Endpoint,
    pub transfers: Transfers,
    pub admission: Arc<Admission>,
    pub objects: Arc<Objects>,
    pub events: mpsc::Receiver<TransferEvent>,
}

/// A node's objects.
#[derive(Default)]
pub struct Objects {
    held: Mutex<HashMap<ObjectId, HeldObject>>,
    /// Number of lookups.
    pub lookups: AtomicUsize,
}

impl Objects {
    pub fn put(&self, object: ObjectId, held: HeldObject) {
        self.held.lock().unwrap().insert(object, held);
    }
}

impl ObjectSource for Objects {
    fn find(&self, _: NodeId, object: ObjectId) -> HeldObject {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.held.lock().unwrap().get(&object).cloned().unwrap_or(HeldObject::NotFound)
    }
}

impl Host {
    pub fn start(node: u32, limits: TransferLimits) -> Host {
        let admission = Admission::new(1 << 30, 100);
        let (to, events) = mpsc::channel(1000);
        let transfers = Transfers::new(limits, admission.clone(), Some(to), Offload::Threads).unwrap();
        let (endpoint, objects) = (endpoint(transport()), Arc::new(Objects::default()));
        tokio::spawn({
            let (endpoint, transfers, objects) = (endpoint.clone(), transfers.clone(), objects.clone());
            async move {
                while let Some(incoming) = endpoint.accept().await {
                    let (transfers, objects) = (transfers.clone(), objects.clone());
                    tokio::spawn(async move {
                        if let Ok(connection) = incoming.await {
                            transfers.serve(connection, NodeId(0), objects).await;
                        }
                    });
                }
            }
        });
        Host { node: NodeId(node), endpoint, transfers, admission, objects, events }
    }

    /// Adds an object.
    pub fn put(&self, object: ObjectId, bytes: &[u8]) {
        self.objects.put(object, HeldObject::Whole(Arc::new(bytes.to_vec())));
    }

    /// Returns a holder that this node can connect to.
    pub fn holder(&self, node: NodeId, address: SocketAddr) -> Holder {
        Holder { node, link: Arc::new(CachedLink { endpoint: self.endpoint.clone(), address, last: Arc::default() }) }
    }

    pub fn holder_of(&self, other: &Host) -> Holder {
        self.holder(other.node, other.endpoint.local_addr().unwrap())
    }

    pub fn holder_of_liar(&self, other: &Liar) -> Holder {
        self.holder(other.node, other.endpoint.local_addr().unwrap())
    }

    /// Fetches the object with these bytes, and checks bytes and memory.
    pub async fn fetch(&self, bytes: &[u8], holders: Vec<Holder>) -> Result<FetchReport, FetchError> {
        let spec = spec(bytes, holders);
        let fetched = self.transfers.fetch(spec, HeapTarget::reserve).await?;
        assert!(fetched.target.into_bytes().as_ref() == bytes, "the bytes are others");
        assert_eq!(self.admission.used(), bytes.len() as u64);
        drop(fetched.permit);
        assert_eq!(self.admission.used(), 0);
        Ok(fetched.report)
    }
}

pub fn spec(bytes: &[u8], holders: Vec<Holder>) -> FetchSpec {
    let (object, priority) = (OBJECT, Priority::Get);
    FetchSpec { object, bytes: bytes.len() as u64, root: RootHash::hash(bytes), holders, priority, finder: None }
}

/// Connects once and shares the connection.
struct CachedLink {
    endpoint: Endpoint,
    address: SocketAddr,
    last: Arc<tokio::sync::Mutex<Option<Connection>>>,
}

impl HolderLink for CachedLink {
    fn connect(&self) -> BoxFuture<'static, Result<Connection, String>> {
        let (endpoint, address, last) = (self.endpoint.clone(), self.address, self.last.clone());
        async move {
            let mut last = last.lock().await;
            if let Some(connection) = last.as_ref().filter(|connection| connection.close_reason().is_none()) {
                return Ok(connection.clone());
            }
            let connecting = endpoint.connect(address, "localhost").map_err(|e| e.to_string())?;
            let connection = connecting.await.map_err(|e| e.to_string())?;
            *last = Some(connection.clone());
            Ok(connection)
        }
        .boxed()
    }
}

/// A scripted answer to a request for a piece.
pub type Lie = Arc<dyn Fn(PieceRequest, SendStream, Connection) -> BoxFuture<'static, ()> + Send + Sync>;

pub fn lie<F: Future<Output = ()> + Send + 'static>(
    respond: impl Fn(PieceRequest, SendStream, Connection) -> F + Send + Sync + 'static,
) -> Lie {
    Arc::new(move |request, send, connection| respond(request, send, connection).boxed())
}

/// A node with scripted answers.
pub struct Liar {
    pub node: NodeId,
    pub endpoint: Endpoint,
}

impl Liar {
    pub fn start(node: u32, respond: Lie) -> Liar {
        let endpoint = endpoint(transport());
        tokio::spawn({
            let endpoint = endpoint.clone();
            async move {
                while let Some(incoming) = endpoint.accept().await {
                    let respond = respond.clone();
                    tokio::spawn(async move {
                        let Ok(connection) = incoming.await else { return };
                        while let Ok((send, mut receive)) = connection.accept_bi().await {
                            let (respond, connection) = (respond.clone(), connection.clone());
                            tokio::spawn(async move {
                                let Ok(bytes) = receive.read_to_end(1 << 20).await else { return };
                                match TransferRequest::read(&bytes[1..], &TransferLimits::default()) {
                                    Some(TransferRequest::Piece(request)) => respond(request, send, connection).await,
                                    other => panic!("{other:?}"),
                                }
                            });
                        }
                    });
                }
            }
        });
        Liar { node: NodeId(node), endpoint }
    }
}
