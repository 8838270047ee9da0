//! A process that serves one large object and many small ones.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use quinn::{Connection, RecvStream, SendStream};
use sandbar_core::{NodeId, ObjectId};
use sandbar_wire::{HashTree, HeldObject, ObjectSource, SharedBytes, TRANSFER_STREAM, TransferServer};
use tokio::io::AsyncWriteExt;

use crate::memory::File;

pub const LARGE: ObjectId = ObjectId(1 << 32);
pub const SMALL_BYTES: usize = 10 << 10;
/// First byte of a stream that carries the object's bytes and nothing else.
pub const BARE_STREAM: u8 = b'b';

struct Objects(HashMap<ObjectId, SharedBytes>);

impl ObjectSource for Objects {
    fn find(&self, _: NodeId, object: ObjectId) -> HeldObject {
        self.0.get(&object).map_or(HeldObject::NotFound, |bytes| HeldObject::Whole(bytes.clone()))
    }
}

/// Prints its addresses and the hash of the large object, serves until its input ends, then prints how many bytes it
/// sent.
pub async fn run(bytes: u64, small: u64) {
    let large = File::noise(bytes as usize);
    let transfers = crate::transfers();
    let tree = HashTree::build(large.as_ref());
    let root = blake3_hex(&tree.root().0);
    transfers.keep_tree(LARGE, tree);
    let mut objects: HashMap<ObjectId, SharedBytes> = HashMap::new();
    objects.insert(LARGE, Arc::new(large.clone()));
    for id in 0..small {
        objects.insert(ObjectId(id), Arc::new(small_object(id)));
    }
    let source: Arc<dyn ObjectSource> = Arc::new(Objects(objects));

    let endpoint = crate::loopback::endpoint(crate::transport());
    let tcp = tokio::net::TcpListener::bind((crate::loopback::address(), 0)).await.unwrap();
    println!("{} {} {root}", endpoint.local_addr().unwrap(), tcp.local_addr().unwrap());
    let whole = Bytes::from_owner(large.clone());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = tcp.accept().await.unwrap();
            stream.write_all(large.as_ref()).await.unwrap();
        }
    });
    let connections: Arc<Mutex<Vec<Connection>>> = Arc::default();
    let accepts = tokio::spawn({
        let connections = connections.clone();
        async move {
            while let Some(incoming) = endpoint.accept().await {
                let Ok(connection) = incoming.await else { continue };
                let mut all = connections.lock().unwrap();
                all.push(connection.clone());
                let server = transfers.server_for(NodeId(all.len() as u32));
                tokio::spawn(accept(connection, server, source.clone(), whole.clone()));
            }
        }
    });
    tokio::task::spawn_blocking(|| while crate::process::read_line().is_some() {}).await.unwrap();
    accepts.abort();
    let sent: u64 = connections.lock().unwrap().iter().map(|connection| connection.stats().udp_tx.bytes).sum();
    println!("{sent}");
}

async fn accept(connection: Connection, server: TransferServer, source: Arc<dyn ObjectSource>, whole: Bytes) {
    while let Ok((send, mut receive)) = connection.accept_bi().await {
        let (server, source, whole) = (server.clone(), source.clone(), whole.clone());
        tokio::spawn(async move {
            let mut kind = [0];
            receive.read_exact(&mut kind).await.unwrap();
            match kind[0] {
                TRANSFER_STREAM => server.serve_stream(source, send, receive).await,
                BARE_STREAM => bare(send, receive, whole).await,
                other => panic!("a stream of kind {other}"),
            }
        });
    }
}

async fn bare(mut send: SendStream, _receive: RecvStream, whole: Bytes) {
    for at in (0..whole.len()).step_by(1 << 20) {
        send.write_chunk(whole.slice(at..whole.len().min(at + (1 << 20)))).await.unwrap();
    }
    let _ = send.finish();
    let _ = send.stopped().await;
}

pub fn small_object(id: u64) -> Vec<u8> {
    let mut bytes = vec![0; SMALL_BYTES];
    for (i, word) in bytes.chunks_mut(8).enumerate() {
        word.copy_from_slice(&(id * 1_000_003 + i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    bytes
}

fn blake3_hex(root: &[u8; 32]) -> String {
    root.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn root_of(hex: &str) -> sandbar_wire::RootHash {
    let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
    sandbar_wire::RootHash(std::array::from_fn(byte))
}
