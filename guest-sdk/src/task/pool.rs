//! Pools: a task for each of many arguments, with a limited number of calls in flight.

use std::collections::VecDeque;
use std::fmt;
use std::iter::Fuse;
use std::marker::PhantomData;

use sandbar_core::{Code, RequestOptions, TaskError};

use super::call_builder::{Arg, CallBuilder};
use super::chunk::{List, Outcomes};
use super::object::{ObjectRef, release_dropped};
use super::options::Submission;
use super::value::Value;
use crate::host;
use crate::registry::TaskDefinition;

/// Default maximum number of calls in flight.
const IN_FLIGHT: usize = 256;

/// Runs a task of one argument for each of many arguments, which need not fit into memory: the `pool()` of a
/// [task](macro@crate::task) or of its `options()`.
///
/// ```
/// use sandbar_guest::prelude::*;
///
/// #[task]
/// fn inverse(n: i64) -> Result<f64, String> {
///     if n == 0 { Err("zero has none".to_owned()) } else { Ok(1.0 / n as f64) }
/// }
///
/// assert_eq!(inverse::pool().map(1..=4), Ok(vec![1.0, 0.5, 1.0 / 3.0, 0.25]));
/// let many = inverse::options().max_retries(5).pool().chunksize(100).imap(-1000..1000);
/// assert_eq!(many.filter(Result::is_err).count(), 1);
/// ```
#[must_use = "a pool runs nothing until it receives arguments"]
pub struct Pool<'p, A, R> {
    definition: &'static TaskDefinition,
    options: RequestOptions,
    chunksize: usize,
    in_flight: usize,
    on_progress: Option<Box<dyn FnMut(u64) + 'p>>,
    progress: Option<String>,
    task: PhantomData<fn(A) -> R>,
}

impl<A, Output, R> Submission<fn(A) -> Output, ObjectRef<R>> {
    /// Runs the task for each of many arguments, with these options.
    pub fn pool<'p>(self) -> Pool<'p, A, R> {
        let (definition, options) = self.into_parts();
        let (chunksize, in_flight) = (1, IN_FLIGHT);
        Pool { definition, options, chunksize, in_flight, on_progress: None, progress: None, task: PhantomData }
    }
}

impl<A, R> fmt::Debug for Pool<'_, A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pool { definition, chunksize, in_flight, .. } = self;
        write!(f, "Pool({}, chunksize {chunksize}, in flight {in_flight})", definition.name)
    }
}

impl<'p, A: Value, R: Value> Pool<'p, A, R> {
    /// Number of arguments per call, run one after another; 1 by default. Larger chunks help if an argument takes less
    /// than a millisecond.
    ///
    /// If such a call traps, the pool runs each of its arguments once more, in a call of its own.
    pub fn chunksize(mut self, arguments: usize) -> Self {
        self.chunksize = arguments.max(1);
        self
    }

    /// Maximum number of calls in flight, including those whose results were not taken yet; 256 by default.
    pub fn in_flight(mut self, calls: usize) -> Self {
        self.in_flight = calls.max(1);
        self
    }

    /// Displays progress under this name: finished arguments, their total number if the iterator knows it, and
    /// arguments per second. A terminal shows a bar.
    pub fn progress(mut self, name: impl Into<String>) -> Self {
        self.progress = Some(name.into());
        self
    }

    /// Calls `callback` with the number of finished arguments after each call.
    pub fn on_progress(mut self, callback: impl FnMut(u64) + 'p) -> Self {
        self.on_progress = Some(Box::new(callback));
        self
    }

    /// Runs the task for all arguments, and waits for all results, in the order of the arguments.
    ///
    /// # Errors
    /// The first error, in the order of the arguments. The pool cancels the remaining calls.
    pub fn map<I: IntoIterator<Item = A>>(self, arguments: I) -> Result<Vec<R>, TaskError> {
        self.imap(arguments).collect()
    }

