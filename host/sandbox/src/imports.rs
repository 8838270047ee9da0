//! Imports of the contract for data, logs and groups: translates from guest memory to [`Services`](crate::Services).

use sandbar_core::{Code, copy_from_shared};
use wasmtime::component::{ComponentType, Lift, LinkerInstance, Lower, WasmList, WasmStr};
use wasmtime::{Error, Result, StoreContextMut};

use crate::interrupt;
use crate::memory::{OVERLAYS_MAX, Overlays, PAGE_BYTES, Region, Slots};
use crate::services::{GroupRange, Input, Level, Predictions, Refusal};
use crate::state::SandboxState;

/// Bytes that are copied between two checks whether a task must end.
const STEP_BYTES: usize = 64 << 20;
/// Maximum bytes of a guest's name or message; longer ones are truncated, or refused by a lower limit.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 20;

/// Maximum number of buffers of one emitted batch.
const BUFFERS_MAX: usize = 1 << 16;

pub(crate) type Context<'a> = StoreContextMut<'a, SandboxState>;

/// Defines the interface `data`.
pub(crate) fn data(linker: &mut LinkerInstance<'_, SandboxState>) -> Result<()> {
    linker
        .func_wrap("read", |store: Context<'_>, (offset, region): (u64, WasmList<u8>)| read(store, offset, &region))?;
    linker.func_wrap("map-pages", |store: Context<'_>, (offset, region): (u64, WasmList<u8>)| {
        map_pages(store, offset, &region)
    })?;
    linker.func_wrap("emit", |store: Context<'_>, (header, buffers): (WasmList<u8>, WasmList<WasmList<u8>>)| {
        emit(store, &header, &buffers)
    })
}

/// Destination of bytes: a guest's list, without a reference into the guest's memory.
#[derive(Clone, Copy)]
pub(crate) struct Destination {
    pub(crate) address: *mut u8,
    /// Length in bytes.
    pub(crate) len: usize,
}

impl Destination {
    pub(crate) fn of(store: &Context<'_>, list: &WasmList<u8>) -> Destination {
        let slice = list.as_le_slice(store);
        Destination { address: slice.as_ptr().cast_mut(), len: slice.len() }
    }
}

/// The parts of a sandbox that map pages into its guest's memory.
pub(crate) struct PageMapper<'a> {
    pub(crate) overlays: &'a mut Overlays,
    pub(crate) slots: &'a Slots,
    /// Address at which the guest's initialised data ends.
    pub(crate) image_end: u64,
}

fn read(store: Context<'_>, offset: u64, region: &WasmList<u8>) -> Result<()> {
    let to = Destination::of(&store, region);
    copy(&store.data().services.input().bytes, offset, to)
}

/// Copies bytes of an input, from `offset`, to a guest's region.
pub(crate) fn copy(input: &[u8], offset: u64, to: Destination) -> Result<()> {
    let Destination { address, len } = to;
    let Some(from) = usize::try_from(offset).ok().and_then(|start| input.get(start..start.checked_add(len)?)) else {
        return refuse(Refusal::bad_request(format!(
            "it reads {len} bytes at {offset} of an input of {} bytes",
            input.len()
        )));
    };
    for (at, from) in from.chunks(STEP_BYTES).enumerate() {
        interrupt::check()?;
        // SAFETY: wasmtime has just checked that the destination lies in guest memory, which nothing else references while
        // its guest waits for this call; `from` is host memory, and the parts are as long as the destination.
        unsafe { copy_from_shared(from.as_ptr(), address.add(at * STEP_BYTES), from.len()) };
    }
    Ok(())
}

/// Copies a guest's text, or its first `bytes_max` bytes if it is longer.
pub(crate) fn text(store: &Context<'_>, text: &WasmStr, bytes_max: usize) -> Result<String> {
    let text = text.to_str(store)?;
    Ok(text[..text.floor_char_boundary(bytes_max)].to_owned())
}

