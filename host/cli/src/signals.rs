//! Signals that end a command.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// What Ctrl-C, whoever ends a service, and a terminal that is closed send.
const KINDS: [SignalKind; 3] = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];

/// The number of what Ctrl-C sends.
pub(crate) const INTERRUPT: u8 = 2;

/// Listens from now on; gives the first signal's number. A second one ends this process at once, whatever it does.
///
/// # Errors
/// When the system lets nobody listen.
pub(crate) fn listen() -> io::Result<oneshot::Receiver<u8>> {
    let heeded = KINDS.iter().filter(|kind| **kind != SignalKind::hangup() || !ignores_hangup());
    let mut signals = heeded.map(|kind| Ok((number(*kind), signal(*kind)?))).collect::<io::Result<Vec<_>>>()?;
    let (came, first) = oneshot::channel();
    // A task of its own: the command may keep its thread busy.
    tokio::spawn(async move {
        // Nobody waits for it when the command has ended.
        let _ = came.send(next(&mut signals).await);
        std::process::exit(exit_code(next(&mut signals).await).into());
    });
    Ok(first)
}

/// How a shell says that a signal ended a command.
pub(crate) fn exit_code(signal: u8) -> u8 {
    128 + signal
}

fn number(kind: SignalKind) -> u8 {
    kind.as_raw_value() as u8
}

async fn next(signals: &mut [(u8, Signal)]) -> u8 {
    poll_fn(|context| {
        let came =
            signals.iter_mut().find_map(|(number, signal)| signal.poll_recv(context).is_ready().then_some(*number));
        came.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Whether it was started to outlive its terminal, as by `nohup`.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    ignored.is_some_and(|ignored| ignored >> (number(SignalKind::hangup()) - 1) & 1 == 1)
}
