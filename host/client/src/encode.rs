//! Encoding of Rust values as the types in a component's task signatures.
//!
//! Postcard's encoding does not carry types: the bytes of a `u64` decode as another number if read as an `i64`. A
//! number is therefore encoded as the type that the task takes, if that type can represent it; a value of another kind
//! is an error. For an unknown type, a value is encoded as its own type.

use std::fmt;

use serde::Serialize;
use serde::ser::{self, Impossible, SerializeSeq, SerializeTuple, Serializer};

use crate::types::Type;

/// Serde name of an object reference. As an argument of its own it is not a value.
pub(crate) const OBJECT: &str = "sandbar.ObjectRef";
/// Serde name of an actor handle, which is a value of its own.
pub(crate) const ACTOR: &str = "sandbar.Actor";

/// Why a value can't be encoded as a type.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// A description of the value, which does not fit.
    Is(String),
    /// The type is unknown: encode the value with postcard.
    AsItIs,
    /// The value is an object reference, so the object's value is the argument.
    IsObject,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Is(what) => f.write_str(what),
            Unfit::AsItIs => f.write_str("a value of a type that is not known"),
            Unfit::IsObject => f.write_str("an object"),
        }
    }
}

impl std::error::Error for Unfit {}

impl ser::Error for Unfit {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Unfit::Is(message.to_string())
    }
}

/// Encodes an argument as a type. Returns [`Unfit::IsObject`] for an object reference.
pub(crate) fn encode_argument<T: Serialize + ?Sized>(value: &T, of: &Type, out: &mut Vec<u8>) -> Result<(), Unfit> {
    write(value, of, out, true)
}

/// Encodes a value as a type.
fn encode<T: Serialize + ?Sized>(value: &T, of: &Type, out: &mut Vec<u8>) -> Result<(), Unfit> {
    write(value, of, out, false)
}

fn write<T: Serialize + ?Sized>(value: &T, of: &Type, out: &mut Vec<u8>, is_whole: bool) -> Result<(), Unfit> {
    match value.serialize(Encoder { of, out, is_whole }) {
        Err(Unfit::AsItIs) => as_it_is(value, out),
        result => result,
    }
}

/// Encodes a value with postcard, as its own type.
fn as_it_is<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<(), Unfit> {
    *out = postcard::to_extend(value, std::mem::take(out)).map_err(|e| Unfit::Is(e.to_string()))?;
    Ok(())
}

struct Encoder<'a> {
    of: &'a Type,
    out: &'a mut Vec<u8>,
    /// Whether the value is an argument, rather than a part of one.
    is_whole: bool,
}

impl<'a> Encoder<'a> {
    /// Returns the type to encode. A plain value fits an option of its type.
    fn of(&mut self) -> Result<&'a Type, Unfit> {
        while let Type::Option(of) = self.of
            && of.is_known()
        {
            self.out.push(1);
            self.of = of;
        }
        match self.of {
            Type::Other => Err(Unfit::AsItIs),
            of => Ok(of),
        }
    }

    fn int(mut self, value: i128) -> Result<(), Unfit> {
        let is = || Unfit::Is(format!("the number {value}"));
        match self.of()? {
            Type::Int(bits, true) => {
                let bound = 1_i128 << (bits - 1);
                if !(-bound..bound).contains(&value) {
                    return Err(is());
                }
                match bits {
                    8 => self.out.push(value as i8 as u8),
                    // Zigzag: small numbers are short, of either sign.
                    _ => varint(((value << 1) ^ (value >> 127)) as u128, self.out),
                }
            }
            Type::Int(bits, false) => {
                if !(0..1 << bits).contains(&value) {
                    return Err(is());
                }
                match bits {
                    8 => self.out.push(value as u8),
                    _ => varint(value as u128, self.out),
                }
            }
            Type::F64 if value as f64 as i128 == value => self.out.extend((value as f64).to_le_bytes()),
            Type::F32 if value as f32 as i128 == value => self.out.extend((value as f32).to_le_bytes()),
            _ => return Err(is()),
        }
        Ok(())
    }

    fn float(mut self, value: f64) -> Result<(), Unfit> {
        match self.of()? {
            Type::F64 => self.out.extend(value.to_le_bytes()),
            Type::F32 if f64::from(value as f32) == value || value.is_nan() => {
                self.out.extend((value as f32).to_le_bytes());
            }
            _ => return Err(Unfit::Is(format!("the number {value:?}"))),
        }
        Ok(())
    }

    fn parts(mut self, count: Option<usize>) -> Result<Parts<'a>, Unfit> {
        let of = match (self.of()?, count) {
            (Type::List(of), None) => Of::Each(of),
            (Type::Tuple(all), Some(count)) if all.len() == count => Of::InTurn(all),
            (_, None) => return Err(Unfit::Is("a list".to_owned())),
            (_, Some(count)) => return Err(Unfit::Is(format!("{count} values together"))),
        };
        Ok(Parts { out: self.out, of, written: Vec::new(), count: 0 })
    }

    /// Returns the error for a value that fits no known type.
    fn is<T>(&self, what: impl Into<String>) -> Result<T, Unfit> {
        Err(if *self.of == Type::Other { Unfit::AsItIs } else { Unfit::Is(what.into()) })
    }
}