fn map_pages(mut store: Context<'_>, offset: u64, region: &WasmList<u8>) -> Result<()> {
    let to = Destination::of(&store, region);
    let SandboxState { services, overlays, slots, image_end, .. } = store.data_mut();
    map_input(PageMapper { overlays, slots, image_end: *image_end }, services.input(), offset, to)
}

/// Maps the pages of an input, from `offset`, over a guest's region, or copies them if the input has no file.
pub(crate) fn map_input(mapper: PageMapper<'_>, input: Input<'_>, offset: u64, to: Destination) -> Result<()> {
    let PageMapper { overlays, slots, image_end } = mapper;
    let Destination { address: to, len } = to;
    let Some(pages) = Region::new(to as usize, len).filter(|_| offset.is_multiple_of(PAGE_BYTES as u64)) else {
        return refuse(Refusal::bad_request(format!("it maps {len} bytes at {offset}, which are not whole pages")));
    };
    let end = offset.checked_add(len as u64);
    if end.is_none_or(|end| end > (input.bytes.len() as u64).next_multiple_of(PAGE_BYTES as u64)) {
        return refuse(Refusal::bad_request(format!(
            "it maps {len} bytes at {offset} of an input of {} bytes",
            input.bytes.len()
        )));
    }
    let Some((file, start)) = input.file else {
        let from = &input.bytes[offset as usize..];
        let from = &from[..len.min(from.len())];
        // SAFETY: as in `copy`.
        unsafe { copy_from_shared(from.as_ptr(), to, from.len()) };
        return Ok(());
    };
    let address = slots.guest_address(to as usize);
    if address.is_none_or(|a| a < image_end.next_multiple_of(PAGE_BYTES as u64)) {
        return refuse(Refusal::bad_request(format!(
            "it maps pages over its initialised data, which ends at {}",
            image_end
        )));
    }
    if !overlays.has_room_for(pages) {
        return refuse(Refusal::bad_request(format!("it maps more than {OVERLAYS_MAX} regions; map larger ones")));
    }
    // SAFETY: the region was just checked to lie in the guest's memory, behind its image; no reference into it lives;
    // inputs with a file are sealed and were checked to have the pages.
    let laid = unsafe { overlays.lay(pages, file, start + offset) };
    laid.or_else(|message| refuse(Refusal { code: Code::Host, message }))
}

fn emit(mut store: Context<'_>, header: &WasmList<u8>, buffers: &WasmList<WasmList<u8>>) -> Result<()> {
    if buffers.len() > BUFFERS_MAX {
        return refuse(Refusal::bad_output(format!(
            "it emits {} buffers in one batch, the limit is {BUFFERS_MAX}",
            buffers.len()
        )));
    }
    let lists = buffers.iter(&mut store)?.collect::<Result<Vec<_>>>()?;
    // SAFETY: the guest waits for this call.
    let (header, slices) =
        unsafe { (detached(&store, header), lists.iter().map(|list| detached(&store, list)).collect::<Vec<_>>()) };
    store.data_mut().services.emit(header, &slices).or_else(refuse)
}

#[derive(ComponentType, Lift)]
#[component(enum)]
#[repr(u8)]
#[expect(dead_code, reason = "only lifted from a guest")]
enum WitLevel {
    #[component(name = "debug")]
    Debug,
    #[component(name = "info")]
    Info,
    #[component(name = "warn")]
    Warn,
    #[component(name = "error")]
    Error,
}

impl From<WitLevel> for Level {
    fn from(level: WitLevel) -> Level {
        match level {
            WitLevel::Debug => Level::Debug,
            WitLevel::Info => Level::Info,
            WitLevel::Warn => Level::Warn,
            WitLevel::Error => Level::Error,
        }
    }
}

