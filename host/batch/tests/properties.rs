//! Properties that hold for every batch, and for arbitrary bytes.

use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeListArray, Float32Array,
    Float64Array, Int8Array, Int64Array, LargeStringArray, NullArray, RecordBatch, RecordBatchOptions, StringArray,
    StructArray, TimestampMicrosecondArray, UInt16Array,
};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field, Fields, Schema};
use proptest::prelude::*;
use sandbar_batch::{Header, decode_schema, encode, read, read_parts};

/// A stream of random numbers (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 7
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Returns `rows` values, some of them null.
    fn options<T>(&mut self, rows: usize, mut value: impl FnMut(u64) -> T) -> Vec<Option<T>> {
        let nulls = self.below(3);
        (0..rows).map(|_| (nulls == 0 || self.below(4) > 0).then(|| value(self.next()))).collect()
    }
}

const KINDS: usize = 16;

/// Returns a random column of one of the kinds that the layout supports.
fn column(numbers: &mut Numbers, kind: usize, rows: usize, depth: usize) -> ArrayRef {
    let text = |n: u64| "äbc-日本"[..].chars().cycle().take((n % 9) as usize).collect::<String>();
    match kind {
        0 => Arc::new(Int8Array::from(numbers.options(rows, |n| n as i8))),
        1 => Arc::new(UInt16Array::from(numbers.options(rows, |n| n as u16))),
        2 => Arc::new(Int64Array::from(numbers.options(rows, |n| n as i64))),
        3 => Arc::new(Float32Array::from(numbers.options(rows, |n| f32::from_bits(n as u32)))),
        4 => Arc::new(Float64Array::from(numbers.options(rows, |n| n as f64 / 7.0))),
        5 => Arc::new(BooleanArray::from(numbers.options(rows, |n| n % 2 == 0))),
        6 => Arc::new(TimestampMicrosecondArray::from(numbers.options(rows, |n| n as i64)).with_timezone("+02:00")),
        7 => Arc::new(StringArray::from(numbers.options(rows, text))),
        8 => Arc::new(LargeStringArray::from(numbers.options(rows, text))),
        9 => Arc::new(BinaryArray::from_iter(numbers.options(rows, |n| n.to_le_bytes()[..(n % 8) as usize].to_vec()))),
        10 => {
            Arc::new(Decimal128Array::from(numbers.options(rows, i128::from)).with_precision_and_scale(38, 4).unwrap())
        }
        11 => Arc::new(NullArray::new(rows)),
        12 => {
            let words = numbers.options(rows, |n| ["a", "bb", "ccc"][(n % 3) as usize]);
            Arc::new(words.into_iter().collect::<DictionaryArray<Int32Type>>())
        }
        13 => {
            let mut lists = ListBuilder::new(StringBuilder::new());
            for list in numbers.options(rows, |n| n) {
                (0..list.unwrap_or(0) % 4).for_each(|i| lists.values().append_option((i > 0).then(|| text(i))));
                lists.append(list.is_some());
            }
            Arc::new(lists.finish())
        }
        14 if depth > 0 => {
            let kinds = [numbers.below(KINDS), numbers.below(KINDS)];
            let children: Vec<ArrayRef> = kinds.iter().map(|kind| column(numbers, *kind, rows, depth - 1)).collect();
            let field = |(i, child): (usize, &ArrayRef)| Field::new(format!("f{i}"), child.data_type().clone(), true);
            let fields: Fields = children.iter().enumerate().map(field).collect();
            Arc::new(StructArray::new(fields, children, None))
        }
        _ if depth > 0 => {
            let kind = numbers.below(KINDS);
            let child = column(numbers, kind, 3 * rows, depth - 1);
            let field = Arc::new(Field::new("item", child.data_type().clone(), true));
            Arc::new(FixedSizeListArray::new(field, 3, child, None))
        }
        _ => Arc::new(Int64Array::from_iter_values((0..rows as i64).rev())),
    }
}

