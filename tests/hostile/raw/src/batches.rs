//! Batches with false headers: each differs from a valid one in one place.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::bindings::data;
use crate::{Attack, Behavior};

/// Type tags of `sandbar-batch`.
mod tag {
    pub const NULL: u8 = 0;
    pub const INT32: u8 = 4;
    pub const FLOAT64: u8 = 12;
    pub const UTF8: u8 = 15;
    pub const TIMESTAMP: u8 = 32;
    pub const DECIMAL128: u8 = 34;
    pub const FIXED_BINARY: u8 = 36;
    pub const LIST: u8 = 37;
    pub const FIXED_LIST: u8 = 39;
    pub const STRUCT: u8 = 40;
    pub const MAP: u8 = 41;
    pub const DICTIONARY: u8 = 42;
}

/// The schema of one nullable column `x` of `Float64`.
pub const ONE_NUMBER: [u8; 7] = [1, 0, 1, 0, b'x', 1, tag::FLOAT64];

pub const ATTACKS: &[Attack] = &[
    ("nothing", Behavior::Process(|_| {})),
    ("nothing-next", Behavior::Process(|_| once())),
    ("bad-magic", Behavior::Process(|_| text(|b| b.magic = *b"SBB2"))),
    ("empty-header", Behavior::Process(|_| data::emit(&[], &[]))),
    ("cut-header", Behavior::Process(|_| text(|b| b.cut = 7))),
    ("long-header", Behavior::Process(|_| text(|b| b.tail = 16))),
    ("schema-beyond-header", Behavior::Process(|_| text(|b| b.schema_bytes = Some(1 << 20)))),
    ("schema-bytes-max", Behavior::Process(|_| text(|b| b.schema_bytes = Some(u32::MAX)))),
    ("nodes-max", Behavior::Process(|_| text(|b| b.node_count = Some(u32::MAX)))),
    ("buffers-max", Behavior::Process(|_| text(|b| b.buffer_count = Some(u32::MAX)))),
    ("no-nodes", Behavior::Process(|_| text(|b| b.nodes.clear()))),
    ("too-many-nodes", Behavior::Process(|_| text(|b| b.nodes.push((2, 0))))),
    ("no-buffers", Behavior::Process(|_| text(|b| b.buffers.clear()))),
    ("too-many-buffers", Behavior::Process(|_| text(|b| b.buffers.push((0, 0))))),
    ("rows-u32-max", Behavior::Process(|_| text(|b| b.all_rows(u64::from(u32::MAX))))),
    ("rows-i32-max", Behavior::Process(|_| text(|b| b.all_rows(i32::MAX as u64)))),
    ("rows-u64-max", Behavior::Process(|_| text(|b| b.all_rows(u64::MAX)))),
    ("rows-differ", Behavior::Process(|_| text(|b| b.rows = 3))),
    ("nulls-max", Behavior::Process(|_| text(|b| b.nodes[0].1 = u64::MAX))),
    ("body-larger", Behavior::Process(|_| text(|b| b.body_bytes = Some(1 << 40)))),
    ("body-max", Behavior::Process(|_| text(|b| b.body_bytes = Some(u64::MAX)))),
    ("body-smaller", Behavior::Process(|_| text(|b| b.body_bytes = Some(64)))),
    ("buffer-beyond-body", Behavior::Process(|_| text(|b| b.buffers[2] = (1 << 20, 3)))),
    ("buffer-longer-than-body", Behavior::Process(|_| text(|b| b.buffers[2] = (64, 1 << 30)))),
    ("buffer-end-overflows", Behavior::Process(|_| text(|b| b.buffers[2] = (u64::MAX - 63, 128)))),
    ("buffers-overlap", Behavior::Process(|_| text(|b| b.buffers[2] = (0, 3)))),
    ("buffer-not-aligned", Behavior::Process(|_| text(|b| b.buffers[2] = (65, 3)))),
    ("offsets-descend", Behavior::Process(|_| text(|b| b.parts[0] = offsets(&[0, 3, 1])))),
    ("offsets-negative", Behavior::Process(|_| text(|b| b.parts[0] = offsets(&[-8, 2, 3])))),
    ("offsets-beyond-data", Behavior::Process(|_| text(|b| b.parts[0] = offsets(&[0, 2, 4000])))),
    ("offsets-missing", Behavior::Process(|_| text(|b| b.buffers[1] = (0, 0)))),
    ("not-utf8", Behavior::Process(|_| text(|b| b.parts[1] = vec![b'a', 0xff, b'c']))),
    ("half-a-character", Behavior::Process(|_| text(|b| b.parts[1] = "aé".as_bytes().to_vec()))),
    ("name-not-utf8", Behavior::Process(|_| text(|b| b.schema[4] = 0xff))),
    ("name-beyond-schema", Behavior::Process(|_| text(|b| b.schema[2] = 200))),
    ("type-unknown", Behavior::Process(|_| text(|b| *b.schema.last_mut().unwrap() = 250))),
    ("fields-max", Behavior::Process(|_| text(|b| b.schema[..2].fill(0xff)))),
    ("schema-with-a-tail", Behavior::Process(|_| text(|b| b.schema.extend([0; 9])))),
    ("deep-schema", Behavior::Process(|_| deep_schema())),
    ("list-descends", Behavior::Process(|_| list(&[0, 2, 1]))),
    ("list-beyond-child", Behavior::Process(|_| list(&[0, 1, 1 << 30]))),
    ("dictionary-key-beyond-values", Behavior::Process(|_| dictionary(tag::INT32, 5))),
    ("dictionary-key-negative", Behavior::Process(|_| dictionary(tag::INT32, -1))),
    ("dictionary-keys-are-text", Behavior::Process(|_| dictionary(tag::UTF8, 0))),
    ("dictionary-keys-are-floats", Behavior::Process(|_| dictionary(tag::FLOAT64, 0))),
    (
        "struct-children-differ",
        Behavior::Process(|_| columns(&[tag::STRUCT, 1, 0, 0, 0, 1, tag::INT32], 2, &[(2, 0), (1, 0)], 3)),
    ),
    ("map-of-numbers", Behavior::Process(|_| columns(&[tag::MAP, 0, 0, 0, 0, tag::INT32], 2, &[(2, 0), (2, 0)], 4))),
    (
        "map-of-nothing",
        Behavior::Process(|_| columns(&[tag::MAP, 0, 0, 0, 0, tag::STRUCT, 0, 0], 0, &[(0, 0), (0, 0)], 3)),
    ),
    ("map-of-triples", Behavior::Process(|_| map_of_triples())),
    ("fixed-list-max", Behavior::Process(|_| fixed_list(i32::MAX, i32::MAX as u64))),
    ("fixed-list-of-nothing", Behavior::Process(|_| fixed_list(0, i32::MAX as u64))),
    ("fixed-binary-max", Behavior::Process(|_| fixed_binary(i32::MAX))),
    ("fixed-binary-of-nothing", Behavior::Process(|_| fixed_binary(0))),
    ("fixed-binary-negative", Behavior::Process(|_| fixed_binary(-1))),
    ("decimal-of-200-digits", Behavior::Process(|_| columns(&[tag::DECIMAL128, 200, 100], 0, &[(0, 0)], 2))),
    ("zone-is-none", Behavior::Process(|_| columns(&[tag::TIMESTAMP, 2, 1, 3, 0, b'?', b'!', 0], 0, &[(0, 0)], 2))),
    ("two-billion-nulls", Behavior::Process(|_| nulls(&["key", "x", "y"], i32::MAX as u64))),
    ("two-billion-rows-of-nothing", Behavior::Process(|_| nulls(&[], i32::MAX as u64))),
    ("columns-missing", Behavior::Process(|_| text(|_| {}))),
    ("columns-twice", Behavior::Process(|_| nulls(&["key", "key", "x", "y"], 0))),
    ("columns-that-change", Behavior::Process(columns_that_change)),
    (
        "batches-that-differ",
        Behavior::Process(|_| {
            text(|_| {});
            nulls(&["key"], 1)
        }),
    ),
    (
        "endless-batches",
        Behavior::Process(|_| {
            loop {
                text(|_| {})
            }
        }),
    ),
    ("many-buffers", Behavior::Process(|_| data::emit(&[0; 32], &vec![&[][..]; 100_000]))),
    ("scalar-of-no-rows", Behavior::Scalar(|header| scalar(if rows(header) == 0 { 0 } else { rows(header) - 1 }))),
    ("scalar-of-more-rows", Behavior::Scalar(|header| scalar(rows(header) + 1))),
    ("scalar-of-two-columns", Behavior::Scalar(|header| nulls(&["a", "b"], rows(header)))),
    (
        "scalar-of-another-type",
        Behavior::Scalar(|header| if rows(header) == 0 { scalar(0) } else { nulls(&["x"], rows(header)) }),
    ),
    ("description-is-no-schema", Behavior::Described(&[1, 0, 255, 255, 7])),
    ("description-is-deep", Behavior::Described(&DEEP)),
];

