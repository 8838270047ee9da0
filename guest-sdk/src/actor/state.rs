//! The actor's value: the instance that created it keeps it.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

use crate::host;

/// The actor's value; none before its creation.
pub(crate) type ActorState = Option<Rc<dyn Any>>;

/// The encoded value of the handle of a new actor: no alias.
const NO_ALIAS: &[u8] = &[0];

thread_local! {
    static STATE: RefCell<ActorState> = const { RefCell::new(None) };
}

/// Returns whether this instance is an actor.
pub(crate) fn is_actor() -> bool {
    STATE.with_borrow(Option::is_some)
}

/// Replaces the value. Returns the previous one.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn swap_state(state: ActorState) -> ActorState {
    STATE.replace(state)
}

/// Stores a new actor's value, and reports its creation to the host.
///
/// # Errors
/// Fails when there is a value already.
pub fn store_actor<T: 'static>(value: T) -> Result<(), String> {
    if is_actor() {
        return Err("this instance is an actor already".to_owned());
    }
    STATE.set(Some(Rc::new(value)));
    host::returned(&[NO_ALIAS], &[]);
    Ok(())
}

/// Returns the value for shared access.
///
/// # Errors
/// Fails when there is no value, or one of another type.
pub fn shared_state<T: 'static>() -> Result<Rc<T>, String> {
    let state = STATE.with_borrow(Option::clone).ok_or("this instance has no actor: its constructor has not run")?;
    state
        .downcast()
        .map_err(|_| format!("this instance is an actor of another type than {}", std::any::type_name::<T>()))
}

/// Calls `call` with exclusive access to the value.
///
/// # Errors
/// The errors of `call` and [`shared_state`], and concurrent access to the value.
pub fn with_exclusive_state<T: 'static, R>(call: impl FnOnce(&mut T) -> Result<R, String>) -> Result<R, String> {
    let mut state = shared_state::<T>()?;
    STATE.set(None);
    let result = match Rc::get_mut(&mut state) {
        Some(value) => call(value),
        None => Err("a method with `&mut self` was called while other calls of the actor wait".to_owned()),
    };
    STATE.set(Some(state));
    result
}
