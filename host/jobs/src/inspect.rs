//! Queries to the node of a running job, over a Unix socket in the job's folder.
//!
//! A connection carries one query and one response, each a frame: the length as a little-endian `u32`, then that many bytes
//! of JSON: `{"version": 1, "question": …}` and `{"version": 1, "answer": …}`. Frames are bounded, and both sides have a
//! timeout. Both sides belong to the owner of the folder. Parsing detects peers of another version, and other programs.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream as ClientStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::limits::JobFolderLimits;
use crate::rows::{ActorRow, GroupRow, JobSummary, Listing, MemoryView, NodeRow, ObjectRow, TaskRow, WorkerRow};
use crate::run_state::RunState;
use crate::store_error::JobStoreError;

/// Version of queries and responses.
const VERSION: u32 = 1;
const SOCKET_FILE: &str = "control";
const LIMITS: JobFolderLimits = JobFolderLimits::DEFAULT;
const TIMEOUT: Duration = Duration::from_millis(LIMITS.query_time_ms_max);

/// A query to the node of a running job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobQuery {
    /// Unfinished tasks, and the recorded finished ones.
    Tasks {
        /// Maximum rows.
        limit: u32,
        /// Only tasks in this state.
        state: Option<RunState>,
        /// Only tasks of this name.
        name: Option<String>,
    },
    /// Sums over all tasks, by name.
    Summary,
    /// Actors.
    Actors {
        /// Maximum rows.
        limit: u32,
    },
    /// Objects, the largest first.
    Objects {
        /// Maximum rows.
        limit: u32,
    },
    /// Workers.
    Workers {
        /// Maximum rows.
        limit: u32,
    },
    /// Placement groups.
    Groups {
        /// Maximum rows.
        limit: u32,
    },
    /// Nodes, with their total and free resources.
    Nodes {
        /// Maximum rows.
        limit: u32,
    },
    /// Memory of processes, and objects by holder.
    Memory,
    /// Stops the job, as an interruption does.
    Stop,
}

/// The response to a [`JobQuery`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "a response has the name of its query")]
pub enum JobResponse {
    Tasks(Listing<TaskRow>),
    Summary(JobSummary),
    Actors(Listing<ActorRow>),
    Objects(Listing<ObjectRow>),
    Workers(Listing<WorkerRow>),
    Groups(Listing<GroupRow>),
    Nodes(Listing<NodeRow>),
    Memory(MemoryView),
    /// The job is stopping.
    Stopping,
    /// The node refuses the query for this reason.
    Refused(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Envelope<T> {
    version: u32,
    #[serde(flatten)]
    message: T,
}

#[derive(Debug, Serialize, Deserialize)]
struct QueryMessage {
    #[serde(rename = "question")]
    query: JobQuery,
}

#[derive(Debug, Serialize, Deserialize)]
struct ResponseMessage {
    #[serde(rename = "answer")]
    response: JobResponse,
}

/// Error of a query.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The query exceeds the limit of a message.
    #[error("the query is too large: {0}; shorten its filters")]
    TooLarge(String),
    /// The node can't be reached, or does not respond in time.
    #[error("its node does not respond: {0}")]
    Io(#[from] io::Error),
    /// The node's response is invalid.
    #[error("its node sent an invalid response: {0}")]
    Malformed(String),
    /// The node refuses the query.
    #[error("{0}")]
    Refused(String),
    /// The records of a finished job can't be read.
    #[error(transparent)]
    Store(#[from] JobStoreError),
}

/// Parses a query from the body of a frame, which is untrusted.
fn parse_query(frame: &[u8]) -> Result<JobQuery, String> {
    parse::<QueryMessage>(frame).map(|message| message.query)
}

/// Parses a response from the body of a frame, which is untrusted.
fn parse_response(frame: &[u8]) -> Result<JobResponse, String> {
    parse::<ResponseMessage>(frame).map(|message| message.response)
}

fn parse<'a, T: Deserialize<'a>>(frame: &'a [u8]) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Header {
        version: u32,
    }
    let Header { version } = serde_json::from_slice(frame).map_err(|e| e.to_string())?;
    if version != VERSION {
        return Err(format!("its version is {version}, this program uses version {VERSION}"));
    }
    serde_json::from_slice(frame).map_err(|e| e.to_string())
}

/// Encodes a message as a frame: its length and its JSON.
fn encode_frame(message: &impl Serialize, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, &Envelope { version: VERSION, message }).map_err(io::Error::other)?;
    let bytes = frame.len() as u64 - 4;
    if bytes > bytes_max {
        return Err(io::Error::other(format!("the message has {bytes} bytes, the limit is {bytes_max}")));
    }
    frame[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
    Ok(frame)
}

/// Returns the length in a frame's header.
fn parse_length(bytes: [u8; 4], bytes_max: u64) -> io::Result<u64> {
    let length = u64::from(u32::from_le_bytes(bytes));
    let message = || format!("the frame has {length} bytes, the limit is {bytes_max}");
    (length <= bytes_max).then_some(length).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, message()))
}

