//! What is asked of the node of a running job, at a socket in its folder, and what it answers.
//!
//! A connection carries one question and one answer, each a frame: its length as four bytes, least first, and so many
//! bytes of JSON: `{"version": 1, …}`. Frames have caps, and both sides give up after a while. Both belong to one user,
//! whose folder it is; that the other side is of another version, or none of ours, is found by parsing.

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
use crate::record::RunState;
use crate::views::{ActorRow, GroupRow, JobSummary, Listing, MemoryView, NodeRow, ObjectRow, TaskRow, WorkerRow};

/// The form of questions and answers.
const VERSION: u32 = 1;
const SOCKET: &str = "control";
const LIMITS: JobFolderLimits = JobFolderLimits::USUAL;
const TIME: Duration = Duration::from_millis(LIMITS.answer_time_ms_max);

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobQuery {
    /// Tasks: those that live, and those that are kept of the others.
    Tasks {
        /// So many rows at most.
        limit: u32,
        /// Those of this state alone.
        state: Option<RunState>,
        /// Those of this name alone.
        name: Option<String>,
    },
    /// What all tasks of a name came to.
    Summary,
    /// Actors.
    Actors {
        /// So many rows at most.
        limit: u32,
    },
    /// Objects, the largest first.
    Objects {
        /// So many rows at most.
        limit: u32,
    },
    /// Workers.
    Workers {
        /// So many rows at most.
        limit: u32,
    },
    /// Placement groups.
    Groups {
        /// So many rows at most.
        limit: u32,
    },
    /// Nodes, with what they have and what of it is left.
    Nodes {
        /// So many rows at most.
        limit: u32,
    },
    /// What is held, and by whom.
    Memory,
    /// The job is to end, as if it were interrupted.
    Stop,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "an answer is named for its question")]
pub enum JobResponse {
    Tasks(Listing<TaskRow>),
    Summary(JobSummary),
    Actors(Listing<ActorRow>),
    Objects(Listing<ObjectRow>),
    Workers(Listing<WorkerRow>),
    Groups(Listing<GroupRow>),
    Nodes(Listing<NodeRow>),
    Memory(MemoryView),
    /// It is going to end.
    Stopping,
    /// There is no answer, for this reason.
    Refused(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    said: T,
}

#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    question: JobQuery,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answered {
    answer: JobResponse,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// Nobody answers.
    #[error("its node does not answer: {0}")]
    Io(#[from] io::Error),
    /// What came makes no sense.
    #[error("its node says something that makes no sense: {0}")]
    Malformed(String),
    /// It won't say.
    #[error("{0}")]
    Refused(String),
    /// What was kept of a job that has ended can't be read.
    #[error(transparent)]
    Kept(#[from] crate::store::JobStoreError),
}

/// A question, of the bytes of a frame, which may be any.
fn parse_question(frame: &[u8]) -> Result<JobQuery, String> {
    parse::<Asked>(frame).map(|asked| asked.question)
}

/// An answer, of the bytes of a frame, which may be any.
fn parse_answer(frame: &[u8]) -> Result<JobResponse, String> {
    parse::<Answered>(frame).map(|answered| answered.answer)
}

fn parse<'a, T: Deserialize<'a>>(frame: &'a [u8]) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Only {
        version: u32,
    }
    let Only { version } = serde_json::from_slice(frame).map_err(|e| e.to_string())?;
    if version != VERSION {
        return Err(format!("it is of version {version}, this program speaks version {VERSION}"));
    }
    serde_json::from_slice(frame).map_err(|e| e.to_string())
}

/// A frame of what is said: its length, and its bytes.
fn frame(said: &impl Serialize, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, &Versioned { version: VERSION, said }).map_err(io::Error::other)?;
    let bytes = frame.len() as u64 - 4;
    if bytes > bytes_max {
        return Err(io::Error::other(format!("it would take {bytes} bytes, the limit is {bytes_max}")));
    }
    frame[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
    Ok(frame)
}

fn length(bytes: [u8; 4], bytes_max: u64) -> io::Result<u64> {
    let length = u64::from(u32::from_le_bytes(bytes));
    let message = || format!("a frame of {length} bytes, the limit is {bytes_max}");
    (length <= bytes_max).then_some(length).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, message()))
}