impl<'a> Serializer for Encoder<'a> {
    type Ok = ();
    type Error = Unfit;
    type SerializeSeq = Parts<'a>;
    type SerializeTuple = Parts<'a>;
    type SerializeTupleStruct = Impossible<(), Unfit>;
    type SerializeTupleVariant = Impossible<(), Unfit>;
    type SerializeMap = Impossible<(), Unfit>;
    type SerializeStruct = Impossible<(), Unfit>;
    type SerializeStructVariant = Impossible<(), Unfit>;

    fn serialize_bool(mut self, value: bool) -> Result<(), Unfit> {
        match self.of()? {
            Type::Bool => self.out.push(u8::from(value)),
            _ => return Err(Unfit::Is(value.to_string())),
        }
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result<(), Unfit> {
        self.int(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), Unfit> {
        self.int(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), Unfit> {
        self.int(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), Unfit> {
        self.int(value.into())
    }

    fn serialize_u8(self, value: u8) -> Result<(), Unfit> {
        self.int(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result<(), Unfit> {
        self.int(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result<(), Unfit> {
        self.int(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), Unfit> {
        self.int(value.into())
    }

    fn serialize_f32(self, value: f32) -> Result<(), Unfit> {
        self.float(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), Unfit> {
        self.float(value)
    }

    fn serialize_char(mut self, value: char) -> Result<(), Unfit> {
        match self.of()? {
            Type::Char | Type::Text => text(value.encode_utf8(&mut [0; 4]), self.out),
            _ => return Err(Unfit::Is(format!("the character {value:?}"))),
        }
        Ok(())
    }

    fn serialize_str(mut self, value: &str) -> Result<(), Unfit> {
        match self.of()? {
            Type::Text => text(value, self.out),
            _ => return Err(Unfit::Is(format!("the text {:?}", value.chars().take(40).collect::<String>()))),
        }
        Ok(())
    }

    fn serialize_bytes(mut self, value: &[u8]) -> Result<(), Unfit> {
        match self.of()? {
            Type::List(of) if **of == Type::Int(8, false) => {
                varint(value.len() as u128, self.out);
                self.out.extend_from_slice(value);
            }
            _ => return Err(Unfit::Is(format!("{} bytes", value.len()))),
        }
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Unfit> {
        match self.of {
            Type::Option(_) => self.out.push(0),
            _ => return self.is("nothing"),
        }
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Unfit> {
        match self.of {
            Type::Option(of) => {
                self.out.push(1);
                encode(value, of, self.out)
            }
            _ => self.is("an option"),
        }
    }

    fn serialize_unit(mut self) -> Result<(), Unfit> {
        match self.of()? {
            Type::Unit => Ok(()),
            _ => Err(Unfit::Is("nothing".to_owned())),
        }
    }

    fn serialize_unit_struct(self, name: &'static str) -> Result<(), Unfit> {
        self.is(format!("a `{name}`"))
    }

    fn serialize_unit_variant(self, name: &'static str, _: u32, _: &'static str) -> Result<(), Unfit> {
        self.is(format!("a `{name}`"))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Result<(), Unfit> {
        match (name, self.of) {
            (OBJECT, _) if self.is_whole => Err(Unfit::IsObject),
            (_, Type::Other) => Err(Unfit::AsItIs),
            (OBJECT, _) => Err(Unfit::Is("an object within a value".to_owned())),
            (ACTOR, _) => Err(Unfit::Is("an actor".to_owned())),
            _ => value.serialize(self),
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        _: u32,
        _: &'static str,
        _: &T,
    ) -> Result<(), Unfit> {
        self.is(format!("a `{name}`"))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Parts<'a>, Unfit> {
        self.parts(None)
    }

    fn serialize_tuple(self, len: usize) -> Result<Parts<'a>, Unfit> {
        self.parts(Some(len))
    }

    fn serialize_tuple_struct(self, name: &'static str, _: usize) -> Result<Impossible<(), Unfit>, Unfit> {
        self.is(format!("a `{name}`"))
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Impossible<(), Unfit>, Unfit> {
        self.is(format!("a `{name}`"))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Impossible<(), Unfit>, Unfit> {
        self.is("a map")
    }

    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Impossible<(), Unfit>, Unfit> {
        self.is(format!("a `{name}`"))
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Impossible<(), Unfit>, Unfit> {
        self.is(format!("a `{name}`"))
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

enum Of<'a> {
    Each(&'a Type),
    InTurn(&'a [Type]),
}

/// Encodes the elements of a list or a tuple.
struct Parts<'a> {
    out: &'a mut Vec<u8>,
    of: Of<'a>,
    written: Vec<u8>,
    count: usize,
}

impl Parts<'_> {
    fn part<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unfit> {
        let of = match self.of {
            Of::Each(of) => of,
            Of::InTurn(all) => all.get(self.count).unwrap_or(&Type::Other),
        };
        self.count += 1;
        encode(value, of, &mut self.written)
    }

    fn whole(self) {
        if let Of::Each(_) = self.of {
            varint(self.count as u128, self.out);
        }
        self.out.extend(self.written);
    }
}

impl SerializeSeq for Parts<'_> {
    type Ok = ();
    type Error = Unfit;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unfit> {
        self.part(value)
    }

    fn end(self) -> Result<(), Unfit> {
        self.whole();
        Ok(())
    }
}

impl SerializeTuple for Parts<'_> {
    type Ok = ();
    type Error = Unfit;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unfit> {
        self.part(value)
    }

    fn end(self) -> Result<(), Unfit> {
        self.whole();
        Ok(())
    }
}

fn text(value: &str, out: &mut Vec<u8>) {
    varint(value.len() as u128, out);
    out.extend_from_slice(value.as_bytes());
}

/// Encodes a number in groups of seven bits, the lowest first; the highest bit of each byte but the last is set.
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

    /// Encodes `value` as a type and expects postcard's encoding of `as_that`.
    #[track_caller]
    fn check(value: impl Serialize, of: &str, as_that: impl Serialize) {
        let mut out = Vec::new();
        encode(&value, &Type::parse(of), &mut out).unwrap_or_else(|e| panic!("{of}: {e}"));
        assert_eq!(out, postcard::to_stdvec(&as_that).unwrap(), "{of}");
    }

    #[track_caller]
    fn check_unfit(value: impl Serialize, of: &str, is: &str) {
        let mut out = Vec::new();
        let unfit = encode(&value, &Type::parse(of), &mut out).unwrap_err();
        assert_eq!(unfit.to_string(), is, "{of}");
    }

    #[test]
    fn values_are_written_as_what_they_are_for() {
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
    fn what_does_not_fit_is_named() {
        check_unfit(-1, "u64", "the number -1");
        check_unfit(256, "u8", "the number 256");
        check_unfit(1_u64 << 63, "i64", "the number 9223372036854775808");
        check_unfit(0.1_f64, "f32", "the number 0.1");
        check_unfit(1.0_f64, "i64", "the number 1.0");
        check_unfit((1_i64 << 53) + 1, "f64", "the number 9007199254740993");
        check_unfit("5", "u64", "the text \"5\"");
        check_unfit(5, "String", "the number 5");
        check_unfit(None::<u64>, "u64", "nothing");
        check_unfit(vec![1], "u64", "a list");
        check_unfit(vec![1, -1], "Vec<u32>", "the number -1");
        check_unfit((1, 2), "(u8, u8, u8)", "2 values together");
        check_unfit((), "bool", "nothing");
    }

    #[derive(Serialize, Deserialize)]
    struct Model {
        weights: Vec<f64>,
        name: Option<String>,
    }

    #[test]
    fn what_only_the_component_knows_is_written_as_it_is() {
        let model = || Model { weights: vec![0.5], name: Some("m".to_owned()) };
        check(model(), "Model", model());
        check(5_i32, "Rounds", 5_i32);
        check(vec![model()], "Vec<Model>", vec![model()]);
        check(Some(model()), "Option<Model>", Some(model()));
        check((1, model()), "(u64, Model)", (1_u64, model()));
        check_unfit(model(), "f64", "a `Model`");
    }
}
