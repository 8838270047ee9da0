//! Encoding of Rust values as the types in a component's task signatures.
//!
//! Postcard's encoding does not carry types: the bytes of a `u64` decode as another number if read as an `i64`. A
//! number is therefore encoded as the type that the task takes, if that type can represent it; a value of another kind
//! is an error. For an unknown type, a value is encoded as its own type.

use std::fmt;

use serde::Serialize;
use serde::ser::{self, Impossible, SerializeSeq, SerializeTuple, Serializer};

use crate::types::Type;

/// Serde name of an object reference. A reference that is a whole argument stands for the object's value.
pub(crate) const OBJECT: &str = "sandbar.ObjectRef";
/// Serde name of an actor handle, which is a value.
pub(crate) const ACTOR: &str = "sandbar.Actor";

/// Why a value can't be encoded as a type.
#[derive(Debug)]
pub(crate) enum EncodeError {
    /// The type can't represent the value, which the text describes.
    Mismatch(String),
    /// The type is unknown: encode the value as its own type.
    UnknownType,
    /// The value is an object reference, so the object's value is the argument.
    Object,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EncodeError::Mismatch(description) => f.write_str(description),
            EncodeError::UnknownType => f.write_str("a value of an unknown type"),
            EncodeError::Object => f.write_str("an object"),
        }
    }
}

impl std::error::Error for EncodeError {}

impl ser::Error for EncodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        EncodeError::Mismatch(message.to_string())
    }
}

/// Encodes an argument as a type. Returns [`EncodeError::Object`] for an object reference.
pub(crate) fn encode_argument<T: Serialize + ?Sized>(
    value: &T,
    target: &Type,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    write(value, target, out, true)
}

/// Encodes a value as a type.
fn encode<T: Serialize + ?Sized>(value: &T, target: &Type, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    write(value, target, out, false)
}

fn write<T: Serialize + ?Sized>(
    value: &T,
    target: &Type,
    out: &mut Vec<u8>,
    is_argument: bool,
) -> Result<(), EncodeError> {
    match value.serialize(Encoder { target, out, is_argument }) {
        Err(EncodeError::UnknownType) => encode_as_own_type(value, out),
        result => result,
    }
}

/// Encodes a value as its own type.
fn encode_as_own_type<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    *out = postcard::to_extend(value, std::mem::take(out)).map_err(|e| EncodeError::Mismatch(e.to_string()))?;
    Ok(())
}

struct Encoder<'a> {
    target: &'a Type,
    out: &'a mut Vec<u8>,
    /// Whether the value is an argument, rather than a part of one.
    is_argument: bool,
}

impl<'a> Encoder<'a> {
    /// Returns the type to encode as. Wraps a plain value in the options around its type.
    fn target_type(&mut self) -> Result<&'a Type, EncodeError> {
        while let Type::Option(inner) = self.target
            && inner.is_known()
        {
            self.out.push(1);
            self.target = inner;
        }
        match self.target {
            Type::Other => Err(EncodeError::UnknownType),
            target => Ok(target),
        }
    }

    fn int(mut self, value: i128) -> Result<(), EncodeError> {
        let mismatch = || EncodeError::Mismatch(format!("the number {value}"));
        match self.target_type()? {
            Type::Int(bits, true) => {
                let bound = 1_i128 << (bits - 1);
                if !(-bound..bound).contains(&value) {
                    return Err(mismatch());
                }
                match bits {
                    8 => self.out.push(value as i8 as u8),
                    // Zigzag: encodes small numbers of either sign in few bytes.
                    _ => varint(((value << 1) ^ (value >> 127)) as u128, self.out),
                }
            }
            Type::Int(bits, false) => {
                if !(0..1 << bits).contains(&value) {
                    return Err(mismatch());
                }
                match bits {
                    8 => self.out.push(value as u8),
                    _ => varint(value as u128, self.out),
                }
            }
            Type::F64 if value as f64 as i128 == value => self.out.extend((value as f64).to_le_bytes()),
            Type::F32 if value as f32 as i128 == value => self.out.extend((value as f32).to_le_bytes()),
            _ => return Err(mismatch()),
        }
        Ok(())
    }

    fn float(mut self, value: f64) -> Result<(), EncodeError> {
        match self.target_type()? {
            Type::F64 => self.out.extend(value.to_le_bytes()),
            Type::F32 if f64::from(value as f32) == value || value.is_nan() => {
                self.out.extend((value as f32).to_le_bytes());
            }
            _ => return Err(EncodeError::Mismatch(format!("the number {value:?}"))),
        }
        Ok(())
    }

    fn parts(mut self, count: Option<usize>) -> Result<SequenceEncoder<'a>, EncodeError> {
        let types = match (self.target_type()?, count) {
            (Type::List(element), None) => ElementTypes::Same(element),
            (Type::Tuple(all), Some(count)) if all.len() == count => ElementTypes::Each(all),
            (_, None) => return Err(EncodeError::Mismatch("a list".to_owned())),
            (_, Some(count)) => return Err(EncodeError::Mismatch(format!("{count} values together"))),
        };
        Ok(SequenceEncoder { out: self.out, types, written: Vec::new(), count: 0 })
    }

    /// Returns the error for a value that no known type represents.
    fn mismatch<T>(&self, description: impl Into<String>) -> Result<T, EncodeError> {
        Err(if *self.target == Type::Other {
            EncodeError::UnknownType
        } else {
            EncodeError::Mismatch(description.into())
        })
    }
}