/// Returns the path of a folder's socket, and the open folder that keeps it valid. The path is one in `/proc`, because a
/// socket address has at most 108 bytes.
fn socket_path(folder: &Path) -> io::Result<(File, PathBuf)> {
    let folder = File::open(folder)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(SOCKET_FILE);
    Ok((folder, path))
}

/// Receives the queries of one job at its node.
#[derive(Debug)]
pub(crate) struct InspectServer {
    listener: UnixListener,
}

impl InspectServer {
    /// Creates the socket in a folder. Must be called in a tokio runtime.
    pub(crate) fn bind(folder: &Path) -> io::Result<InspectServer> {
        let (_folder, path) = socket_path(folder)?;
        Ok(InspectServer { listener: UnixListener::bind(path)? })
    }

    /// Responds to queries until a client stops the job.
    pub(crate) async fn serve<A: Future<Output = JobResponse>>(&self, respond: impl Fn(JobQuery) -> A) {
        let mut connections = FuturesUnordered::new();
        loop {
            let has_room = connections.len() < LIMITS.concurrent_queries_max;
            tokio::select! {
                accepted = self.listener.accept(), if has_room => {
                    match accepted {
                        Ok((stream, _)) => connections.push(tokio::time::timeout(TIMEOUT, serve_connection(stream, &respond))),
                        // Usually the process has too many open files.
                        Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                    }
                }
                Some(served) = connections.next(), if !connections.is_empty() => {
                    // Errors concern one client, which is disconnected.
                    if let Ok(Ok(JobQuery::Stop)) = served {
                        return;
                    }
                }
            }
        }
    }
}

