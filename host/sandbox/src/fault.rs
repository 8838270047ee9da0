//! Converts the outcome of a wasmtime call to a fault with a code.

use sandbar_core::{Code, Fault};
use wasmtime::Trap;
use wasmtime_wasi::I32Exit;

use crate::services::Refusal;
use crate::state::SandboxState;

/// Converts `error` to a fault, using what the sandbox knows about it. The most specific cause wins: a denied growth or
/// a panic ends in a mere trap.
pub(crate) fn fault(state: &mut SandboxState, error: wasmtime::Error) -> Fault {
    if let Some(refusal) = error.downcast_ref::<Refusal>() {
        return Fault::new(refusal.code, refusal.message.clone());
    }
    if let Some(exit) = error.downcast_ref::<I32Exit>() {
        return Fault::new(Code::Exit, format!("it called exit({}); a function returns instead", exit.0));
    }
    if let Some(exceeded) = state.limiter.exceeded() {
        return exceeded;
    }
    if let Some(panic) = state.panic.take() {
        return Fault::new(Code::Panic, panic);
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::StackOverflow) => Fault::new(Code::StackOverflow, "its stack is used up: it recurses too deep"),
        Some(trap) => Fault::new(Code::Trap, trap.to_string()),
        None => Fault::new(Code::BadOutput, format!("{error:#}")),
    }
}
