//! Serving of a request for small objects.

use std::sync::Arc;

use quinn::SendStream;

use super::clock::within_ms;
use super::held_object::{HeldObject, ObjectSource};
use super::message::{FOUND, Refusal, SmallRequest};
use super::serve::{ServeError, TransferServer};

/// Bytes of a batch written to QUIC. Fewer batches are faster, as QUIC scans all of its data for each packet.
const TOGETHER_BYTES: usize = 256 << 10;

impl TransferServer {
    pub(crate) async fn small(
        &self,
        source: &Arc<dyn ObjectSource>,
        objects: &[SmallRequest],
        send: &mut SendStream,
    ) -> Result<(), ServeError> {
        let mut together = Vec::new();
        for small in objects {
            if together.is_empty() {
                together.reserve_exact(TOGETHER_BYTES + self.transfers().0.limits.small_bytes_max as usize + 16);
            }
            match source.find(self.peer().node, small.object) {
                HeldObject::Whole(bytes) => write_small((*bytes).as_ref(), small, &mut together),
                HeldObject::Partial(partial) => {
                    let groups = partial.0.layout().groups();
                    let wait_ms = self.transfers().0.limits.wait_ms_max;
                    match within_ms(wait_ms, partial.0.wait_for(&groups)).await {
                        Some(Some(verified)) => write_small(&verified.bytes, small, &mut together),
                        Some(None) => Refusal::NotFound.write(&mut together),
                        None => Refusal::NotYet.write(&mut together),
                    }
                }
                HeldObject::NotFound => Refusal::NotFound.write(&mut together),
            }
            if together.len() >= TOGETHER_BYTES {
                self.write(send, &mut [std::mem::take(&mut together).into()]).await?;
            }
        }
        self.write(send, &mut [together.into()]).await
    }
}

fn write_small(bytes: &[u8], small: &SmallRequest, to: &mut Vec<u8>) {
    if bytes.len() != small.bytes as usize {
        return Refusal::OtherLength(bytes.len() as u64).write(to);
    }
    to.push(FOUND);
    to.extend_from_slice(bytes);
}
