//! Imports of programs for tasks, objects and streams.

use std::future::poll_fn;

use sandbar_core::{ActorId, GroupId, ObjectId};
use wasmtime::component::{ComponentType, LinkerInstance, Lower, WasmList, WasmStr};
use wasmtime::{Error, Result};

use crate::imports::{Context, Destination, PageMapper, TEXT_BYTES_MAX, copy, detached, map_input, refuse, text};
use crate::services::{GetOutcome, NextItem, Refusal};
use crate::state::SandboxState;

/// Maximum number of parts of one value.
const PARTS_MAX: usize = 1 << 16;

#[derive(ComponentType, Lower, Clone, Copy)]
#[component(enum)]
#[repr(u8)]
enum WitOutcome {
    #[component(name = "value")]
    Value,
    #[component(name = "failed")]
    Failed,
    #[component(name = "time-out")]
    TimeOut,
}

#[derive(ComponentType, Lower, Clone, Copy)]
#[component(record)]
struct WitGot {
    outcome: WitOutcome,
    bytes: u64,
}

impl From<GetOutcome> for WitGot {
    fn from(got: GetOutcome) -> WitGot {
        let (outcome, bytes) = match got {
            GetOutcome::Value(bytes) => (WitOutcome::Value, bytes),
            GetOutcome::Failed(bytes) => (WitOutcome::Failed, bytes),
            GetOutcome::TimeOut => (WitOutcome::TimeOut, 0),
        };
        WitGot { outcome, bytes }
    }
}

#[derive(ComponentType, Lower, Clone, Copy)]
#[component(variant)]
enum WitFollowing {
    #[component(name = "item")]
    Item(u64),
    #[component(name = "ended")]
    Ended,
    #[component(name = "time-out")]
    TimeOut,
}

impl From<NextItem> for WitFollowing {
    fn from(following: NextItem) -> WitFollowing {
        match following {
            NextItem::Item(object) => WitFollowing::Item(object.0),
            NextItem::Ended => WitFollowing::Ended,
            NextItem::TimeOut => WitFollowing::TimeOut,
        }
    }
}

