//! The parts of WASI that std needs, with no resources behind them: no files, arguments or environment; a clock that
//! advances by itself (see `clock`), randomness from the call's seed, and standard output and error as log lines.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder};

use crate::clock::Clock;
use crate::services::Level;

pub(crate) fn context(seed: u64, output: &Output, clock: &Clock) -> WasiCtx {
    WasiCtxBuilder::new()
        .stdout(output.stream(Level::Info))
        .stderr(output.stream(Level::Warn))
        .wall_clock(clock.clone())
        .monotonic_clock(clock.clone())
        .secure_random(SmallRng::seed_from_u64(seed))
        .insecure_random(SmallRng::seed_from_u64(!seed))
        .insecure_random_seed(u128::from(seed))
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false)
        .build()
}

/// Printed text of a guest, before it moves to the log. Bounded: excess text is dropped, and one line reports that.
#[derive(Clone)]
pub(crate) struct Output(Arc<Mutex<PrintBuffer>>);

struct PrintBuffer {
    bytes: Vec<(Level, Vec<u8>)>,
    left: usize,
    dropped: usize,
}

impl PrintBuffer {
    fn drain(&mut self, mut line: impl FnMut(Level, &str)) {
        for (level, bytes) in self.bytes.drain(..) {
            String::from_utf8_lossy(&bytes).lines().filter(|l| !l.is_empty()).for_each(|l| line(level, l));
        }
    }
}

impl Output {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let left = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        Output(Arc::new(Mutex::new(PrintBuffer { bytes: Vec::new(), left, dropped: 0 })))
    }

    fn stream(&self, level: Level) -> Stream {
        Stream { output: self.clone(), level }
    }

    pub(crate) fn print(&self, level: Level, bytes: &[u8]) {
        let mut printed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &bytes[..bytes.len().min(printed.left)];
        printed.left -= kept.len();
        printed.dropped += bytes.len() - kept.len();
        if kept.is_empty() {
            return;
        }
        match printed.bytes.last_mut() {
            Some((last, text)) if *last == level => text.extend_from_slice(kept),
            _ => printed.bytes.push((level, kept.to_vec())),
        }
    }

    /// Removes and passes on the complete lines.
    pub(crate) fn drain_lines(&self, line: impl FnMut(Level, &str)) {
        let mut printed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = printed.bytes.last_mut().map(|(level, bytes)| {
            let ended = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            (*level, bytes.split_off(ended))
        });
        printed.drain(line);
        printed.bytes.extend(rest.filter(|(_, bytes)| !bytes.is_empty()));
    }

    /// Removes and passes on all text.
    pub(crate) fn drain(&self, mut line: impl FnMut(Level, &str)) {
        let mut printed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        printed.drain(&mut line);
        if std::mem::take(&mut printed.dropped) > 0 {
            line(Level::Warn, "(more was printed; it is over the limit log_bytes_max)");
        }
    }
}

struct Stream {
    output: Output,
    level: Level,
}

impl IsTerminal for Stream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Stream {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(Stream { output: self.output.clone(), level: self.level })
    }

    fn p2_stream(&self) -> Box<dyn wasmtime_wasi::p2::OutputStream> {
        Box::new(Stream { output: self.output.clone(), level: self.level })
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.output.print(self.level, bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[wasmtime_wasi::async_trait]
impl wasmtime_wasi::p2::Pollable for Stream {
    async fn ready(&mut self) {}
}

impl wasmtime_wasi::p2::OutputStream for Stream {
    fn write(&mut self, bytes: bytes::Bytes) -> wasmtime_wasi::p2::StreamResult<()> {
        self.output.print(self.level, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> wasmtime_wasi::p2::StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> wasmtime_wasi::p2::StreamResult<usize> {
        Ok(64 << 10)
    }
}