    /// Runs the task for these arguments while results are taken, in the order of the arguments.
    pub fn imap<I: IntoIterator<Item = A>>(self, arguments: I) -> Results<'p, I::IntoIter, R> {
        self.results(arguments, true)
    }

    /// Runs the task for these arguments while results are taken, in the order of completion.
    pub fn imap_unordered<I: IntoIterator<Item = A>>(self, arguments: I) -> Results<'p, I::IntoIter, R> {
        self.results(arguments, false)
    }

    fn results<I: IntoIterator<Item = A>>(self, arguments: I, ordered: bool) -> Results<'p, I::IntoIter, R> {
        let arguments = arguments.into_iter().fuse();
        let total = match arguments.size_hint() {
            (lower, Some(upper)) if lower == upper => Some(lower as u64),
            _ => None,
        };
        let results =
            Results { pool: self, arguments, ordered, calls: VecDeque::new(), ready: VecDeque::new(), done: 0, total };
        results.report_progress();
        results
    }

    fn submit_one(&self, argument: A) -> PoolCall<A, R> {
        let mut call = CallBuilder::begin(self.definition, Some(&self.options), None);
        call.push(Arg::from(argument));
        PoolCall::One(call.send())
    }

    fn submit(&self, mut arguments: Vec<A>) -> PoolCall<A, R> {
        match arguments.pop() {
            Some(only) if arguments.is_empty() => self.submit_one(only),
            last => {
                arguments.extend(last);
                let call = CallBuilder::for_list(self.definition, &self.options, List(&arguments));
                PoolCall::Several(arguments, call.send())
            }
        }
    }
}

/// An iterator over a pool's results: a value or an error for each argument. Dropping it cancels the calls in flight.
pub struct Results<'p, I: Iterator, R> {
    pool: Pool<'p, I::Item, R>,
    arguments: Fuse<I>,
    ordered: bool,
    /// Calls in flight, in the order of their arguments.
    calls: VecDeque<PoolCall<I::Item, R>>,
    /// Results of finished calls that were not taken yet.
    ready: VecDeque<Result<R, TaskError>>,
    done: u64,
    /// Total number of arguments, if known.
    total: Option<u64>,
}

/// A call of a pool.
enum PoolCall<A, R> {
    One(ObjectRef<R>),
    /// A call with several arguments. The arguments are kept for a rerun if the call fails as a whole.
    Several(Vec<A>, ObjectRef<Outcomes<R>>),
}

impl<A, R> PoolCall<A, R> {
    fn number(&self) -> u64 {
        match self {
            PoolCall::One(object) => object.number(),
            PoolCall::Several(_, object) => object.number(),
        }
    }
}

impl<I: Iterator, R> fmt::Debug for Results<'_, I, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Results({}, {} done, {} calls in flight)", self.pool.definition.name, self.done, self.calls.len())
    }
}

impl<I: Iterator<Item: Value>, R: Value> Iterator for Results<'_, I, R> {
    type Item = Result<R, TaskError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() {
            self.fill();
            let call = self.take_call()?;
            self.finish(call);
        }
        self.ready.pop_front()
    }
}

impl<I: Iterator<Item: Value>, R: Value> Results<'_, I, R> {
    /// Submits calls up to the limit.
    fn fill(&mut self) {
        while self.calls.len() < self.pool.in_flight {
            let arguments: Vec<_> = self.arguments.by_ref().take(self.pool.chunksize).collect();
            if arguments.is_empty() {
                return;
            }
            self.calls.push_back(self.pool.submit(arguments));
        }
    }

    /// Removes the call whose results come next.
    fn take_call(&mut self) -> Option<PoolCall<I::Item, R>> {
        if self.ordered || self.calls.len() < 2 {
            return self.calls.pop_front();
        }
        let numbers: Vec<u64> = self.calls.iter().map(PoolCall::number).collect();
        let mut ready = vec![0; numbers.len()];
        release_dropped();
        host::wait(&numbers, 1, None, &mut ready);
        let first = ready.iter().position(|ready| *ready == 1).unwrap_or(0);
        self.calls.remove(first)
    }

    /// Waits for a call, and takes its results.
    fn finish(&mut self, call: PoolCall<I::Item, R>) {
        match call {
            PoolCall::One(object) => self.ready.push_back(object.get()),
            PoolCall::Several(arguments, object) => match object.get() {
                Ok(Outcomes(outcomes)) => self.ready.extend(outcomes),
                Err(error) if error.fault.code == Code::Cancelled => {
                    self.ready.extend(arguments.iter().map(|_| Err(error.clone())));
                }
                Err(_) => {
                    // One of the arguments made the call fail. Each runs again in its own call, next in order.
                    let each: Vec<_> = arguments.into_iter().map(|one| self.pool.submit_one(one)).collect();
                    each.into_iter().rev().for_each(|call| self.calls.push_front(call));
                    return;
                }
            },
        }
        self.done += self.ready.len() as u64;
        if let Some(callback) = &mut self.pool.on_progress {
            callback(self.done);
        }
        self.report_progress();
    }
}

impl<I: Iterator, R> Results<'_, I, R> {
    fn report_progress(&self) {
        if let Some(name) = &self.pool.progress {
            host::progress(name, self.done, self.total);
        }
    }
}

impl<I: Iterator, R> Drop for Results<'_, I, R> {
    fn drop(&mut self) {
        self.calls.iter().for_each(|call| host::cancel(call.number(), true));
    }
}