/// Where the socket of a folder is: by a short path, since the addresses of sockets are short.
fn address(folder: &Path) -> io::Result<(File, PathBuf)> {
    let folder = File::open(folder)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(SOCKET);
    Ok((folder, path))
}

/// The node's side.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
}

impl Control {
    /// Listens in a folder. Inside a tokio runtime.
    pub(crate) fn listen(folder: &Path) -> io::Result<Control> {
        let (_folder, path) = address(folder)?;
        Ok(Control { listener: UnixListener::bind(path)? })
    }

    /// Answers questions until the job is to end.
    pub async fn serve<A: Future<Output = JobResponse>>(&self, answer: impl Fn(JobQuery) -> A) {
        let mut asked = FuturesUnordered::new();
        loop {
            let has_room = asked.len() < LIMITS.questions_max;
            tokio::select! {
                accepted = self.listener.accept(), if has_room => {
                    match accepted {
                        Ok((stream, _)) => asked.push(tokio::time::timeout(TIME, converse(stream, &answer))),
                        // Mostly there are too many files.
                        Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                    }
                }
                Some(ended) = asked.next(), if !asked.is_empty() => {
                    // Who asks badly, or is gone, gets no answer.
                    if let Ok(Ok(JobQuery::Stop)) = ended {
                        return;
                    }
                }
            }
        }
    }
}

