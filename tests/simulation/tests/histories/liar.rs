//! A hostile node with a valid certificate: plain QUIC with scripted answers.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Connection, EndpointConfig, RecvStream, SendStream};
use rustls::pki_types::PrivatePkcs8KeyDer;
use sandbar_core::ObjectId;
use sandbar_simulation::Socket;
use sandbar_wire::{PROTOCOL_VERSION, Priority, RootHash, TRANSFER_STREAM};
use serde::Deserialize;
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::identities::identities;
use crate::scenario::Lie;
use crate::world::World;

/// Mirrors `host/wire/src/transfer/message.rs`.
#[derive(Debug, Deserialize)]
enum TransferRequest {
    Piece {
        _fetch: u32,
        _object: ObjectId,
        bytes: u64,
        _root: RootHash,
        groups: Range<u32>,
        _wants_blocks: bool,
        wants_groups: bool,
        _priority: Priority,
        _goodput: u64,
    },
    Small {
        _priority: Priority,
        objects: Vec<(ObjectId, u32)>,
    },
}

const GROUP: u64 = 64 << 10;
/// Mirrors `host/wire/src/protocol.rs`.
const WELCOME: u8 = 1;
const FOUND: u8 = 0;
const NOT_YET: u8 = 2;

pub async fn run(world: World, host: usize) -> turmoil::Result {
    if !world.state().hosts[host].is_on {
        return Ok(());
    }
    world.state().hosts[host].starts += 1;
    let seed = world.random(host).bytes();
    let socket = Arc::new(Socket::bind(&world.net, world.address(host)).await?);
    let mut config = EndpointConfig::default();
    config.rng_seed(Some(seed)).max_udp_payload_size(world.scenario.wire.datagram_bytes_max)?;
    let endpoint =
        quinn::Endpoint::new_with_abstract_socket(config, Some(server()), socket, Arc::new(quinn::TokioRuntime))?;
    let now_ms = world.now_ms();
    world.state().hosts[host].up_ms = Some(now_ms);
    let lie = world.scenario.lie.expect("there is a liar");
    while let Some(incoming) = endpoint.accept().await {
        spawn_local(async move {
            if let Ok(connection) = incoming.await {
                talk(connection, lie).await;
            }
        });
    }
    Ok(())
}

fn server() -> quinn::ServerConfig {
    let (key, certificate) = &identities().liar;
    let key = PrivatePkcs8KeyDer::from(key.clone()).into();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider);
    let config = config.with_protocol_versions(&[&rustls::version::TLS13]).unwrap().with_no_client_auth();
    let mut config = config.with_single_cert(vec![certificate.clone().into()], key).unwrap();
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![format!("sandbar/{PROTOCOL_VERSION}").into_bytes()];
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(config).unwrap()));
    let mut transport = quinn::TransportConfig::default();
    transport.keep_alive_interval(Some(Duration::from_millis(300)));
    config.transport_config(Arc::new(transport));
    config
}

async fn talk(connection: Connection, lie: Lie) {
    let Ok(mut welcome) = connection.open_uni().await else { return };
    let _ = welcome.write_all(&[WELCOME]).await;
    let _ = welcome.finish();
    while let Ok((send, receive)) = connection.accept_bi().await {
        let connection = connection.clone();
        spawn_local(response(connection, send, receive, lie));
    }
}

async fn response(connection: Connection, mut send: SendStream, mut receive: RecvStream, lie: Lie) -> Option<()> {
    let request_bytes = receive.read_to_end(64 << 10).await.ok()?;
    let (TRANSFER_STREAM, request) = request_bytes.split_first().map(|(head, rest)| (*head, rest))? else {
        return None;
    };
    let request: TransferRequest = postcard::from_bytes(request).ok()?;
    let wrong = wrong(&request);
    let bytes = match lie {
        Lie::Garbage => vec![0xee; 3_000],
        Lie::Wrong => wrong,
        Lie::More => [wrong, vec![1; 10]].concat(),
        Lie::Cut => wrong[..wrong.len() / 2].to_vec(),
        Lie::NotYet => match request {
            TransferRequest::Piece { .. } => vec![NOT_YET],
            TransferRequest::Small { objects, .. } => vec![NOT_YET; objects.len()],
        },
        Lie::Stall => {
            sleep(Duration::from_secs(3_600)).await;
            return None;
        }
        Lie::Reset => return send.reset(9_u32.into()).ok(),
        Lie::Close => {
            connection.close(0_u32.into(), b"no");
            return None;
        }
    };
    send.write_all(&bytes).await.ok()?;
    send.finish().ok()
}

/// Creates an answer of the right form with wrong bytes.
fn wrong(request: &TransferRequest) -> Vec<u8> {
    let mut response = Vec::new();
    match request {
        TransferRequest::Piece { bytes, groups, wants_groups, .. } => {
            response.push(FOUND);
            if *wants_groups {
                response.extend(std::iter::repeat_n(3, 32 * bytes.div_ceil(GROUP) as usize));
            }
            for group in groups.clone() {
                let len = (bytes - u64::from(group) * GROUP).min(GROUP);
                response.extend([0, 1, 0]);
                response.extend((len as u32).to_le_bytes());
                response.extend(std::iter::repeat_n(0x77, len as usize));
            }
        }
        TransferRequest::Small { objects, .. } => {
            for (_, bytes) in objects {
                response.push(FOUND);
                response.extend(std::iter::repeat_n(0x77, *bytes as usize));
            }
        }
    }
    response
}