pub(crate) fn imports(linker: &mut LinkerInstance<'_, SandboxState>, waits: bool) -> Result<()> {
    linker.func_wrap(
        "put",
        |mut store: Context<'_>, (parts, contained): (WasmList<WasmList<u8>>, WasmList<u64>)| {
            let (parts, contained) = value(&mut store, &parts, &contained)?;
            let object = store.data_mut().services.put(&parts, &contained)?;
            Ok((object.0,))
        },
    )?;
    linker.func_wrap(
        "returned",
        |mut store: Context<'_>, (parts, contained): (WasmList<WasmList<u8>>, WasmList<u64>)| {
            let (parts, contained) = value(&mut store, &parts, &contained)?;
            Ok(store.data_mut().services.returned(&parts, &contained)?)
        },
    )?;
    linker.func_wrap("find", |mut store: Context<'_>, (name,): (WasmStr,)| {
        let name = text(&store, &name, TEXT_BYTES_MAX)?;
        Ok((store.data_mut().services.find(&name)?.0,))
    })?;
    linker
        .func_wrap("open", |mut store: Context<'_>, (file,): (u64,)| Ok((store.data_mut().services.open(file)?.0,)))?;
    linker.func_wrap("kill", |mut store: Context<'_>, (actor, restart): (u64, bool)| {
        Ok(store.data_mut().services.kill(ActorId(actor), restart)?)
    })?;
    linker.func_wrap("group", |mut store: Context<'_>, (request,): (WasmList<u8>,)| {
        // SAFETY: the guest waits for this call.
        let request = unsafe { detached(&store, &request) };
        Ok((store.data_mut().services.group(request)?.0,))
    })?;
    linker.func_wrap("remove-group", |mut store: Context<'_>, (group,): (u64,)| {
        Ok(store.data_mut().services.remove_group(GroupId(group))?)
    })?;
    linker.func_wrap("awaits", |mut store: Context<'_>, (objects,): (WasmList<u64>,)| {
        let objects = objects.as_le_slice(&store).to_vec();
        Ok(store.data_mut().services.awaits(&objects)?)
    })?;
    linker.func_wrap("progress", |mut store: Context<'_>, (name, done, total): (WasmStr, u64, Option<u64>)| {
        let name = text(&store, &name, TEXT_BYTES_MAX)?;
        store.data_mut().services.progress(&name, done, total);
        Ok(())
    })?;
    linker.func_wrap("failed", |mut store: Context<'_>, (error,): (WasmList<u8>,)| {
        // SAFETY: the guest waits for this call.
        let error = unsafe { detached(&store, &error) };
        Ok(store.data_mut().services.fail_with(error)?)
    })?;
    linker.func_wrap("read", |mut store: Context<'_>, (object, offset, region): (u64, u64, WasmList<u8>)| {
        let to = Destination::of(&store, &region);
        let (_, input) = store.data_mut().services.object(ObjectId(object))?;
        copy(&input.bytes, offset, to)
    })?;
    linker.func_wrap("map-pages", |mut store: Context<'_>, (object, offset, region): (u64, u64, WasmList<u8>)| {
        let to = Destination::of(&store, &region);
        let SandboxState { services, overlays, slots, image_end, .. } = store.data_mut();
        let (_, input) = services.object(ObjectId(object))?;
        map_input(PageMapper { overlays, slots, image_end: *image_end }, input, offset, to)?;
        services.object_mapped(to.address as usize, to.len);
        Ok(())
    })?;
    linker.func_wrap("release", |mut store: Context<'_>, (objects,): (WasmList<u64>,)| {
        let objects = objects.as_le_slice(&store).to_vec();
        Ok(store.data_mut().services.release(&objects)?)
    })?;
    linker.func_wrap("cancel", |mut store: Context<'_>, (object, recursive): (u64, bool)| {
        Ok(store.data_mut().services.cancel(ObjectId(object), recursive)?)
    })?;
    if waits { waiting(linker) } else { refusing(linker) }
}

/// Submits a task. Returns the number of its first result.
fn submit(store: &mut Context<'_>, task: u32, returns: u32, request: &WasmList<u8>) -> Result<u64> {
    // SAFETY: the guest waits for this call.
    let request = unsafe { detached(store, request) };
    Ok(store.data_mut().services.submit(task, returns, request)?.0)
}

