//! Generated bindings of the contract.
#![allow(missing_docs, clippy::all, reason = "generated")]

wit_bindgen::generate!({
    path: "../../../wit/sandbar.wit",
    world: "udf",
    ownership: Borrowing { duplicate_if_necessary: false },
});

pub use exports::sandbar::udf::guest;
pub use sandbar::udf::{data, groups, log};

export!(Component with_types_in self);

use crate::Component;
