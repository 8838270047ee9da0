//! Calls of a crate's functions as a host makes them, without a host: for the function's own tests.
//!
//! Everything but the sandbox is as it will be: parameters are parsed, columns laid out and viewed, results collected.
//!
//! ```
//! use sandbar_guest::prelude::*;
//! use sandbar_guest::{batch_of, testing};
//!
//! #[scalar]
//! fn half(x: f64) -> Option<f64> {
//!     (x > 0.0).then_some(x / 2.0)
//! }
//!
//! let input = batch_of! { "x": Float64 = [4.0, -1.0] };
//! let output = testing::call("half", "{}", &input).unwrap();
//! assert_eq!(output, [batch_of! { "half": Float64 = [Some(2.0), None] }]);
//! ```

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use sandbar_batch::{ALIGNMENT, Header, decode_schema, encode};

use crate::host::{self, Local};
use crate::random;
use crate::registry::{Opened, functions};
