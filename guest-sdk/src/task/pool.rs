//! Pools: a task for each of many arguments, of which few are under way at once.

use std::collections::VecDeque;
use std::fmt;
use std::iter::Fuse;
use std::marker::PhantomData;

use sandbar_core::{Code, RequestOptions, TaskError};

use super::call::{Arg, Call};
use super::chunk::{List, Outcomes};
use super::object::{ObjectRef, release_gone};
use super::options::Submission;
use super::value::Value;
use crate::host;
use crate::registry::Offered;

/// Calls that are under way at once, unless a pool says otherwise.
const IN_FLIGHT: usize = 256;

/// Runs a task of one argument for each of many, which may be more than fit into memory: what `pool()` of a
/// [task](macro@crate::task) gives, or of its `options()`.
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
#[must_use = "nothing is run until it is given arguments"]
pub struct Pool<'p, A, R> {
    offered: &'static Offered,
    options: RequestOptions,
    chunksize: usize,
    in_flight: usize,
    on_progress: Option<Box<dyn FnMut(u64) + 'p>>,
    progress: Option<String>,
    task: PhantomData<fn(A) -> R>,
}

impl<A, Output, R> Submission<fn(A) -> Output, ObjectRef<R>> {
    /// Runs it for each of many arguments, with these options.
    pub fn pool<'p>(self) -> Pool<'p, A, R> {
        let (offered, options) = self.into_parts();
        let (chunksize, in_flight) = (1, IN_FLIGHT);
        Pool { offered, options, chunksize, in_flight, on_progress: None, progress: None, task: PhantomData }
    }
}

impl<A, R> fmt::Debug for Pool<'_, A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pool { offered, chunksize, in_flight, .. } = self;
        write!(f, "Pool({}, chunksize {chunksize}, in flight {in_flight})", offered.name)
    }
}

impl<'p, A: Value, R: Value> Pool<'p, A, R> {
    /// How many arguments one call runs one after another: more where each takes less than a millisecond; 1 otherwise.
    ///
    /// Where such a call ends with a trap, each of its arguments is run once more, by itself.
    pub fn chunksize(mut self, arguments: usize) -> Self {
        self.chunksize = arguments.max(1);
        self
    }

    /// How many calls are under way at once, with those whose results were not taken yet; 256 otherwise.
    pub fn in_flight(mut self, calls: usize) -> Self {
        self.in_flight = calls.max(1);
        self
    }

    /// Has the host show how many arguments are done, of how many if their iterator knows, and how many a second: under this
    /// name, with a bar where there is a terminal.
    pub fn progress(mut self, name: impl Into<String>) -> Self {
        self.progress = Some(name.into());
        self
    }

    /// Is told how many arguments are done, after each call.
    pub fn on_progress(mut self, told: impl FnMut(u64) + 'p) -> Self {
        self.on_progress = Some(Box::new(told));
        self
    }

    /// Runs it for all of these, and waits for all results, in their order.
    ///
    /// # Errors
    /// The first, in the order of the arguments. What was not done by then is cancelled.
    pub fn map<I: IntoIterator<Item = A>>(self, arguments: I) -> Result<Vec<R>, TaskError> {
        self.imap(arguments).collect()
    }

    /// Runs it for these, as results are taken, which come in the order of the arguments.
    pub fn imap<I: IntoIterator<Item = A>>(self, arguments: I) -> Results<'p, I::IntoIter, R> {
        self.results(arguments, true)
    }

    /// Runs it for these, as results are taken, which come as they are there.
    pub fn imap_unordered<I: IntoIterator<Item = A>>(self, arguments: I) -> Results<'p, I::IntoIter, R> {
        self.results(arguments, false)
    }

    fn results<I: IntoIterator<Item = A>>(self, arguments: I, ordered: bool) -> Results<'p, I::IntoIter, R> {
        let arguments = arguments.into_iter().fuse();
        let total = match arguments.size_hint() {
            (least, Some(most)) if least == most => Some(least as u64),
            _ => None,
        };
        let results =
            Results { pool: self, arguments, ordered, calls: VecDeque::new(), there: VecDeque::new(), done: 0, total };
        results.say_progress();
        results
    }

    fn submit_one(&self, argument: A) -> Submitted<A, R> {
        let mut call = Call::begin(self.offered, Some(&self.options), None);
        call.push(Arg::from(argument));
        Submitted::One(call.send())
    }

    fn submit(&self, mut arguments: Vec<A>) -> Submitted<A, R> {
        match arguments.pop() {
            Some(only) if arguments.is_empty() => self.submit_one(only),
            last => {
                arguments.extend(last);
                let call = Call::of_list(self.offered, &self.options, List(&arguments));
                Submitted::Several(arguments, call.send())
            }
        }
    }
}

