//! Tasks: functions that a program calls on other processors, and the values they take and return.
//!
//! A `#[task]` is a function, and a type of the same name by which it is submitted.

mod batch;
mod call;
mod object;
mod options;
mod value;

use std::marker::PhantomData;

pub use batch::Batch;
pub use call::{Arg, Arguments, failed, hand_over};
pub use object::{Handles, ObjectRef, cancel, get_all, put, wait};
pub use options::Submission;
pub use value::Value;

pub(crate) use call::run;
pub(crate) use object::forget_handles;
#[cfg(not(target_family = "wasm"))]
pub(crate) use object::release_gone;

use crate::registry::Offered;
use call::Call;

/// A function that [`macro@crate::task`] has announced.
#[derive(Debug)]
pub struct Task<F, R> {
    offered: &'static Offered,
    task: PhantomData<fn() -> (F, R)>,
}

impl<F, R> Task<F, R> {
    /// For the attribute.
    pub const fn new(offered: &'static Offered) -> Self {
        Task { offered, task: PhantomData }
    }
}

macro_rules! submit {
    ($(($($name:ident $type:ident),*))*) => {$(
        impl<$($type: Value,)* Output, R: Handles> Task<fn($($type),*) -> Output, R> {
            /// Has it called with these arguments.
            ///
            /// # Panics
            /// When an argument can't be encoded.
            #[allow(clippy::too_many_arguments, reason = "as many as the function has")]
            pub fn submit(&self, $($name: impl Into<Arg<$type>>),*) -> R {
                #[allow(unused_mut, reason = "of no arguments none is pushed")]
                let mut call = Call::begin(self.offered, None);
                $(call.push($name.into());)*
                call.send()
            }
        }

        impl<$($type: Value,)* Output, R: Handles> Submission<fn($($type),*) -> Output, R> {
            /// Has the task called with these arguments, and with these options.
            ///
            /// # Panics
            /// When an argument can't be encoded.
            #[allow(clippy::too_many_arguments, reason = "as many as the function has")]
            pub fn submit(&self, $($name: impl Into<Arg<$type>>),*) -> R {
                #[allow(unused_mut, reason = "of no arguments none is pushed")]
                let mut call = Call::begin(self.offered(), Some(self.chosen()));
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
