//! Files of jobs of other nodes: the node that runs a job, its root, has its files, and lends their contents.

use sandbar_core::{Code, Fault, JobId, NodeId, ObjectId, TaskError};

use super::super::context::Context;
use super::super::effects::Effect;
use super::super::refs::{OpenedFile, TaskInWorker};
use super::actors::borrow_of_root;
use super::borrowed::Borrowed;
use super::peer_values::OutgoingValue;
use super::proxy_tasks::ProxyTasks;
use crate::peer::{JobRoot, PeerMessage};

/// Has a job's root open a file for a task of a worker.
pub(super) fn open_at_root(
    cx: &mut Context,
    proxies: &mut ProxyTasks,
    borrowed: &mut Borrowed,
    (job, root): (JobId, JobRoot),
    opened: &OpenedFile,
) {
    let OpenedFile { worker, task, object, number } = *opened;
    let missing = || Fault::new(Code::Host, "the node that runs the job, and has its files, is not connected");
    let requester = TaskInWorker { job, task, worker };
    if borrow_of_root(cx, proxies, borrowed, root, requester, object, missing).is_some() {
        cx.peers.send(root.node, &PeerMessage::OpenFile { object, job: root, number });
    }
}

/// A node opens a file of a job that this node runs.
pub(super) fn handle_open(
    cx: &mut Context,
    proxies: &mut ProxyTasks,
    node: NodeId,
    object: ObjectId,
    root: JobRoot,
    number: u64,
) {
    let job = proxies.job_of_root(cx, node, root);
    let proxy = job.and_then(|job| proxies.get_or_start_known(cx, node, job));
    if let (Some(task), Some(worker)) = (proxy, cx.peers.proxy_worker(node)) {
        return cx.push(Effect::OpenFile(OpenedFile { worker, task, object, number }));
    }
    let fault = Fault::new(Code::Cancelled, "its job has ended");
    let value = OutgoingValue::failed(&TaskError { fault, chain: Vec::new() });
    let value = value.as_message();
    cx.peers.send(node, &PeerMessage::ObjectValue { object, value, contains: Vec::new() });
}