/// What comes of a pool's arguments, of each its result or its error. Dropping it cancels what is under way.
pub struct Results<'p, I: Iterator, R> {
    pool: Pool<'p, I::Item, R>,
    arguments: Fuse<I>,
    ordered: bool,
    /// In the order of their arguments.
    calls: VecDeque<Submitted<I::Item, R>>,
    /// What was not taken yet of calls that are done.
    there: VecDeque<Result<R, TaskError>>,
    done: u64,
    /// How many arguments there are, if that is known.
    total: Option<u64>,
}

/// A call.
enum Submitted<A, R> {
    One(ObjectRef<R>),
    /// Of these arguments, which are kept in case that it fails as a whole.
    Several(Vec<A>, ObjectRef<Outcomes<R>>),
}

impl<A, R> Submitted<A, R> {
    fn number(&self) -> u64 {
        match self {
            Submitted::One(object) => object.number(),
            Submitted::Several(_, object) => object.number(),
        }
    }
}

impl<I: Iterator, R> fmt::Debug for Results<'_, I, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Results({}, {} done, {} calls under way)", self.pool.offered.name, self.done, self.calls.len())
    }
}

impl<I: Iterator<Item: Value>, R: Value> Iterator for Results<'_, I, R> {
    type Item = Result<R, TaskError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.there.is_empty() {
            self.fill();
            let call = self.take()?;
            self.finish(call);
        }
        self.there.pop_front()
    }
}

impl<I: Iterator<Item: Value>, R: Value> Results<'_, I, R> {
    /// Has as many calls under way as may be.
    fn fill(&mut self) {
        while self.calls.len() < self.pool.in_flight {
            let arguments: Vec<_> = self.arguments.by_ref().take(self.pool.chunksize).collect();
            if arguments.is_empty() {
                return;
            }
            self.calls.push_back(self.pool.submit(arguments));
        }
    }

    /// The call whose results are to come next.
    fn take(&mut self) -> Option<Submitted<I::Item, R>> {
        if self.ordered || self.calls.len() < 2 {
            return self.calls.pop_front();
        }
        let numbers: Vec<u64> = self.calls.iter().map(Submitted::number).collect();
        let mut ready = vec![0; numbers.len()];
        release_gone();
        host::wait(&numbers, 1, None, &mut ready);
        let first = ready.iter().position(|ready| *ready == 1).unwrap_or(0);
        self.calls.remove(first)
    }

    /// Waits for a call, and takes what came of it.
    fn finish(&mut self, call: Submitted<I::Item, R>) {
        match call {
            Submitted::One(object) => self.there.push_back(object.get()),
            Submitted::Several(arguments, object) => match object.get() {
                Ok(Outcomes(outcomes)) => self.there.extend(outcomes),
                Err(error) if error.fault.code == Code::Cancelled => {
                    self.there.extend(arguments.iter().map(|_| Err(error.clone())));
                }
                Err(_) => {
                    // One of them did it. They are the next in order.
                    let each: Vec<_> = arguments.into_iter().map(|one| self.pool.submit_one(one)).collect();
                    each.into_iter().rev().for_each(|call| self.calls.push_front(call));
                    return;
                }
            },
        }
        self.done += self.there.len() as u64;
        if let Some(told) = &mut self.pool.on_progress {
            told(self.done);
        }
        self.say_progress();
    }
}

impl<I: Iterator, R> Results<'_, I, R> {
    fn say_progress(&self) {
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
