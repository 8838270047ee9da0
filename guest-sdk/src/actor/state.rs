//! The value that an actor is: the instance that made it keeps it until it ends.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

use crate::host;

/// None before it is made.
pub(crate) type State = Option<Rc<dyn Any>>;

/// What the value of a handle is that was not another actor's all along: none.
const NO_OTHER: &[u8] = &[0];

thread_local! {
    static STATE: RefCell<State> = const { RefCell::new(None) };
}

/// Whether this instance is an actor.
pub(crate) fn is_made() -> bool {
    STATE.with_borrow(Option::is_some)
}

/// Has calls find another value; gives the one before.
#[cfg(not(target_family = "wasm"))]
pub(crate) fn swapped(state: State) -> State {
    STATE.replace(state)
}

/// Keeps what was made, and tells the host that it is there.
///
/// # Errors
/// When there is a value already.
pub fn keep<T: 'static>(value: T) -> Result<(), String> {
    if is_made() {
        return Err("this instance is an actor already".to_owned());
    }
    STATE.set(Some(Rc::new(value)));
    host::returned(&[NO_OTHER], &[]);
    Ok(())
}

/// The value, beside others who have it.
///
/// # Errors
/// When there is none, or it is of another type.
pub fn shared<T: 'static>() -> Result<Rc<T>, String> {
    let state = STATE.with_borrow(Option::clone).ok_or("there is no actor here: nothing made it")?;
    state.downcast().map_err(|_| format!("this instance is another actor, no {}", std::any::type_name::<T>()))
}

/// Calls `call` with the value, which nobody else has meanwhile.
///
/// # Errors
/// Those of `call`; when somebody has it, or [`shared`] gives none.
pub fn exclusive<T: 'static, R>(call: impl FnOnce(&mut T) -> Result<R, String>) -> Result<R, String> {
    let mut state = shared::<T>()?;
    STATE.set(None);
    let result = match Rc::get_mut(&mut state) {
        Some(value) => call(value),
        None => Err("it changes its actor, and was called while others wait in it".to_owned()),
    };
    STATE.set(Some(state));
    result
}
