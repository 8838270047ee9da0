//! Invariants of a simulated cluster.

use sandbar_core::{Code, NodeId, TaskId};
use sandbar_sched::Event;

use super::super::Engine;
use super::program::decode;
use super::world::{SimJob, TIME_MAX, World, tenant_of};
use crate::peer::JobRoot;

impl World {
    /// Checks that the engines have no state of the tasks that root tasks submitted. The root tasks have released all
    /// references.
    pub(super) fn check_references(&self) -> Result<(), String> {
        for (number, node) in &self.nodes {
            let cx = &node.engine.cx;
            let surroundings = node.surroundings.borrow();
            let waiting = surroundings.workers.iter().filter(|worker| worker.borrow().waits_for_quiescence).count();
            if node.jobs.iter().filter(|job| job.outcome.is_none()).count() > waiting {
                return Err(format!("node {number}: its job neither waits nor has ended: {}", self.describe(*number)));
            }
            let is_result =
                |task: TaskId| node.engine.peers.is_proxy(task) || cx.jobs.values().any(|job| job.first == task);
            for (job, tenant) in cx.scheduler.jobs() {
                let root = node.engine.peers.remote_root(job).unwrap_or(JobRoot { node: NodeId(*number), job });
                let mut jobs = self.nodes.get(&root.node.0).into_iter().flat_map(|node| &node.jobs);
                let is_wrong = |other: &&SimJob| other.id == root.job && tenant != tenant_of(other.work.node);
                // A node believes what another one says of a job.
                if let Some(job) = jobs.find(is_wrong).filter(|_| !self.faults.has_liar) {
                    return Err(format!("node {number}: a job of node {} is of tenant {tenant}", job.work.node));
                }
                let left = cx.scheduler.objects_of(job).find(|object| object.task.is_none_or(|task| !is_result(task)));
                if let Some(left) = left {
                    let nodes: Vec<String> = self.nodes.keys().map(|number| self.describe(*number)).collect();
                    return Err(format!("node {number}: an object is left: {left:?}; {}", nodes.join("; ")));
                }
            }
            let values = cx.values.usage().values;
            if values > 0 {
                return Err(format!("node {number}: {values} values are left"));
            }
            let [executor, _, borrowed, remote, missed, checkpoints, reservations, _] = node.engine.peers.counts(cx);
            let left = [executor, borrowed, remote, missed, checkpoints, reservations];
            if left != [0; 6] {
                return Err(format!(
                    "node {number} has {left:?} (hosted tasks, borrowed objects, remote values, missed values, \
                     checkpoints, reservations) left"
                ));
            }
        }
        Ok(())
    }

    /// Checks the results of jobs. With a liar, they may be wrong.
    pub(super) fn check_results(&self) -> Result<(), String> {
        if self.faults.has_liar {
            return Ok(());
        }
        for (number, node) in &self.nodes {
            for (job, outcome) in node.jobs.iter().filter_map(|job| Some((job, job.outcome.as_ref()?))) {
                let expected = job.work.expected();
                let error = match outcome {
                    Ok(bytes) if decode(bytes) == Some(expected) => continue,
                    Ok(bytes) => {
                        let result = decode(bytes);
                        return Err(format!("node {number}: the result is {result:?}, not {expected}"));
                    }
                    Err(error) => error,
                };
                let codes = [Code::WorkerLost, Code::ObjectLost, Code::ActorDied, Code::StoreFull, Code::Host];
                let is_explained = codes.iter().any(|code| error.contains(&format!("[{}]", code.as_str())));
                if !self.faults.is_any() || !is_explained {
                    return Err(format!("node {number}: the job failed: {error}"));
                }
            }
        }
        Ok(())
    }

    /// Checks that the engines have no state of jobs that have ended.
    pub(super) fn check_empty(&mut self) -> Result<(), String> {
        for (number, node) in &mut self.nodes {
            for job in node.engine.cx.detached_jobs.clone().into_values() {
                node.engine.cx.step(Event::JobEnded { job });
            }
            node.engine.run_effects();
            let Engine { cx, workers, objects, jobs, deadlines, peers, .. } = &node.engine;
            // The last count, of connected proxy workers, is not zero.
            let [executor, proxies, borrowed, remote, missed, checkpoints, reservations, _] = peers.counts(cx);
            let introductions = cx.peers.introductions();
            let left =
                [executor, proxies, borrowed, remote, missed, checkpoints, reservations, objects.len(), introductions];
            if left != [0; 9] || cx.values.usage().values > 0 || jobs.has_results() {
                return Err(format!("node {number}: state {left:?} is left after its jobs have ended"));
            }
            if !cx.scheduler.is_empty() || !workers.has_no_actors() || !deadlines.is_empty() {
                let (tasks, actors) = (cx.scheduler.is_empty(), workers.has_no_actors());
                return Err(format!(
                    "node {number}: scheduler empty {tasks}, no actors {actors}, {deadlines:?}, {:?} {:?} {:?}",
                    cx.scheduler.tasks().collect::<Vec<_>>(),
                    cx.scheduler.objects().collect::<Vec<_>>(),
                    cx.scheduler.jobs().collect::<Vec<_>>()
                ));
            }
        }
        Ok(())
    }

    pub(super) fn time_out_error(&self) -> String {
        let nodes: Vec<String> = self.nodes.keys().map(|number| self.describe(*number)).collect();
        let surroundings = self.nodes.values().map(|node| node.surroundings.borrow());
        let workers = surroundings.flat_map(|surroundings| surroundings.workers.clone());
        let workers: Vec<String> = workers.map(|worker| worker.borrow().describe()).collect();
        format!("jobs have not ended after {TIME_MAX:?}: {}; {}", nodes.join("; "), workers.join("; "))
    }

    fn describe(&self, number: u32) -> String {
        let Some(node) = self.nodes.get(&number) else { return String::new() };
        let cx = &node.engine.cx;
        let tasks: Vec<String> = cx
            .scheduler
            .tasks()
            .take(20)
            .map(|view| format!("{} {} {:?} on {:?}", view.id, view.name, view.state, view.worker))
            .collect();
        let counts = node.engine.peers.counts(cx);
        let outcome = node.jobs_have_ended();
        format!("node {number} (ended: {outcome}, peers: {counts:?}): {tasks:?}")
    }
}
