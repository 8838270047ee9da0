//! Signals that end a command.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use sandbar_node::StopMark;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// The signals of Ctrl-C, of a service manager, and of a closed terminal.
const KINDS: [SignalKind; 3] = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];

/// Number of the signal that Ctrl-C sends.
pub(crate) const INTERRUPT: u8 = 2;

/// Time in which further signals count as repeats of the first: `timeout` and shells signal a process and its group.
const REPEATED: Duration = Duration::from_secs(1);

/// The consequence of a signal for the current command, as far as it is known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interruption(Arc<Mutex<InterruptionState>>);

#[derive(Debug, Default)]
struct InterruptionState {
    mark: Option<StopMark>,
    outcome: Option<String>,
}

impl Interruption {
    /// Sets the job to record as stopped.
    pub(crate) fn set_stop_mark(&self, mark: Option<StopMark>) {
        self.state().mark = mark;
    }

    /// Sets the outcome of the command's work.
    pub(crate) fn set_outcome(&self, outcome: impl Into<String>) {
        self.state().outcome = Some(outcome.into());
    }

    /// Returns the message for the user after an interruption.
    pub(crate) fn message(&self) -> String {
        match &self.state().outcome {
            Some(outcome) => format!("interrupted: {outcome}"),
            None => "interrupted".to_owned(),
        }
    }

    fn state(&self) -> MutexGuard<'_, InterruptionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Installs the signal handlers. Returns a receiver of the first signal's number. A signal more than a second later ends this process at once.
///
/// # Errors
/// The system refuses the signal handlers.
pub(crate) fn handle(interruption: Interruption) -> io::Result<oneshot::Receiver<u8>> {
    let handled = KINDS.iter().filter(|kind| **kind != SignalKind::hangup() || !ignores_hangup());
    let mut signals = handled.map(|kind| Ok((number(*kind), signal(*kind)?))).collect::<io::Result<Vec<_>>>()?;
    let (came, first) = oneshot::channel();
    // A separate task, because the command may keep its thread busy.
    tokio::spawn(async move {
        let signal = next(&mut signals).await;
        let since = Instant::now();
        // First, because this process may be killed next.
        if let Some(mark) = &interruption.state().mark {
            mark.set();
        }
        // The receiver is dropped once the command has ended.
        let _ = came.send(signal);
        loop {
            let again = next(&mut signals).await;
            if since.elapsed() > REPEATED {
                std::process::exit(exit_code(again).into());
            }
        }
    });
    Ok(first)
}

/// Returns the exit code of a command that a signal ended, as shells report it.
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

/// Returns whether the process was started to outlive its terminal, as by `nohup`.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    ignored.is_some_and(|ignored| ignored >> (number(SignalKind::hangup()) - 1) & 1 == 1)
}