/// Defines the interface `log`.
pub(crate) fn log(linker: &mut LinkerInstance<'_, SandboxState>) -> Result<()> {
    linker.func_wrap("write", |mut store: Context<'_>, (level, message): (WitLevel, WasmStr)| {
        // A longer message exceeds the limit of any log.
        let message = text(&store, &message, sandbar_core::LOG_BYTES_MAX as usize + 1)?;
        store.data_mut().services.log(level.into(), &message);
        Ok(())
    })?;
    linker.func_wrap("print", |mut store: Context<'_>, (level, text): (WitLevel, WasmList<u8>)| {
        // SAFETY: the guest waits for this call.
        let text = unsafe { detached(&store, &text) };
        store.data_mut().print(level.into(), text);
        Ok(())
    })?;
    linker.func_wrap("panic", |mut store: Context<'_>, (message,): (WasmStr,)| {
        let message = message.to_str(&store)?.chars().take(PANIC_CHARS_MAX).collect();
        store.data_mut().panic = Some(message);
        Ok(())
    })
}

const PANIC_CHARS_MAX: usize = 2000;

#[derive(ComponentType, Lower)]
#[component(record)]
struct WitGroup {
    #[component(name = "first-row")]
    first_row: u32,
    #[component(name = "train-rows")]
    train_rows: u32,
    #[component(name = "test-rows")]
    test_rows: u32,
    seed: u64,
}

impl From<GroupRange> for WitGroup {
    fn from(at: GroupRange) -> WitGroup {
        let GroupRange { first_row, train_rows, test_rows, seed } = at;
        WitGroup { first_row, train_rows, test_rows, seed }
    }
}

/// Defines the interface `groups`.
pub(crate) fn groups(linker: &mut LinkerInstance<'_, SandboxState>) -> Result<()> {
    linker.func_wrap("next", |mut store: Context<'_>, (): ()| {
        let state = store.data_mut();
        state.limiter.begin();
        match state.services.next_group() {
            Ok(next) => Ok((next.map(WitGroup::from),)),
            Err(refusal) => Err(Error::from(refusal)),
        }
    })?;
    linker.func_wrap("ahead", |store: Context<'_>, (): ()| {
        let ahead = store.data().services.groups_ahead()?;
        Ok((ahead.into_iter().map(WitGroup::from).collect::<Vec<_>>(),))
    })?;
    linker.func_wrap("model", |store: Context<'_>, (): ()| {
        let model = store.data().services.model()?;
        Ok((model,))
    })?;
    linker.func_wrap(
        "fitted",
        |mut store: Context<'_>, (model, params, predictions): (WasmList<u8>, WasmStr, WasmList<u8>)| {
            let params = params.to_str(&store)?.into_owned();
            // SAFETY: the guest waits for this call.
            let (model, predictions) =
                unsafe { (detached(&store, &model), Predictions(detached(&store, &predictions))) };
            Ok(store.data_mut().services.fitted(model, &params, predictions)?)
        },
    )?;
    linker.func_wrap("predicted", |mut store: Context<'_>, (predictions,): (WasmList<u8>,)| {
        // SAFETY: the guest waits for this call.
        let predictions = Predictions(unsafe { detached(&store, &predictions) });
        Ok(store.data_mut().services.predicted(predictions)?)
    })?;
    linker.func_wrap("failed", |mut store: Context<'_>, (message,): (WasmStr,)| {
        let message = text(&store, &message, TEXT_BYTES_MAX)?;
        Ok(store.data_mut().services.failed(&message)?)
    })
}

/// Returns a guest's list, no longer tied to the store.
///
/// # Safety
/// Guest memory must neither move nor change while the slice is in use.
pub(crate) unsafe fn detached<'a>(store: &Context<'_>, list: &WasmList<u8>) -> &'a [u8] {
    let slice = list.as_le_slice(store);
    // SAFETY: wasmtime has just checked that the list lies in guest memory; the caller guarantees the rest.
    unsafe { std::slice::from_raw_parts(slice.as_ptr(), slice.len()) }
}

pub(crate) fn refuse<T>(refusal: Refusal) -> Result<T> {
    Err(Error::from(refusal))
}
