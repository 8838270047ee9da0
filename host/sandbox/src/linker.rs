//! All imports of guests.

use wasmtime::component::Linker;
use wasmtime::{Engine, Result};

use crate::contract::DENSE;
use crate::state::SandboxState;
use crate::{dense, imports, sleep, tasks};

/// Defines the imports of guests. `waits` is whether calls may wait for objects; if so, components are instantiated and
/// called as futures.
pub(crate) fn linker(engine: &Engine, waits: bool) -> Result<Linker<SandboxState>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_sync(&mut linker)?;
    sleep::imports(&mut linker, waits)?;
    imports::data(&mut linker.instance("sandbar:udf/data@0.1.0")?)?;
    imports::log(&mut linker.instance("sandbar:udf/log@0.1.0")?)?;
    imports::groups(&mut linker.instance("sandbar:udf/groups@0.1.0")?)?;
    dense::imports(&mut linker.instance(DENSE)?, waits)?;
    tasks::imports(&mut linker.instance("sandbar:udf/tasks@0.1.0")?, waits)?;
    Ok(linker)
}