/// Responds to the query of one connection, and returns it.
async fn serve_connection<A: Future<Output = JobResponse>>(
    mut stream: UnixStream,
    respond: &impl Fn(JobQuery) -> A,
) -> io::Result<JobQuery> {
    let query = match parse_query(&read_frame(&mut stream, LIMITS.query_bytes_max).await?) {
        Ok(query) => query,
        Err(reason) => {
            let refusal = ResponseMessage { response: JobResponse::Refused(reason.clone()) };
            stream.write_all(&encode_frame(&refusal, LIMITS.response_bytes_max)?).await?;
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
    };
    let response = match query {
        JobQuery::Stop => JobResponse::Stopping,
        _ => respond(query.clone()).await,
    };
    let frame = encode_frame(&ResponseMessage { response }, LIMITS.response_bytes_max).or_else(|e| {
        encode_frame(
            &ResponseMessage { response: JobResponse::Refused(format!("{e}; request fewer rows")) },
            LIMITS.response_bytes_max,
        )
    })?;
    let sent = stream.write_all(&frame).await;
    match query {
        // The job stops even if the client has disconnected.
        JobQuery::Stop => Ok(query),
        _ => sent.map(|()| query),
    }
}

/// Reads the body of a frame. Memory is allocated as bytes arrive, not by the announced length.
async fn read_frame(stream: &mut (impl AsyncRead + Unpin), bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).await?;
    let length = parse_length(header, bytes_max)?;
    let mut bytes = Vec::new();
    stream.take(length).read_to_end(&mut bytes).await?;
    if (bytes.len() as u64) < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// Sends a query to the node of the job in this folder, and waits for the response.
pub(crate) fn send_query(folder: &Path, query: &JobQuery) -> Result<JobResponse, InspectError> {
    let frame = encode_frame(&QueryMessage { query: query.clone() }, LIMITS.query_bytes_max)
        .map_err(|e| InspectError::TooLarge(e.to_string()))?;
    let (_folder, path) = socket_path(folder)?;
    let mut stream = ClientStream::connect(path)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(&frame)?;
    let mut header = [0; 4];
    stream.read_exact(&mut header).map_err(explain_timeout)?;
    let length = parse_length(header, LIMITS.response_bytes_max)?;
    let mut bytes = Vec::new();
    stream.take(length).read_to_end(&mut bytes).map_err(explain_timeout)?;
    if (bytes.len() as u64) < length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    match parse_response(&bytes).map_err(InspectError::Malformed)? {
        JobResponse::Refused(reason) => Err(InspectError::Refused(reason)),
        response => Ok(response),
    }
}

/// Explains why a node may not respond in time.
fn explain_timeout(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            let message = format!(
                "no response within {} s; it may be suspended, for example by Ctrl-Z (`fg` continues it)",
                TIMEOUT.as_secs()
            );
            io::Error::new(io::ErrorKind::TimedOut, message)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn queries() -> Vec<JobQuery> {
        vec![
            JobQuery::Tasks { limit: 10, state: Some(RunState::Failed), name: Some("add".into()) },
            JobQuery::Summary,
            JobQuery::Objects { limit: u32::MAX },
            JobQuery::Memory,
            JobQuery::Stop,
        ]
    }

    fn body(message: &impl Serialize) -> Vec<u8> {
        encode_frame(message, u64::MAX).unwrap().split_off(4)
    }

    #[test]
    fn messages_round_trip() {
        for query in queries() {
            assert_eq!(parse_query(&body(&QueryMessage { query: query.clone() })), Ok(query));
        }
        for response in
            [JobResponse::Stopping, JobResponse::Refused("no".into()), JobResponse::Tasks(Listing::default())]
        {
            assert_eq!(parse_response(&body(&ResponseMessage { response: response.clone() })), Ok(response));
        }
    }

    #[test]
    fn invalid_queries_are_rejected() {
        for (frame, expected) in [
            (&b""[..], "EOF"),
            (b"{}", "version"),
            (br#"{"version":2,"question":"summary"}"#, "its version is 2"),
            (br#"{"version":1}"#, "question"),
            (br#"{"version":1,"question":"gossip"}"#, "gossip"),
            (br#"{"version":1,"question":{"tasks":{"limit":-1}}}"#, "-1"),
        ] {
            let error = parse_query(frame).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert!(parse_query(&[b'['; 100_000]).is_err());
    }

    proptest! {
        /// Parsing returns a value or an error for arbitrary bytes and for damaged queries.
        #[test]
        fn arbitrary_frames_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), which in 0usize..5, at in any::<usize>()) {
            let _ = (parse_query(&bytes), parse_response(&bytes));
            let mut damaged = body(&QueryMessage { query: queries().swap_remove(which) });
            let at = at % damaged.len();
            damaged.splice(at.., bytes);
            if let Ok(query) = parse_query(&damaged) {
                prop_assert_eq!(parse_query(&body(&QueryMessage { query: query.clone() })), Ok(query));
            }
        }
    }

    /// Returns a server's response to these bytes, or `None` if it only disconnects.
    fn response_to(bytes: &[u8]) -> Option<JobResponse> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        runtime.block_on(async {
            let server = InspectServer::bind(folder.path()).unwrap();
            let respond = async |_: JobQuery| JobResponse::Summary(JobSummary::default());
            let client = async {
                let (_folder, path) = socket_path(folder.path()).unwrap();
                let mut stream = UnixStream::connect(path).await.unwrap();
                stream.write_all(bytes).await.unwrap();
                stream.shutdown().await.unwrap();
                let response = read_frame(&mut stream, LIMITS.response_bytes_max).await.ok();
                response.map(|bytes| parse_response(&bytes).unwrap())
            };
            tokio::select! {
                () = server.serve(respond) => None,
                response = client => response,
            }
        })
    }

    #[test]
    fn an_oversized_query_is_not_sent() {
        let query = JobQuery::Tasks { limit: 1, state: None, name: Some("x".repeat(100_000)) };
        let folder = tempfile::tempdir().unwrap();
        let error = send_query(folder.path(), &query).unwrap_err();
        assert!(matches!(error, InspectError::TooLarge(_)), "{error:?}");
        assert!(error.to_string().contains("the limit is 65536"), "{error}");
    }

    #[test]
    fn the_server_survives_invalid_queries() {
        let encoded = |query| encode_frame(&QueryMessage { query }, u64::MAX).unwrap();
        let response = Some(JobResponse::Summary(JobSummary::default()));
        assert_eq!(response_to(&encoded(JobQuery::Summary)), response);
        // A truncated frame, one beyond the limit, and one without a version.
        assert_eq!(response_to(&encoded(JobQuery::Summary)[..9]), None);
        assert_eq!(response_to(&u32::MAX.to_le_bytes()), None);
        let other = [&8u32.to_le_bytes()[..], b"{\"a\":[]}"].concat();
        assert!(matches!(response_to(&other), Some(JobResponse::Refused(reason)) if reason.contains("version")));
    }
}
