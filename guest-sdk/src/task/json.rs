//! Values as JSON: arguments of a job's first task from the command line, and its result.
//!
//! JSON has no NaN or infinite numbers, and common readers support integers up to 64 bits. Numbers beyond that are
//! written as strings, so that none becomes `null` or is rounded: `"NaN"`, `"Infinity"`, `"-Infinity"`, and the digits
//! of an integer.

use std::fmt::Display;

use serde::de::DeserializeOwned;
use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// Reads a value. Text such as `12`, `true` or `null` also becomes a string where the type requires a string (for
/// example, a type that wraps a `String`).
pub(super) fn read<V: DeserializeOwned>(text: &str) -> Result<V, String> {
    serde_json::from_str(text).or_else(|e| {
        let is_scalar = !text.trim_start().starts_with(['"', '[', '{']);
        let as_text = || serde_json::from_str(&serde_json::to_string(text).ok()?).ok();
        is_scalar.then(as_text).flatten().ok_or_else(|| e.to_string())
    })
}

/// Writes a value.
pub(super) fn write<V: Serialize>(value: &V) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    value.serialize(Lossless(&mut serde_json::Serializer::new(&mut bytes))).map_err(|e| e.to_string())?;
    Ok(bytes)
}

/// Serializes like `S`, except that numbers without a JSON form become strings, at any depth.
struct Lossless<S>(S);

/// A nested value.
struct Nested<'a, T: ?Sized>(&'a T);

impl<T: Serialize + ?Sized> Serialize for Nested<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Lossless(serializer))
    }
}

/// Returns the name of a number that is not finite.
fn non_finite_name(value: f64) -> Option<&'static str> {
    match value {
        _ if value.is_finite() => None,
        _ if value.is_nan() => Some("NaN"),
        _ if value > 0.0 => Some("Infinity"),
        _ => Some("-Infinity"),
    }
}

macro_rules! forward {
    ($($name:ident($of:ty))*) => {$(
        fn $name(self, value: $of) -> Result<S::Ok, S::Error> {
            self.0.$name(value)
        }
    )*};
}

