//! Tasks: functions that a program runs on other processors, and the values that they take and return.
//!
//! `#[task]` keeps the function, and generates a type of the same name that submits it.

mod arguments;
mod batch;
mod bytes;
mod call_buffers;
mod call_builder;
mod chunk;
mod execution;
mod files;
mod group;
mod json;
mod object;
mod options;
mod pool;
mod ref_capture;
mod stream;
mod task_result;
mod value;

use std::marker::PhantomData;

pub use arguments::Arguments;
pub use batch::Batch;
pub use bytes::Bytes;
pub use call_builder::Arg;
pub use files::{File, Files, FilesIter};
pub use group::{Bundle, PlacementGroup};
pub use object::{Handles, ObjectRef, cancel, get_all, put, wait};
pub use options::Submission;
pub use pool::{Pool, Results};
pub use stream::{ObjectStream, yield_item};
pub use task_result::{report_error, return_value};
pub use value::Value;

pub(crate) use call_builder::CallBuilder;
pub(crate) use execution::run;
pub(crate) use group::placement_setters;
pub(crate) use object::{fetch, forget_handles, release_dropped, try_fetch};

use crate::actor::{Creation, Method};
use crate::registry::TaskDefinition;

/// A function that [`macro@crate::task`] has registered.
#[derive(Debug)]
pub struct Task<F, R> {
    definition: &'static TaskDefinition,
    task: PhantomData<fn() -> (F, R)>,
}

impl<F, R> Task<F, R> {
    /// For the macro only.
    pub const fn new(definition: &'static TaskDefinition) -> Self {
        Task { definition, task: PhantomData }
    }
}

impl<F, R> Task<F, R> {
    fn begin(&self) -> CallBuilder {
        CallBuilder::begin(self.definition, None, None)
    }
}

macro_rules! submit {
    ($(($($name:ident $type:ident),*))*) => {
        submit!(Task, "Submits a call with these arguments.": $(($($name $type),*))*);
        submit!(Submission, "Submits a call with these arguments and options.": $(($($name $type),*))*);
        submit!(Creation, "Creates an actor with these arguments and options.": $(($($name $type),*))*);
        submit!(Method, "Submits a call with these arguments.": $(($($name $type),*))*);
    };
    ($target:ident, $about:literal: $(($($name:ident $type:ident),*))*) => {$(
        impl<$($type: Value,)* Output, R: Handles> $target<fn($($type),*) -> Output, R> {
            #[doc = $about]
            ///
            /// # Panics
            /// Panics when an argument can't be encoded.
            #[allow(clippy::too_many_arguments, reason = "the function has as many")]
            pub fn submit(&self, $($name: impl Into<Arg<$type>>),*) -> R {
                #[allow(unused_mut, reason = "without arguments, nothing is pushed")]
                let mut call = self.begin();
                $(call.push($name.into());)*
                call.send()
            }
        }
    )*};
}

submit! {
    ()
    (a A)
    (a A, b B)
    (a A, b B, c C)
    (a A, b B, c C, d D)
    (a A, b B, c C, d D, e E)
    (a A, b B, c C, d D, e E, f F)
    (a A, b B, c C, d D, e E, f F, g G)
    (a A, b B, c C, d D, e E, f F, g G, h H)
    (a A, b B, c C, d D, e E, f F, g G, h H, i I)
    (a A, b B, c C, d D, e E, f F, g G, h H, i I, j J)
    (a A, b B, c C, d D, e E, f F, g G, h H, i I, j J, k K)
    (a A, b B, c C, d D, e E, f F, g G, h H, i I, j J, k K, l L)
}