/// Returns a random batch of up to six columns, sliced out of a larger one.
fn batch(seed: u64) -> RecordBatch {
    let mut numbers = Numbers(seed);
    let (rows, columns) = (numbers.below(40), numbers.below(7));
    let columns: Vec<ArrayRef> = (0..columns)
        .map(|_| {
            let kind = numbers.below(KINDS);
            column(&mut numbers, kind, rows, 2)
        })
        .collect();
    let field = |(i, c): (usize, &ArrayRef)| Field::new(format!("c{i}"), c.data_type().clone(), true);
    let schema = Schema::new(columns.iter().enumerate().map(field).collect::<Vec<_>>());
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let whole = RecordBatch::try_new_with_options(Arc::new(schema), columns, &options).unwrap();
    let from = numbers.below(rows + 1);
    whole.slice(from, numbers.below(rows - from + 1))
}

/// Decodes an untrusted batch, as a host decodes a guest's output.
fn reread(header: &[u8], body: &[u8]) -> Result<RecordBatch, String> {
    let header = Header::parse(header).map_err(|e| e.to_string())?;
    let schema = decode_schema(header.schema_bytes()).map_err(|e| e.to_string())?;
    let mut aligned = arrow_buffer::MutableBuffer::with_capacity(body.len());
    aligned.extend_from_slice(body);
    read(&header, Arc::new(schema), &Buffer::from(aligned)).map_err(|e| e.to_string())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_batch_comes_out_as_it_went_in(seed in any::<u64>()) {
        let batch = batch(seed);
        let encoded = encode(&batch).unwrap();
        let again = reread(&encoded.header, &encoded.body()).unwrap();
        prop_assert_eq!(again.schema_ref().fields(), batch.schema_ref().fields());
        prop_assert_eq!(again.num_rows(), batch.num_rows());
        // Compares floats by their bits: NaN equals itself.
        for (again, before) in again.columns().iter().zip(batch.columns()) {
            prop_assert!(again.to_data() == before.to_data(), "{:?} {:?}", again, before);
        }
    }

    #[test]
    fn parts_are_as_good_as_the_whole(seed in any::<u64>(), damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..3)) {
        let encoded = encode(&batch(seed)).unwrap();
        let mut header = encoded.header.clone();
        for (at, value) in damage {
            let at = usize::from(at) % header.len();
            header[at] = value;
        }
        // Unaligned, as guest memory may be.
        let part = |(_, bytes): &(usize, Buffer)| {
            let mut apart = vec![0; 1];
            apart.extend_from_slice(bytes);
            Buffer::from_vec(apart).slice(1)
        };
        let parts: Vec<Buffer> = encoded.buffers.iter().map(part).collect();
        let whole = reread(&header, &encoded.body());
        let read = Header::parse(&header).map_err(|e| e.to_string()).and_then(|header| {
            let schema = decode_schema(header.schema_bytes()).map_err(|e| e.to_string())?;
            read_parts(&header, Arc::new(schema), &parts).map_err(|e| e.to_string())
        });
        match (whole, read) {
            (Ok(whole), Ok(read)) => prop_assert_eq!(whole, read),
            // A damaged offset may be inside the body but in no single part.
            (_, Err(_)) => prop_assert_ne!(header, encoded.header),
            (Err(e), Ok(_)) => prop_assert!(false, "{}", e),
        }
    }

    #[test]
    fn damage_is_found_or_harmless(seed in any::<u64>(), damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..6), cut in any::<u8>()) {
        let batch = batch(seed);
        let encoded = encode(&batch).unwrap();
        let (mut header, mut body) = (encoded.header.clone(), encoded.body());
        for (at, value) in damage {
            // Three quarters of the damage hits the header, which holds lengths and offsets.
            let bytes = if at % 4 == 0 && !body.is_empty() { &mut body } else { &mut header };
            let at = usize::from(at) % bytes.len();
            bytes[at] = if value % 3 == 0 { value } else { bytes[at] ^ (1 << (value % 8)) };
        }
        if cut < 20 {
            header.truncate(header.len() * usize::from(cut) / 20);
        } else if cut < 40 {
            body.truncate(body.len() * usize::from(cut - 20) / 20);
        }
        if let Ok(read) = reread(&header, &body) {
            for column in read.columns() {
                column.to_data().validate_full().unwrap();
                prop_assert_eq!(column.len(), read.num_rows());
            }
        }
    }

    #[test]
    fn bytes_are_no_schema_or_one(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Header::parse(&bytes);
        if let Ok(schema) = decode_schema(&bytes) {
            prop_assert!(schema.fields().iter().all(|f| f.data_type() != &DataType::Utf8View));
        }
    }
}