impl<'a> Serializer for Encoder<'a> {
    type Ok = ();
    type Error = EncodeError;
    type SerializeSeq = SequenceEncoder<'a>;
    type SerializeTuple = SequenceEncoder<'a>;
    type SerializeTupleStruct = Impossible<(), EncodeError>;
    type SerializeTupleVariant = Impossible<(), EncodeError>;
    type SerializeMap = Impossible<(), EncodeError>;
    type SerializeStruct = Impossible<(), EncodeError>;
    type SerializeStructVariant = Impossible<(), EncodeError>;

    fn serialize_bool(mut self, value: bool) -> Result<(), EncodeError> {
        match self.target_type()? {
            Type::Bool => self.out.push(u8::from(value)),
            _ => return Err(EncodeError::Mismatch(value.to_string())),
        }
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result<(), EncodeError> {
        self.int(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), EncodeError> {
        self.int(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), EncodeError> {
        self.int(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), EncodeError> {
        self.int(value.into())
    }

    fn serialize_u8(self, value: u8) -> Result<(), EncodeError> {
        self.int(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result<(), EncodeError> {
        self.int(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result<(), EncodeError> {
        self.int(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), EncodeError> {
        self.int(value.into())
    }

    fn serialize_f32(self, value: f32) -> Result<(), EncodeError> {
        self.float(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), EncodeError> {
        self.float(value)
    }

    fn serialize_char(mut self, value: char) -> Result<(), EncodeError> {
        match self.target_type()? {
            Type::Char | Type::Text => text(value.encode_utf8(&mut [0; 4]), self.out),
            _ => return Err(EncodeError::Mismatch(format!("the character {value:?}"))),
        }
        Ok(())
    }

    fn serialize_str(mut self, value: &str) -> Result<(), EncodeError> {
        match self.target_type()? {
            Type::Text => text(value, self.out),
            _ => {
                return Err(EncodeError::Mismatch(format!(
                    "the text {:?}",
                    value.chars().take(40).collect::<String>()
                )));
            }
        }
        Ok(())
    }

    fn serialize_bytes(mut self, value: &[u8]) -> Result<(), EncodeError> {
        match self.target_type()? {
            Type::List(element) if **element == Type::Int(8, false) => {
                varint(value.len() as u128, self.out);
                self.out.extend_from_slice(value);
            }
            _ => return Err(EncodeError::Mismatch(format!("{} bytes", value.len()))),
        }
        Ok(())
    }

    fn serialize_none(self) -> Result<(), EncodeError> {
        match self.target {
            Type::Option(_) => self.out.push(0),
            _ => return self.mismatch("nothing"),
        }
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), EncodeError> {
        match self.target {
            Type::Option(inner) => {
                self.out.push(1);
                encode(value, inner, self.out)
            }
            _ => self.mismatch("an option"),
        }
    }

    fn serialize_unit(mut self) -> Result<(), EncodeError> {
        match self.target_type()? {
            Type::Unit => Ok(()),
            _ => Err(EncodeError::Mismatch("nothing".to_owned())),
        }
    }

    fn serialize_unit_struct(self, name: &'static str) -> Result<(), EncodeError> {
        self.mismatch(format!("a `{name}`"))
    }

    fn serialize_unit_variant(self, name: &'static str, _: u32, _: &'static str) -> Result<(), EncodeError> {
        self.mismatch(format!("a `{name}`"))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Result<(), EncodeError> {
        match (name, self.target) {
            (OBJECT, _) if self.is_argument => Err(EncodeError::Object),
            (_, Type::Other) => Err(EncodeError::UnknownType),
            (OBJECT, _) => Err(EncodeError::Mismatch("an object within a value".to_owned())),
            (ACTOR, _) => Err(EncodeError::Mismatch("an actor".to_owned())),
            _ => value.serialize(self),
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<(), EncodeError> {
        self.mismatch(format!("a `{name}`"))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<SequenceEncoder<'a>, EncodeError> {
        self.parts(None)
    }

    fn serialize_tuple(self, len: usize) -> Result<SequenceEncoder<'a>, EncodeError> {
        self.parts(Some(len))
    }

    fn serialize_tuple_struct(self, name: &'static str, _: usize) -> Result<Impossible<(), EncodeError>, EncodeError> {
        self.mismatch(format!("a `{name}`"))
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Impossible<(), EncodeError>, EncodeError> {
        self.mismatch(format!("a `{name}`"))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Impossible<(), EncodeError>, EncodeError> {
        self.mismatch("a map")
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Impossible<(), EncodeError>, EncodeError> {
        self.mismatch(format!("a `{name}`"))
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Impossible<(), EncodeError>, EncodeError> {
        self.mismatch(format!("a `{name}`"))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

enum ElementTypes<'a> {
    /// Type of all elements of a list.
    Same(&'a Type),
    /// Type of each element of a tuple.
    Each(&'a [Type]),
}

/// Encodes the elements of a list or a tuple.
struct SequenceEncoder<'a> {
    out: &'a mut Vec<u8>,
    types: ElementTypes<'a>,
    written: Vec<u8>,
    count: usize,
}

impl SequenceEncoder<'_> {
    fn add<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        let target = match self.types {
            ElementTypes::Same(element) => element,
            ElementTypes::Each(all) => all.get(self.count).unwrap_or(&Type::Other),
        };
        self.count += 1;
        encode(value, target, &mut self.written)
    }

    fn finish(self) {
        if let ElementTypes::Same(_) = self.types {
            varint(self.count as u128, self.out);
        }
        self.out.extend(self.written);
    }
}

impl SerializeSeq for SequenceEncoder<'_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.add(value)
    }

    fn end(self) -> Result<(), EncodeError> {
        self.finish();
        Ok(())
    }
}

impl SerializeTuple for SequenceEncoder<'_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.add(value)
    }

    fn end(self) -> Result<(), EncodeError> {
        self.finish();
        Ok(())
    }
}

fn text(value: &str, out: &mut Vec<u8>) {
    varint(value.len() as u128, out);
    out.extend_from_slice(value.as_bytes());
}

/// Encodes a number in groups of seven bits, lowest first. The highest bit is set in all bytes except the last.
fn varint(mut value: u128, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    /// Encodes `value` as a type and expects postcard's encoding of `expected`.
    #[track_caller]
    fn check(value: impl Serialize, type_name: &str, expected: impl Serialize) {
        let mut out = Vec::new();
        encode(&value, &Type::parse(type_name), &mut out).unwrap_or_else(|e| panic!("{type_name}: {e}"));
        assert_eq!(out, postcard::to_stdvec(&expected).unwrap(), "{type_name}");
    }

    #[track_caller]
    fn check_mismatch(value: impl Serialize, type_name: &str, description: &str) {
        let mut out = Vec::new();
        let error = encode(&value, &Type::parse(type_name), &mut out).unwrap_err();
        assert_eq!(error.to_string(), description, "{type_name}");
    }

    #[test]
    fn values_are_encoded_as_the_type_of_the_argument() {
        check(5_u8, "i64", 5_i64);
        check(-5_i32, "i64", -5_i64);
        check(i64::MIN, "i64", i64::MIN);
        check(u64::MAX, "u64", u64::MAX);
        check(200_u64, "u8", 200_u8);
        check(-1_i64, "i8", -1_i8);
        check(300_i64, "u16", 300_u16);
        check(7_i32, "f64", 7.0_f64);
        check(0.5_f32, "f64", 0.5_f64);
        check(0.5_f64, "f32", 0.5_f32);
        check("text", "String", "text");
        check('x', "char", 'x');
        check((), "()", ());
        check(vec![1, 2, 300], "Vec < u64 >", vec![1_u64, 2, 300]);
        check(vec![Some(1), None], "Vec<Option<u32>>", vec![Some(1_u32), None]);
        check(5, "Option<u64>", Some(5_u64));
        check(None::<i32>, "Option<u64>", None::<u64>);
        check((1, "a", vec![true]), "(u16, String, Vec<bool>)", (1_u16, "a", vec![true]));
    }

    #[test]
    fn mismatches_describe_the_value() {
        check_mismatch(-1, "u64", "the number -1");
        check_mismatch(256, "u8", "the number 256");
        check_mismatch(1_u64 << 63, "i64", "the number 9223372036854775808");
        check_mismatch(0.1_f64, "f32", "the number 0.1");
        check_mismatch(1.0_f64, "i64", "the number 1.0");
        check_mismatch((1_i64 << 53) + 1, "f64", "the number 9007199254740993");
        check_mismatch("5", "u64", "the text \"5\"");
        check_mismatch(5, "String", "the number 5");
        check_mismatch(None::<u64>, "u64", "nothing");
        check_mismatch(vec![1], "u64", "a list");
        check_mismatch(vec![1, -1], "Vec<u32>", "the number -1");
        check_mismatch((1, 2), "(u8, u8, u8)", "2 values together");
        check_mismatch((), "bool", "nothing");
    }

    #[derive(Serialize, Deserialize)]
    struct Model {
        weights: Vec<f64>,
        name: Option<String>,
    }

    #[test]
    fn values_for_unknown_types_are_encoded_as_their_own_type() {
        let model = || Model { weights: vec![0.5], name: Some("m".to_owned()) };
        check(model(), "Model", model());
        check(5_i32, "Rounds", 5_i32);
        check(vec![model()], "Vec<Model>", vec![model()]);
        check(Some(model()), "Option<Model>", Some(model()));
        check((1, model()), "(u64, Model)", (1_u64, model()));
        check_mismatch(model(), "f64", "a `Model`");
    }
}