/// A schema of nested lists, deeper than any reader may recurse.
static DEEP: [u8; 2 + 40 * 4 + 1] = {
    let mut schema = [0; 2 + 40 * 4 + 1];
    schema[0] = 1;
    let mut level = 0;
    while level < 40 {
        schema[2 + 4 * level + 3] = tag::LIST;
        level += 1;
    }
    schema
};

/// Declared header of a batch, and its buffers.
struct Batch {
    magic: [u8; 4],
    schema: Vec<u8>,
    schema_bytes: Option<u32>,
    rows: u64,
    nodes: Vec<(u64, u64)>,
    node_count: Option<u32>,
    buffers: Vec<(u64, u64)>,
    buffer_count: Option<u32>,
    body_bytes: Option<u64>,
    parts: Vec<Vec<u8>>,
    /// Bytes to cut from the header's end, and bytes to append.
    cut: usize,
    tail: usize,
}

impl Batch {
    fn new(schema: Vec<u8>, rows: u64, nodes: &[(u64, u64)], buffers: &[(u64, u64)], parts: Vec<Vec<u8>>) -> Batch {
        Batch {
            magic: *b"SBB1",
            schema,
            schema_bytes: None,
            rows,
            nodes: nodes.to_vec(),
            node_count: None,
            buffers: buffers.to_vec(),
            buffer_count: None,
            body_bytes: None,
            parts,
            cut: 0,
            tail: 0,
        }
    }

