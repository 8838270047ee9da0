//! JSON lines output: one object per row, with every column.

use std::io::Write as _;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{ArrowPrimitiveType, Float16Type, Float32Type, Float64Type};
use arrow_array::{Array, PrimitiveArray};
use arrow_json::writer::{
    Encoder, EncoderFactory, EncoderOptions, LineDelimited, NullableEncoder, Writer, WriterBuilder,
};
use arrow_schema::{ArrowError, DataType, FieldRef};

/// Creates a JSON lines writer. NaN and infinities are written as strings, as JSON has no numbers for them.
pub(super) fn writer<W: std::io::Write>(to: W) -> Writer<W, LineDelimited> {
    WriterBuilder::new().with_explicit_nulls(true).with_encoder_factory(Arc::new(FloatEncoderFactory)).build(to)
}

#[derive(Debug)]
struct FloatEncoderFactory;

impl EncoderFactory for FloatEncoderFactory {
    fn make_default_encoder<'a>(
        &self,
        _field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        fn encoder<'a, T: ArrowPrimitiveType>(array: &'a dyn Array, wide: fn(T::Native) -> f64) -> NullableEncoder<'a>
        where
            T::Native: std::fmt::Debug,
        {
            let values: &PrimitiveArray<T> = array.as_primitive();
            NullableEncoder::new(Box::new(FloatEncoder { values, wide }), array.nulls().cloned())
        }
        Ok(match array.data_type() {
            DataType::Float16 => Some(encoder::<Float16Type>(array, f64::from)),
            DataType::Float32 => Some(encoder::<Float32Type>(array, f64::from)),
            DataType::Float64 => Some(encoder::<Float64Type>(array, |value| value)),
            _ => None,
        })
    }
}

struct FloatEncoder<'a, T: ArrowPrimitiveType> {
    values: &'a PrimitiveArray<T>,
    wide: fn(T::Native) -> f64,
}

impl<T: ArrowPrimitiveType> Encoder for FloatEncoder<'_, T>
where
    T::Native: std::fmt::Debug,
{
    fn encode(&mut self, index: usize, out: &mut Vec<u8>) {
        let value = self.values.value(index);
        let wide = (self.wide)(value);
        // Writing to memory does not fail. `Debug` writes the fewest digits that parse to the same number.
        let _ = match wide {
            wide if wide.is_nan() => write!(out, "\"NaN\""),
            f64::INFINITY => write!(out, "\"Infinity\""),
            f64::NEG_INFINITY => write!(out, "\"-Infinity\""),
            _ => write!(out, "{value:?}"),
        };
    }
}
