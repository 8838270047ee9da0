//! Calls of tasks, and their submission.

use std::sync::Arc;

use sandbar_core::{ObjectId, RequestOptions, STREAM_BUFFER, TaskKind};
use sandbar_node::ProgramTask;

use crate::ClientError;
use crate::arguments::{ArgumentList, Arguments};
use crate::job_state::JobState;
use crate::object::{ObjectRef, ResultRefs};
use crate::options::TaskOptions;
use crate::stream::ObjectStream;

/// A call of a task: see [`Job::task`](crate::Job::task).
#[derive(Debug, Clone)]
#[must_use = "the task runs only when the call is submitted"]
pub struct TaskCall<'a> {
    job: &'a Arc<JobState>,
    name: &'a str,
    options: Option<Box<RequestOptions>>,
}

impl<'a> TaskCall<'a> {
    pub(crate) fn new(job: &'a Arc<JobState>, name: &'a str) -> TaskCall<'a> {
        TaskCall { job, name, options: None }
    }

    /// Sets the options of the task.
    pub fn options(mut self, options: TaskOptions) -> Self {
        self.options = Some(Box::new(options.0));
        self
    }

    /// Submits the task with a tuple of values and object references. Returns a handle to the result, or a tuple of
    /// handles, as soon as the node has room for the submission.
    ///
    /// # Errors
    /// No such task exists; it takes or returns other types; the job has ended.
    pub async fn submit<R: ResultRefs>(&self, arguments: impl Arguments) -> Result<R, ClientError> {
        let (index, task) = self.find()?;
        if task.kind == TaskKind::Generator {
            return Err(ClientError::Generator { task: self.name.to_owned(), items: task.returns.clone() });
        }
        if R::COUNT != task.count {
            let (returns, requested) = (task.returns.clone(), format!("{} objects", R::COUNT));
            return Err(ClientError::Returns { task: self.name.to_owned(), returns, requested });
        }
        R::check(&task.name, &task.returns)?;
        submit(self.job, index, task, self.options.clone(), None, arguments).await
    }

    /// Submits a generator, as [`TaskCall::submit`] submits a task. Returns the stream of its items.
    ///
    /// # Errors
    /// No such task exists; it is not a generator; it takes or yields other types; the job has ended.
    pub async fn stream<T>(&self, arguments: impl Arguments) -> Result<ObjectStream<T>, ClientError> {
        let (index, task) = self.find()?;
        if task.kind != TaskKind::Generator {
            return Err(ClientError::NoGenerator { task: self.name.to_owned(), returns: task.returns.clone() });
        }
        ObjectRef::<T>::check(&task.name, &task.returns)?;
        let options = self.options.clone();
        let buffer = options.as_ref().map_or(STREAM_BUFFER, |options| options.buffer());
        let list = ArgumentList::encode(self.job, task, &arguments)?;
        let request = list.request(options, None);
        let opened = self.job.link.stream(index, &request, |stream| ObjectStream::open(stream, buffer, self.job));
        Ok(opened.await?)
    }

    fn find(&self) -> Result<(u32, &ProgramTask), ClientError> {
        let found = self.job.find(self.name, |kind| matches!(kind, TaskKind::Task | TaskKind::Generator));
        found.map_err(|available| ClientError::NoTask { name: self.name.to_owned(), available })
    }
}

/// Submits a call of a task or of an actor method.
pub(crate) async fn submit<R: ResultRefs>(
    job: &Arc<JobState>,
    function: u32,
    task: &ProgramTask,
    options: Option<Box<RequestOptions>>,
    actor: Option<ObjectId>,
    arguments: impl Arguments,
) -> Result<R, ClientError> {
    let list = ArgumentList::encode(job, task, &arguments)?;
    let first = job.link.submit(function, R::COUNT, &list.request(options, actor)).await?;
    Ok(R::new(first, job))
}