    fn all_rows(&mut self, rows: u64) {
        self.rows = rows;
        self.nodes[0].0 = rows;
    }

    fn emit(self) {
        let body: usize = self.parts.iter().map(|p| p.len().next_multiple_of(64)).sum();
        let mut header = self.magic.to_vec();
        header.extend(self.schema_bytes.unwrap_or(self.schema.len() as u32).to_le_bytes());
        header.extend(self.rows.to_le_bytes());
        header.extend(self.node_count.unwrap_or(self.nodes.len() as u32).to_le_bytes());
        header.extend(self.buffer_count.unwrap_or(self.buffers.len() as u32).to_le_bytes());
        header.extend(self.body_bytes.unwrap_or(body as u64).to_le_bytes());
        header.extend(&self.schema);
        header.resize(header.len().next_multiple_of(8), 0);
        for (a, b) in self.nodes.iter().chain(&self.buffers) {
            header.extend(a.to_le_bytes());
            header.extend(b.to_le_bytes());
        }
        header.resize(header.len() + self.tail - self.cut, 0);
        let parts: Vec<&[u8]> = self.parts.iter().map(Vec::as_slice).collect();
        data::emit(&header, &parts);
    }
}

/// Emits an empty batch of `x` and `y` once, and nothing afterwards.
fn once() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Relaxed) {
        let mut schema = vec![2, 0];
        [b'x', b'y'].iter().for_each(|name| schema.extend([1, 0, *name, 1, tag::FLOAT64]));
        Batch::new(schema, 0, &[(0, 0); 2], &[(0, 0); 4], Vec::new()).emit();
    }
}

/// Emits a column `t` of the texts "ab" and "c", with one change.
fn text(change: fn(&mut Batch)) {
    let schema = vec![1, 0, 1, 0, b't', 1, tag::UTF8];
    let parts = vec![offsets(&[0, 2, 3]), b"abc".to_vec()];
    let mut batch = Batch::new(schema, 2, &[(2, 0)], &[(0, 0), (0, 12), (64, 3)], parts);
    change(&mut batch);
    batch.emit();
}

