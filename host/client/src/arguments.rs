//! Arguments of tasks: checked against the task's signature, and encoded.

use std::ops::Range;
use std::sync::Arc;

use sandbar_core::{Argument, ObjectId, RequestOptions, TaskRequest};
use sandbar_node::ProgramTask;
use serde::Serialize;

use crate::ClientError;
use crate::encode::{EncodeError, encode_argument};
use crate::job_state::JobState;
use crate::types::Type;
use crate::value::capture_refs;

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
    /// Objects that the values refer to.
    refs: Vec<ObjectId>,
}

#[derive(Debug)]
enum ArgumentSource {
    Value(Range<usize>),
    Object(ObjectId),
}

impl<'a> ArgumentList<'a> {
    /// Encodes all arguments of a task.
    pub(crate) fn encode<A: Arguments>(
        job: &'a Arc<JobState>,
        task: &'a ProgramTask,
        arguments: &A,
    ) -> Result<ArgumentList<'a>, ClientError> {
        if A::COUNT != task.arguments.len() {
            let takes: Vec<_> = task.arguments.iter().map(|(name, type_name)| format!("{name}: {type_name}")).collect();
            let (task, takes) = (task.name.as_ref().to_owned(), takes.join(", "));
            return Err(ClientError::Count { task, takes, count: A::COUNT });
        }
        let mut list = ArgumentList { job, task, bytes: Vec::new(), all: Vec::new(), refs: Vec::new() };
        arguments.write(&mut list)?;
        Ok(list)
    }

    fn add<T: Serialize>(&mut self, value: &T) -> Result<(), ClientError> {
        let argument = self.task.arguments.get(self.all.len());
        let (name, type_name) = argument.map(|(name, type_name)| (&**name, &**type_name)).unwrap_or_default();
        let (expected, start) = (Type::parse(type_name), self.bytes.len());
        let (result, refs) = capture_refs(self.job, || encode_argument(value, &expected, &mut self.bytes));
        let task = || self.task.name.as_ref().to_owned();
        if let Some(object) = refs.foreign {
            return Err(ClientError::OtherJob { object: object.short(), task: task() });
        }
        let mismatch = |actual| {
            let (argument, expected) = (name.to_owned(), type_name.to_owned());
            ClientError::Argument { task: task(), argument, expected, actual }
        };
        match (result, refs.objects.last()) {
            (Ok(()), _) => {
                self.all.push(ArgumentSource::Value(start..self.bytes.len()));
                self.refs.extend(refs.objects);
                Ok(())
            }
            (Err(EncodeError::Object), Some(_)) if Type::parse(refs.type_name).contradicts(&expected) => {
                Err(mismatch(format!("an object of {}", refs.type_name)))
            }
            (Err(EncodeError::Object), Some(object)) => {
                self.all.push(ArgumentSource::Object(*object));
                Ok(())
            }
            (Err(other), _) => Err(mismatch(other.to_string())),
        }
    }

    /// Returns the request to call the task or the actor method.
    pub(crate) fn request(&self, options: Option<Box<RequestOptions>>, actor: Option<ObjectId>) -> TaskRequest<'_> {
        let arguments = self.all.iter().map(|source| match source {
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
    ($($count:literal: $($type:ident $index:tt),*;)*) => {$(
        impl<$($type: Serialize),*> Arguments for ($($type,)*) {
            const COUNT: usize = $count;

            fn write(&self, list: &mut ArgumentList<'_>) -> Result<(), ClientError> {
                $(list.add(&self.$index)?;)*
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
