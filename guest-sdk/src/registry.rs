//! The functions of a component, as their attributes announced them.

use arrow_schema::Field;

use crate::bindings::guest::Kind;

/// A function the component offers. One static value each, made by an attribute.
pub struct Function {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) about: &'static str,
    pub(crate) arguments: fn() -> Vec<Field>,
    pub(crate) returns: fn() -> Vec<Field>,
    pub(crate) open: fn(&str) -> Result<Box<dyn Opened>, String>,
}

inventory::collect!(Function);

/// A function with its parameters, ready for calls.
pub(crate) trait Opened {
    fn process(&mut self, _header: &[u8]) -> Result<(), String> {
        Err("this function takes groups, not batches".into())
    }
    fn fit(&mut self, _header: &[u8]) -> Result<(), String> {
        Err("this function takes batches, not groups".into())
    }
    fn predict(&mut self, _header: &[u8]) -> Result<(), String> {
        Err("this function takes batches, not groups".into())
    }
}

/// All functions of this component, by name. (The linker gives no order.)
pub(crate) fn functions() -> Vec<&'static Function> {
    let mut all: Vec<_> = inventory::iter::<Function>.into_iter().collect();
    all.sort_by_key(|f| f.name);
    all
}