fn waiting(linker: &mut LinkerInstance<'_, SandboxState>) -> Result<()> {
    linker.func_wrap_async(
        "submit",
        |mut store: Context<'_>, (task, returns, request): (u32, u32, WasmList<u8>)| {
            Box::new(async move {
                let object = submit(&mut store, task, returns, &request)?;
                poll_fn(|_| store.data_mut().services.poll_submitted()).await;
                Ok((object,))
            })
        },
    )?;
    linker.func_wrap_async(
        "yielded",
        |mut store: Context<'_>, (parts, contained): (WasmList<WasmList<u8>>, WasmList<u64>)| {
            Box::new(async move {
                let (parts, contained) = value(&mut store, &parts, &contained)?;
                store.data_mut().services.yielded(&parts, &contained)?;
                drop(parts);
                Ok(poll_fn(|_| store.data_mut().services.poll_yielded()).await?)
            })
        },
    )?;
    linker.func_wrap_async("next", |mut store: Context<'_>, (stream, nanos): (u64, Option<u64>)| {
        Box::new(async move {
            let stream = ObjectId(stream);
            store.data_mut().services.begin_item(stream, nanos)?;
            let following = poll_fn(|_| store.data_mut().services.poll_item(stream)).await?;
            Ok((WitFollowing::from(following),))
        })
    })?;
    linker.func_wrap_async("get", |mut store: Context<'_>, (object, nanos): (u64, Option<u64>)| {
        Box::new(async move {
            store.data_mut().services.begin_get(ObjectId(object), nanos)?;
            let ready = poll_fn(|_| store.data_mut().services.poll_wait()).await?;
            if !ready.first().is_some_and(|ready| *ready) {
                return Ok((WitGot::from(GetOutcome::TimeOut),));
            }
            let (got, _) = store.data_mut().services.object(ObjectId(object))?;
            Ok((got.into(),))
        })
    })?;
    linker.func_wrap_async(
        "wait",
        |mut store: Context<'_>, (objects, count, nanos, ready): (WasmList<u64>, u32, Option<u64>, WasmList<u8>)| {
            Box::new(async move {
                let numbers = objects.as_le_slice(&store).to_vec();
                let Destination { address, len } = Destination::of(&store, &ready);
                // Stored as an integer, because a pointer may not be held across a wait.
                let to = address as usize;
                if len != numbers.len() {
                    return refuse(Refusal::bad_request(format!(
                        "it waits for {} objects with room for {len} results",
                        numbers.len()
                    )));
                }
                store.data_mut().services.begin_wait(&numbers, count, nanos)?;
                let ready = poll_fn(|_| store.data_mut().services.poll_wait()).await?;
                for (at, ready) in ready.iter().take(len).enumerate() {
                    // SAFETY: the guest's own bytes, which do not move while it waits for this call.
                    unsafe { (to as *mut u8).add(at).write(u8::from(*ready)) };
                }
                Ok((ready.iter().filter(|ready| **ready).count() as u32,))
            })
        },
    )
}

/// Defines the imports for components that cannot wait.
fn refusing(linker: &mut LinkerInstance<'_, SandboxState>) -> Result<()> {
    let refuse = |mut store: Context<'_>| match store.data_mut().services.begin_wait(&[], 0, None) {
        Err(refusal) => Error::from(refusal),
        Ok(()) => Error::from(Refusal::bad_request("it can't wait here")),
    };
    linker.func_wrap("submit", |mut store: Context<'_>, (task, returns, request): (u32, u32, WasmList<u8>)| {
        Ok((submit(&mut store, task, returns, &request)?,))
    })?;
    linker.func_wrap("get", move |store: Context<'_>, (_, _): (u64, Option<u64>)| -> Result<(WitGot,)> {
        Err(refuse(store))
    })?;
    linker.func_wrap("next", move |store: Context<'_>, (_, _): (u64, Option<u64>)| -> Result<(WitFollowing,)> {
        Err(refuse(store))
    })?;
    linker.func_wrap(
        "yielded",
        move |store: Context<'_>, (_, _): (WasmList<WasmList<u8>>, WasmList<u64>)| -> Result<()> { Err(refuse(store)) },
    )?;
    linker.func_wrap(
        "wait",
        move |store: Context<'_>, (_, _, _, _): (WasmList<u64>, u32, Option<u64>, WasmList<u8>)| -> Result<(u32,)> {
            Err(refuse(store))
        },
    )
}

/// Returns the parts of a value, no longer tied to the store, and the objects that it contains.
fn value<'a>(
    store: &mut Context<'_>,
    parts: &WasmList<WasmList<u8>>,
    contained: &WasmList<u64>,
) -> Result<(Vec<&'a [u8]>, Vec<u64>)> {
    if parts.len() > PARTS_MAX {
        let message = format!("a value of {} parts, the limit is {PARTS_MAX}", parts.len());
        return refuse(Refusal::bad_output(message));
    }
    let lists = parts.iter(&mut *store)?.collect::<Result<Vec<_>>>()?;
    if store.data().memory.is_none() {
        let within = contained.as_le_slice(&*store).as_ptr() as usize;
        let state = store.data_mut();
        state.memory = state.slots.base(within);
    }
    // SAFETY: the guest waits for this call.
    let parts = lists.iter().map(|list| unsafe { detached(&*store, list) }).collect();
    Ok((parts, contained.as_le_slice(&*store).to_vec()))
}
