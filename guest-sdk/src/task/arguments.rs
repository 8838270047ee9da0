//! Arguments that a task receives.

use sandbar_core::Argument;

use super::object::fetch;
use super::value::{Value, ValueBytes};

/// The arguments that a task receives.
#[derive(Debug)]
pub struct Arguments<'a> {
    /// Name and type of each parameter.
    pub(super) parameters: &'static [(&'static str, &'static str)],
    pub(super) call: u64,
    pub(super) values: Vec<Argument<'a>>,
}

impl Arguments<'_> {
    /// The number of the call.
    pub fn call(&self) -> u64 {
        self.call
    }

    /// Decodes the argument at an index.
    ///
    /// # Errors
    /// Names the argument when it is missing or can't be decoded.
    pub fn take<T: Value>(&self, index: usize) -> Result<T, String> {
        let (name, type_name) = self.parameters[index];
        let wrong = |e| format!("argument `{name}` can't be read as {type_name}: {e}");
        match self.values.get(index).unwrap_or(&Argument::Missing) {
            Argument::Value(bytes) => T::read(ValueBytes::Memory(bytes)).map_err(wrong),
            Argument::Object(object) => fetch(object.0, None).map_err(|e| format!("argument `{name}`: {e}")),
            Argument::Json(text) => T::from_json(text).map_err(wrong),
            Argument::Missing | Argument::ReturnsJson => {
                T::absent().ok_or_else(|| format!("argument `{name}` is missing"))
            }
        }
    }
}