/// Answers one question, and gives it.
async fn converse<A: Future<Output = JobResponse>>(
    mut stream: UnixStream,
    answer: &impl Fn(JobQuery) -> A,
) -> io::Result<JobQuery> {
    let question = match parse_question(&read(&mut stream, LIMITS.question_bytes_max).await?) {
        Ok(question) => question,
        Err(why) => {
            let refused = Answered { answer: JobResponse::Refused(why.clone()) };
            stream.write_all(&frame(&refused, LIMITS.answer_bytes_max)?).await?;
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
    };
    let answer = match question {
        JobQuery::Stop => JobResponse::Stopping,
        _ => answer(question.clone()).await,
    };
    let frame = frame(&Answered { answer }, LIMITS.answer_bytes_max).or_else(|e| {
        frame(&Answered { answer: JobResponse::Refused(format!("{e}; ask for fewer rows")) }, LIMITS.answer_bytes_max)
    })?;
    let sent = stream.write_all(&frame).await;
    match question {
        // It is meant, whether or not somebody hears the answer.
        JobQuery::Stop => Ok(question),
        _ => sent.map(|()| question),
    }
}

/// A frame's bytes. Room is made for them as they come.
async fn read(stream: &mut (impl AsyncRead + Unpin), bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).await?;
    let length = length(header, bytes_max)?;
    let mut bytes = Vec::new();
    stream.take(length).read_to_end(&mut bytes).await?;
    if (bytes.len() as u64) < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// Asks the node of the job whose folder it is.
pub(crate) fn ask(folder: &Path, question: &JobQuery) -> Result<JobResponse, InspectError> {
    let (_folder, path) = address(folder)?;
    let mut stream = ClientStream::connect(path)?;
    stream.set_read_timeout(Some(TIME))?;
    stream.set_write_timeout(Some(TIME))?;
    stream.write_all(&frame(&Asked { question: question.clone() }, LIMITS.question_bytes_max)?)?;
    let mut header = [0; 4];
    stream.read_exact(&mut header).map_err(silent)?;
    let length = length(header, LIMITS.answer_bytes_max)?;
    let mut bytes = Vec::new();
    stream.take(length).read_to_end(&mut bytes).map_err(silent)?;
    if (bytes.len() as u64) < length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    match parse_answer(&bytes).map_err(InspectError::Malformed)? {
        JobResponse::Refused(why) => Err(InspectError::Refused(why)),
        answer => Ok(answer),
    }
}

/// What a node that does not answer in time may be.
fn silent(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            let message =
                format!("nothing within {} s; it may be suspended, as by Ctrl-Z (`fg` continues it)", TIME.as_secs());
            io::Error::new(io::ErrorKind::TimedOut, message)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn questions() -> Vec<JobQuery> {
        vec![
            JobQuery::Tasks { limit: 10, state: Some(RunState::Failed), name: Some("add".into()) },
            JobQuery::Summary,
            JobQuery::Objects { limit: u32::MAX },
            JobQuery::Memory,
            JobQuery::Stop,
        ]
    }

    fn body(said: &impl Serialize) -> Vec<u8> {
        frame(said, u64::MAX).unwrap().split_off(4)
    }

    #[test]
    fn what_is_said_is_understood() {
        for question in questions() {
            assert_eq!(parse_question(&body(&Asked { question: question.clone() })), Ok(question));
        }
        for answer in [JobResponse::Stopping, JobResponse::Refused("no".into()), JobResponse::Tasks(Listing::default())]
        {
            assert_eq!(parse_answer(&body(&Answered { answer: answer.clone() })), Ok(answer));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (frame, words) in [
            (&b""[..], "EOF"),
            (b"{}", "version"),
            (br#"{"version":2,"question":"summary"}"#, "it is of version 2"),
            (br#"{"version":1}"#, "question"),
            (br#"{"version":1,"question":"gossip"}"#, "gossip"),
            (br#"{"version":1,"question":{"tasks":{"limit":-1}}}"#, "-1"),
        ] {
            let error = parse_question(frame).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert!(parse_question(&[b'['; 100_000]).is_err());
    }

    proptest! {
        /// Bytes that may be any, and questions that were damaged: they are understood or not, and nothing else happens.
        #[test]
        fn any_frame_is_read(bytes in prop::collection::vec(any::<u8>(), 0..300), which in 0usize..5, at in any::<usize>()) {
            let _ = (parse_question(&bytes), parse_answer(&bytes));
            let mut damaged = body(&Asked { question: questions().swap_remove(which) });
            let at = at % damaged.len();
            damaged.splice(at.., bytes);
            if let Ok(question) = parse_question(&damaged) {
                prop_assert_eq!(parse_question(&body(&Asked { question: question.clone() })), Ok(question));
            }
        }
    }

    /// What a server that knows one answer says to these bytes, and whether it goes on.
    fn said_to(bytes: &[u8]) -> Option<JobResponse> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        runtime.block_on(async {
            let control = Control::listen(folder.path()).unwrap();
            let answers = async |_: JobQuery| JobResponse::Summary(JobSummary::default());
            let asks = async {
                let (_folder, path) = address(folder.path()).unwrap();
                let mut stream = UnixStream::connect(path).await.unwrap();
                stream.write_all(bytes).await.unwrap();
                stream.shutdown().await.unwrap();
                let answer = read(&mut stream, LIMITS.answer_bytes_max).await.ok();
                answer.map(|bytes| parse_answer(&bytes).unwrap())
            };
            tokio::select! {
                () = control.serve(answers) => None,
                answer = asks => answer,
            }
        })
    }

    #[test]
    fn a_server_answers_what_it_understands_and_lives_on() {
        let asked = |question| frame(&Asked { question }, u64::MAX).unwrap();
        let answer = Some(JobResponse::Summary(JobSummary::default()));
        assert_eq!(said_to(&asked(JobQuery::Summary)), answer);
        // Cut, too long, of another version.
        assert_eq!(said_to(&asked(JobQuery::Summary)[..9]), None);
        assert_eq!(said_to(&u32::MAX.to_le_bytes()), None);
        let other = [&8u32.to_le_bytes()[..], b"{\"a\":[]}"].concat();
        assert!(matches!(said_to(&other), Some(JobResponse::Refused(why)) if why.contains("version")));
    }
}