impl<S: Serializer> Serializer for Lossless<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Lossless<S::SerializeSeq>;
    type SerializeTuple = Lossless<S::SerializeTuple>;
    type SerializeTupleStruct = Lossless<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Lossless<S::SerializeTupleVariant>;
    type SerializeMap = Lossless<S::SerializeMap>;
    type SerializeStruct = Lossless<S::SerializeStruct>;
    type SerializeStructVariant = Lossless<S::SerializeStructVariant>;

    forward! {
        serialize_bool(bool)
        serialize_i8(i8) serialize_i16(i16) serialize_i32(i32) serialize_i64(i64)
        serialize_u8(u8) serialize_u16(u16) serialize_u32(u32) serialize_u64(u64)
        serialize_char(char) serialize_str(&str) serialize_bytes(&[u8])
        serialize_unit_struct(&'static str)
    }

    fn serialize_i128(self, value: i128) -> Result<S::Ok, S::Error> {
        match (i64::try_from(value), u64::try_from(value)) {
            (Ok(value), _) => self.0.serialize_i64(value),
            (_, Ok(value)) => self.0.serialize_u64(value),
            _ => self.0.collect_str(&value),
        }
    }

    fn serialize_u128(self, value: u128) -> Result<S::Ok, S::Error> {
        match u64::try_from(value) {
            Ok(value) => self.0.serialize_u64(value),
            Err(_) => self.0.collect_str(&value),
        }
    }

    fn serialize_f32(self, value: f32) -> Result<S::Ok, S::Error> {
        match non_finite_name(value.into()) {
            Some(name) => self.0.serialize_str(name),
            None => self.0.serialize_f32(value),
        }
    }

    fn serialize_f64(self, value: f64) -> Result<S::Ok, S::Error> {
        match non_finite_name(value) {
            Some(name) => self.0.serialize_str(name),
            None => self.0.serialize_f64(value),
        }
    }

    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.0.serialize_none()
    }

    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.0.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.serialize_some(&Nested(value))
    }

    fn serialize_unit_variant(self, of: &'static str, at: u32, name: &'static str) -> Result<S::Ok, S::Error> {
        self.0.serialize_unit_variant(of, at, name)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, name: &'static str, value: &T) -> Result<S::Ok, S::Error> {
        self.0.serialize_newtype_struct(name, &Nested(value))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        of: &'static str,
        at: u32,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_newtype_variant(of, at, name, &Nested(value))
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        self.0.serialize_seq(len).map(Lossless)
    }

    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, S::Error> {
        self.0.serialize_tuple(len).map(Lossless)
    }

    fn serialize_tuple_struct(self, name: &'static str, len: usize) -> Result<Self::SerializeTupleStruct, S::Error> {
        self.0.serialize_tuple_struct(name, len).map(Lossless)
    }

    fn serialize_tuple_variant(
        self,
        of: &'static str,
        at: u32,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        self.0.serialize_tuple_variant(of, at, name, len).map(Lossless)
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        self.0.serialize_map(len).map(Lossless)
    }

    fn serialize_struct(self, name: &'static str, len: usize) -> Result<Self::SerializeStruct, S::Error> {
        self.0.serialize_struct(name, len).map(Lossless)
    }

    fn serialize_struct_variant(
        self,
        of: &'static str,
        at: u32,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        self.0.serialize_struct_variant(of, at, name, len).map(Lossless)
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.collect_str(value)
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! parts {
    ($($name:ident::$part:ident($($key:ident)?))*) => {$(
        impl<S: $name> $name for Lossless<S> {
            type Ok = S::Ok;
            type Error = S::Error;

            fn $part<T: Serialize + ?Sized>(&mut self, $($key: &'static str,)? value: &T) -> Result<(), S::Error> {
                self.0.$part($($key,)? &Nested(value))
            }

            fn end(self) -> Result<S::Ok, S::Error> {
                self.0.end()
            }
        }
    )*};
}

parts! {
    SerializeSeq::serialize_element()
    SerializeTuple::serialize_element()
    SerializeTupleStruct::serialize_field()
    SerializeTupleVariant::serialize_field()
    SerializeStruct::serialize_field(key)
    SerializeStructVariant::serialize_field(key)
}

impl<S: SerializeMap> SerializeMap for Lossless<S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), S::Error> {
        self.0.serialize_key(&Nested(key))
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.0.serialize_value(&Nested(value))
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.0.end()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Code(String);

    #[derive(Serialize)]
    struct Point {
        x: f64,
        y: Option<f32>,
    }

    #[derive(Serialize)]
    enum Shape {
        Dot,
        Circle(f64),
        Line(f64, f64),
        Box { width: f32 },
    }

    #[track_caller]
    fn written(value: impl Serialize, expected: &str) {
        assert_eq!(write(&value).map(|bytes| String::from_utf8(bytes).unwrap()).as_deref(), Ok(expected));
    }

    #[test]
    fn numbers_that_json_lacks_are_texts_at_any_depth() {
        written(f64::NAN, r#""NaN""#);
        written(f64::INFINITY, r#""Infinity""#);
        written(f64::NEG_INFINITY, r#""-Infinity""#);
        written(f32::NAN, r#""NaN""#);
        written(-0.0, "-0.0");
        written(vec![1.5, f64::NAN], r#"[1.5,"NaN"]"#);
        written((1, f32::NEG_INFINITY), r#"[1,"-Infinity"]"#);
        written(Some(f64::NAN), r#""NaN""#);
        written(Point { x: f64::NAN, y: Some(f32::INFINITY) }, r#"{"x":"NaN","y":"Infinity"}"#);
        written(vec![Point { x: 0.5, y: None }], r#"[{"x":0.5,"y":null}]"#);
        written(BTreeMap::from([("a", vec![f64::NAN])]), r#"{"a":["NaN"]}"#);
        written(Shape::Dot, r#""Dot""#);
        written(Shape::Circle(f64::NAN), r#"{"Circle":"NaN"}"#);
        written(Shape::Line(f64::INFINITY, 1.0), r#"{"Line":["Infinity",1.0]}"#);
        written(Shape::Box { width: f32::NAN }, r#"{"Box":{"width":"NaN"}}"#);
    }

    #[test]
    fn numbers_are_whole() {
        written(f64::MAX, "1.7976931348623157e+308");
        written(f64::from_bits(1), "5e-324");
        written(f32::MAX, "3.4028235e+38");
        written(0.1_f64 + 0.2, "0.30000000000000004");
        written(u64::MAX, "18446744073709551615");
        written(i64::MIN, "-9223372036854775808");
        written(u128::from(u64::MAX), "18446744073709551615");
        written(i128::from(i64::MIN), "-9223372036854775808");
        written(u128::MAX, r#""340282366920938463463374607431768211455""#);
        written(vec![i128::MIN], r#"["-170141183460469231731687303715884105728"]"#);
        written((), "null");
        written("", r#""""#);
        written([0_u8, 255].as_slice(), "[0,255]");
    }

    #[test]
    fn literals_are_read_as_text_where_text_is_expected() {
        for text in ["12345", "true", "null", "1e3", "-1", "1.50"] {
            assert_eq!(read::<Code>(text), Ok(Code(text.to_owned())), "{text}");
        }
        assert_eq!(read::<Code>(r#""12345""#), Ok(Code("12345".to_owned())));
        assert_eq!(read::<Option<Code>>("12345"), Ok(Some(Code("12345".to_owned()))));
        assert_eq!(read::<Option<Code>>("null"), Ok(None));
        assert_eq!(read::<u64>("12345"), Ok(12345));
        assert_eq!(read::<u128>("340282366920938463463374607431768211455"), Ok(u128::MAX));
        assert_eq!(read::<bool>("true"), Ok(true));
        let refused = |e: Result<Vec<String>, String>, words: &str| assert!(e.unwrap_err().contains(words));
        refused(read("[1,2]"), "expected a string");
        refused(read("12345"), "expected a sequence");
        assert!(read::<u64>("-1").unwrap_err().contains("expected u64"));
    }
}