fn offsets(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Emits one column `c` of a type, without any bytes.
fn columns(data_type: &[u8], rows: u64, nodes: &[(u64, u64)], buffers: usize) {
    let mut schema = vec![1, 0, 1, 0, b'c', 1];
    schema.extend(data_type);
    Batch::new(schema, rows, nodes, &vec![(0, 0); buffers], Vec::new()).emit();
}

fn deep_schema() {
    let mut schema = vec![1, 0, 0, 0, 1];
    for _ in 0..50_000 {
        schema.extend([tag::LIST, 0, 0, 1]);
    }
    schema.push(tag::NULL);
    Batch::new(schema, 0, &[(0, 0)], &[(0, 0)], Vec::new()).emit();
}

fn list(at: &[i32]) {
    let schema = vec![1, 0, 1, 0, b'l', 1, tag::LIST, 0, 0, 1, tag::INT32];
    let parts = vec![offsets(at), offsets(&[7, 8])];
    Batch::new(schema, 2, &[(2, 0), (2, 0)], &[(0, 0), (0, 12), (0, 0), (64, 8)], parts).emit();
}

fn dictionary(keys: u8, key: i32) {
    let schema = vec![1, 0, 1, 0, b'd', 1, tag::DICTIONARY, keys, tag::INT32];
    let parts = vec![offsets(&[0, key]), offsets(&[7, 8])];
    Batch::new(schema, 2, &[(2, 0), (2, 0)], &[(0, 0), (0, 8), (0, 0), (64, 8)], parts).emit();
}

fn map_of_triples() {
    let mut entry = vec![tag::MAP, 0, 0, 0, 0, tag::STRUCT, 3, 0];
    entry.extend([0, 0, 0, tag::INT32, 0, 0, 0, tag::INT32, 0, 0, 0, tag::INT32]);
    let mut schema = vec![1, 0, 1, 0, b'm', 1];
    schema.extend(entry);
    let parts = vec![offsets(&[0])];
    let buffers = [(0, 0), (0, 4), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)];
    Batch::new(schema, 0, &[(0, 0); 5], &buffers, parts).emit();
}

fn fixed_list(size: i32, rows: u64) {
    let mut data_type = vec![tag::FIXED_LIST];
    data_type.extend(size.to_le_bytes());
    data_type.extend([0, 0, 1, tag::NULL]);
    columns(&data_type, rows, &[(rows, 0), (rows.wrapping_mul(size as u64), 0)], 1);
}

fn fixed_binary(size: i32) {
    let mut data_type = vec![tag::FIXED_BINARY];
    data_type.extend(size.to_le_bytes());
    columns(&data_type, i32::MAX as u64, &[(i32::MAX as u64, 0)], 2);
}

/// Emits columns of type Null, whose rows take no bytes.
fn nulls(names: &[&str], rows: u64) {
    let mut schema = (names.len() as u16).to_le_bytes().to_vec();
    for name in names {
        schema.extend((name.len() as u16).to_le_bytes());
        schema.extend(name.as_bytes());
        schema.extend([1, tag::NULL]);
    }
    Batch::new(schema, rows, &vec![(rows, 0); names.len()], &[], Vec::new()).emit();
}

fn numbers(names: &[&str], rows: u64) {
    let mut schema = (names.len() as u16).to_le_bytes().to_vec();
    for name in names {
        schema.extend((name.len() as u16).to_le_bytes());
        schema.extend(name.as_bytes());
        schema.extend([1, tag::FLOAT64]);
    }
    let bytes = vec![0; 8 * rows as usize];
    let step = bytes.len().next_multiple_of(64) as u64;
    let buffers: Vec<_> = (0..names.len() as u64).flat_map(|i| [(0, 0), (i * step, bytes.len() as u64)]).collect();
    Batch::new(schema, rows, &vec![(rows, 0); names.len()], &buffers, vec![bytes; names.len()]).emit();
}

fn columns_that_change(header: &[u8]) {
    match rows(header) {
        0 => numbers(&["key", "x", "y"], 0),
        rows => numbers(&["key", "x", "z"], rows),
    }
}

fn scalar(rows: u64) {
    numbers(&["x"], rows);
}

/// Returns the row count in the input's header.
fn rows(header: &[u8]) -> u64 {
    u64::from_le_bytes(header[8..16].try_into().expect("a header has 32 bytes"))
}
