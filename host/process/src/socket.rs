//! Messages with files over a Unix SEQPACKET socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum bytes of a message.
pub const FRAME_BYTES_MAX: usize = 128 << 10;
/// Maximum number of files of a message.
pub const FILES_MAX: usize = 64;

const ANCILLARY_BYTES: usize = rustix::cmsg_space!(ScmRights(FILES_MAX));

/// Serialises a message into `buffer`, which is reused for each message.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] when the message exceeds [`FRAME_BYTES_MAX`].
pub fn frame<'b>(message: &impl Serialize, buffer: &'b mut Vec<u8>) -> io::Result<&'b [u8]> {
    buffer.resize(FRAME_BYTES_MAX, 0);
    match postcard::to_slice(message, buffer) {
        Ok(frame) => Ok(frame),
        Err(postcard::Error::SerializeBufferFull) => {
            let message = format!("a message exceeds the limit of {FRAME_BYTES_MAX} bytes (FRAME_BYTES_MAX)");
            Err(io::Error::new(io::ErrorKind::FileTooLarge, message))
        }
        Err(e) => Err(io::Error::other(e)),
    }
}

/// Sends a message with files.
///
/// # Errors
/// Those of the socket, and when there are more than [`FILES_MAX`] files.
pub fn send(socket: impl AsFd, frame: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::other(format!(
            "{} files in one message, the limit is {FILES_MAX} (FILES_MAX)",
            files.len()
        )));
    }
    let sent = sendmsg(socket, &[IoSlice::new(frame)], &mut ancillary, SendFlags::NOSIGNAL)?;
    if sent == frame.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Returns the error for files of a message that this process cannot open. The sender is not at fault.
fn no_room_for_files() -> io::Error {
    let files = getrlimit(Resource::Nofile).current.map_or("any number of".to_owned(), |files| files.to_string());
    let message = format!(
        "a message came with more files than this process can open: it may have {files} open (RLIMIT_NOFILE, `ulimit -n`), \
         and a message {FILES_MAX} (FILES_MAX)"
    );
    io::Error::new(io::ErrorKind::QuotaExceeded, message)
}

/// Returns whether the other side has closed the socket.
pub fn is_closed(socket: impl AsFd) -> bool {
    let mut watched = [PollFd::new(&socket, PollFlags::empty())];
    let ended = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    ended.is_ok_and(|count| count > 0) && watched[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Receives the next message with its files; `None` when the other side has closed the socket.
///
/// # Errors
/// Those of the socket; [`io::ErrorKind::InvalidData`] for a malformed message; [`io::ErrorKind::QuotaExceeded`] when
/// this process has reached its limit of open files. In the last case the message is lost, and the next one can be
/// received.
pub fn receive<M: DeserializeOwned>(socket: impl AsFd, buffer: &mut Vec<u8>) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    buffer.resize(FRAME_BYTES_MAX, 0);
    let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        let message = format!("a message has more than {FRAME_BYTES_MAX} bytes (FRAME_BYTES_MAX)");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(no_room_for_files());
    }
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    let message =
        postcard::from_bytes(&buffer[..received.bytes]).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok(Some((message, files)))
}
