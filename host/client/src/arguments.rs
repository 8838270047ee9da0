//! Arguments of tasks: checked against the task's signature, and encoded.

use std::ops::Range;
use std::sync::Arc;

use sandbar_core::{Argument, ObjectId, RequestOptions, TaskRequest};
use sandbar_node::ProgramTask;
use serde::Serialize;

use crate::ClientError;
use crate::encode::{Unfit, encode_argument};
use crate::job_state::JobState;
use crate::types::Type;
use crate::value::captured;

/// The arguments of a task, in order: a tuple of values, and of object references whose values the task receives.
pub trait Arguments {
    /// Number of arguments.
    #[doc(hidden)]
    const COUNT: usize;

    #[doc(hidden)]
    fn write(&self, list: &mut ArgumentList<'_>) -> Result<(), ClientError>;
}

/// Encoded arguments.
#[doc(hidden)]
#[derive(Debug)]
pub struct ArgumentList<'a> {
    job: &'a Arc<JobState>,
    task: &'a ProgramTask,
    bytes: Vec<u8>,
    all: Vec<ArgumentSource>,
    /// Objects that the values contain.
    refs: Vec<ObjectId>,
}

#[derive(Debug)]
enum ArgumentSource {
    Value(Range<usize>),
    Object(ObjectId),
}

impl<'a> ArgumentList<'a> {
    /// Encodes all arguments of a task.
    pub(crate) fn of<A: Arguments>(
        job: &'a Arc<JobState>,
        task: &'a ProgramTask,
        arguments: &A,
    ) -> Result<ArgumentList<'a>, ClientError> {
        if A::COUNT != task.arguments.len() {
            let takes: Vec<_> = task.arguments.iter().map(|(name, of)| format!("{name}: {of}")).collect();
            let (task, takes) = (task.name.as_ref().to_owned(), takes.join(", "));
            return Err(ClientError::Count { task, takes, given: A::COUNT });
        }
        let mut list = ArgumentList { job, task, bytes: Vec::new(), all: Vec::new(), refs: Vec::new() };
        arguments.write(&mut list)?;
        Ok(list)
    }

    fn add<T: Serialize>(&mut self, value: &T) -> Result<(), ClientError> {
        let (name, of) = self.task.arguments.get(self.all.len()).map(|(name, of)| (&**name, &**of)).unwrap_or_default();
        let (expected, start) = (Type::parse(of), self.bytes.len());
        let (result, written) = captured(self.job, || encode_argument(value, &expected, &mut self.bytes));
        let task = || self.task.name.as_ref().to_owned();
        if let Some(object) = written.foreign {
            return Err(ClientError::OtherJob { object: object.short(), task: task() });
        }
        let unfit =
            |given| ClientError::Argument { task: task(), argument: name.to_owned(), expected: of.to_owned(), given };
        match (result, written.objects.last()) {
            (Ok(()), _) => {
                self.all.push(ArgumentSource::Value(start..self.bytes.len()));
                self.refs.extend(written.objects);
                Ok(())
            }
            (Err(Unfit::IsObject), Some(_)) if Type::parse(written.of).contradicts(&expected) => {
                Err(unfit(format!("an object of {}", written.of)))
            }
            (Err(Unfit::IsObject), Some(object)) => {
                self.all.push(ArgumentSource::Object(*object));
                Ok(())
            }
            (Err(other), _) => Err(unfit(other.to_string())),
        }
    }

    /// Returns the request to call the task or the actor method.
    pub(crate) fn request(&self, options: Option<Box<RequestOptions>>, actor: Option<ObjectId>) -> TaskRequest<'_> {
        let arguments = self.all.iter().map(|given| match given {
            ArgumentSource::Value(range) => Argument::Value(self.bytes.get(range.clone()).unwrap_or_default()),
            ArgumentSource::Object(object) => Argument::Object(*object),
        });
        TaskRequest { options, actor, arguments: arguments.collect(), refs: self.refs.clone() }
    }
}

impl Arguments for () {
    const COUNT: usize = 0;

    fn write(&self, _: &mut ArgumentList<'_>) -> Result<(), ClientError> {
        Ok(())
    }
}

macro_rules! tuples {
    ($($count:literal: $($type:ident $place:tt),*;)*) => {$(
        impl<$($type: Serialize),*> Arguments for ($($type,)*) {
            const COUNT: usize = $count;

            fn write(&self, list: &mut ArgumentList<'_>) -> Result<(), ClientError> {
                $(list.add(&self.$place)?;)*
                Ok(())
            }
        }
    )*};
}

tuples! {
    1: A 0;
    2: A 0, B 1;
    3: A 0, B 1, C 2;
    4: A 0, B 1, C 2, D 3;
    5: A 0, B 1, C 2, D 3, E 4;
    6: A 0, B 1, C 2, D 3, E 4, F 5;
    7: A 0, B 1, C 2, D 3, E 4, F 5, G 6;
    8: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7;
    9: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8;
    10: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9;
    11: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10;
    12: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11;
}
