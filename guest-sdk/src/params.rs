//! Function parameters: parsing them from JSON, and describing them from the requests of their type to a deserializer.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess};
use serde::de::{VariantAccess, Visitor};
use serde::{Deserialize, Serialize};

pub use crate::bindings::parameters::Parameter;

/// Parses the parameters of a call.
pub(crate) fn parse<P: DeserializeOwned>(params: &str) -> Result<P, String> {
    serde_json::from_str(params).map_err(|e| format!("invalid parameters: {e}"))
}

/// Parameters of a function that takes none: only `{}` parses.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParams {}

/// Describes parameters of type `P`. The attributes call `(&&Describe::<P>::NEW).parameters()`. Method resolution picks
/// [`WithDefaults`] where `P` implements `Serialize`, otherwise [`WithoutDefaults`], otherwise [`NoDescription`] for a
/// type that can't be parameters (the compiler reports that elsewhere).
pub struct Describe<P>(PhantomData<P>);

impl<P> Describe<P> {
    /// The only value.
    pub const NEW: Self = Describe(PhantomData);
}

/// Describes parameters whose defaults can be shown.
pub trait WithDefaults {
    /// Returns the descriptions.
    fn parameters(&self) -> Vec<Parameter>;
}

/// Describes parameters that can't be serialised.
pub trait WithoutDefaults {
    /// Returns the descriptions.
    fn parameters(&self) -> Vec<Parameter>;
}

/// Fallback for other types.
pub trait NoDescription {
    /// Returns no descriptions.
    fn parameters(&self) -> Vec<Parameter> {
        Vec::new()
    }
}

impl<P> NoDescription for Describe<P> {}

impl<P: DeserializeOwned + Serialize> WithDefaults for &Describe<P> {
    fn parameters(&self) -> Vec<Parameter> {
        describe::<P>(&|params| serde_json::to_value(params).unwrap_or_default())
    }
}

impl<P: DeserializeOwned> WithoutDefaults for &&Describe<P> {
    fn parameters(&self) -> Vec<Parameter> {
        describe::<P>(&|_| serde_json::Value::Null)
    }
}

fn describe<P: DeserializeOwned>(shown: &dyn Fn(&P) -> serde_json::Value) -> Vec<Parameter> {
    let recorder = TypeRecorder::default();
    let _ = P::deserialize(Probe::Record(&recorder));
    let fields = recorder.into_inner().fields;
    let type_of = |field| {
        let recorder = TypeRecorder::default();
        let _ = P::deserialize(Probe::Field(field, &recorder));
        recorder.into_inner().name
    };
    // Each attempt reports the first missing field, until no field is missing.
    let (mut required, mut minimal) = (Vec::new(), None);
    while required.len() <= fields.len() && minimal.is_none() {
        match P::deserialize(Probe::Fields(&required)) {
            Ok(params) => minimal = Some(shown(&params)),
            Err(ProbeError::Missing(field)) if fields.contains(&field) && !required.contains(&field) => {
                required.push(field)
            }
            Err(_) => break,
        }
    }
    let parameter = |field: &&'static str| {
        let required = required.contains(field);
        let default = minimal.as_ref().and_then(|params| params.get(*field)).filter(|_| !required);
        let default = default.map(serde_json::Value::to_string).unwrap_or_default();
        Parameter { name: (*field).to_owned(), type_: type_of(field), default, required }
    };
    fields.iter().map(parameter).collect()
}

/// The request of a type: its display name, and its fields.
#[derive(Debug, Default)]
struct TypeInfo {
    name: String,
    fields: &'static [&'static str],
}

type TypeRecorder = RefCell<TypeInfo>;

/// A deserializer that determines the kind of a type.
#[derive(Clone, Copy)]
enum Probe<'a> {
    /// Records the request, and returns no value.
    Record(&'a TypeRecorder),
    /// Provides a struct with this one field, and records the field's request.
    Field(&'static str, &'a TypeRecorder),
    /// Provides a struct with these fields and minimal values.
    Fields(&'a [&'static str]),
    /// Provides the minimal value of each type: false, zero, an empty string or list, none.
    Minimal,
}

impl<'a> Probe<'a> {
    /// The cell that records a request for a value; none for probes that provide a value.
    fn recorder(self) -> Option<&'a TypeRecorder> {
        match self {
            Probe::Record(recorder) | Probe::Field(_, recorder) => Some(recorder),
            Probe::Fields(_) | Probe::Minimal => None,
        }
    }
}

fn record<T>(recorder: &TypeRecorder, name: impl Into<String>) -> Result<T, ProbeError> {
    recorder.borrow_mut().name = name.into();
    Err(ProbeError::Other)
}

/// The reason for a missing value.
#[derive(Debug)]
enum ProbeError {
    /// The struct requires this field.
    Missing(&'static str),
    Other,
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the probe has no value")
    }
}

impl std::error::Error for ProbeError {}

impl de::Error for ProbeError {
    fn custom<T: fmt::Display>(_: T) -> ProbeError {
        ProbeError::Other
    }

    fn missing_field(field: &'static str) -> ProbeError {
        ProbeError::Missing(field)
    }
}

/// Deserializer methods for values without parts.
macro_rules! plain {
    ($($method:ident => $name:literal, $visit:ident($($value:expr)?);)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
            match self.recorder() {
                Some(recorder) => record(recorder, $name),
                None => visitor.$visit($($value)?),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = ProbeError;

    plain! {
        deserialize_any => "any", visit_unit();
        deserialize_bool => "bool", visit_bool(false);
        deserialize_i8 => "i8", visit_i8(0);
        deserialize_i16 => "i16", visit_i16(0);
        deserialize_i32 => "i32", visit_i32(0);
        deserialize_i64 => "i64", visit_i64(0);
        deserialize_i128 => "i128", visit_i128(0);
        deserialize_u8 => "u8", visit_u8(0);
        deserialize_u16 => "u16", visit_u16(0);
        deserialize_u32 => "u32", visit_u32(0);
        deserialize_u64 => "u64", visit_u64(0);
        deserialize_u128 => "u128", visit_u128(0);
        deserialize_f32 => "f32", visit_f32(0.0);
        deserialize_f64 => "f64", visit_f64(0.0);
        deserialize_char => "text", visit_char('a');
        deserialize_str => "text", visit_str("");
        deserialize_string => "text", visit_str("");
        deserialize_bytes => "list of u8", visit_bytes(&[]);
        deserialize_byte_buf => "list of u8", visit_bytes(&[]);
        deserialize_unit => "null", visit_unit();
        deserialize_identifier => "text", visit_str("");
        deserialize_ignored_any => "any", visit_unit();
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        let Some(recorder) = self.recorder() else { return visitor.visit_none() };
        let _ = visitor.visit_some(Probe::Record(recorder));
        let name = format!("{} or null", recorder.borrow().name);
        record(recorder, name)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, ProbeError> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, ProbeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        let Some(recorder) = self.recorder() else { return visitor.visit_seq(RepeatedItems(Probe::Minimal, 0)) };
        let _ = visitor.visit_seq(RepeatedItems(Probe::Record(recorder), 1));
        let name = format!("list of {}", recorder.borrow().name);
        record(recorder, name)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, ProbeError> {
        match self.recorder() {
            Some(recorder) => record(recorder, format!("list of {len}")),
            None => visitor.visit_seq(RepeatedItems(Probe::Minimal, len)),
        }
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ProbeError> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        match self.recorder() {
            Some(recorder) => record(recorder, "object"),
            None => visitor.visit_map(Entries { fields: &[], value: Probe::Minimal }),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProbeError> {
        match self {
            Probe::Record(recorder) => {
                recorder.borrow_mut().fields = fields;
                record(recorder, "object")
            }
            Probe::Field(field, recorder) => {
                visitor.visit_map(Entries { fields: &[field], value: Probe::Record(recorder) })
            }
            Probe::Fields(fields) => visitor.visit_map(Entries { fields, value: Probe::Minimal }),
            Probe::Minimal => visitor.visit_map(Entries { fields, value: Probe::Minimal }),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProbeError> {
        match self.recorder() {
            Some(recorder) => {
                let quoted: Vec<_> = variants.iter().map(|variant| format!("\"{variant}\"")).collect();
                record(recorder, quoted.join(" | "))
            }
            None => visitor.visit_enum(Variant(variants.first().ok_or(ProbeError::Other)?)),
        }
    }
}

/// The fields of a struct, each with the same value.
struct Entries<'a> {
    fields: &'a [&'static str],
    value: Probe<'a>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = ProbeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ProbeError> {
        let Some((first, others)) = self.fields.split_first() else { return Ok(None) };
        self.fields = others;
        seed.deserialize(StrDeserializer::new(first)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ProbeError> {
        seed.deserialize(self.value)
    }
}

/// A list that repeats a value.
struct RepeatedItems<'a>(Probe<'a>, usize);

impl<'de> SeqAccess<'de> for RepeatedItems<'_> {
    type Error = ProbeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, ProbeError> {
        if self.1 == 0 {
            return Ok(None);
        }
        self.1 -= 1;
        seed.deserialize(self.0).map(Some)
    }
}

/// A variant of an enum, without fields.
struct Variant(&'static str);

impl<'de> EnumAccess<'de> for Variant {
    type Error = ProbeError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), ProbeError> {
        Ok((seed.deserialize(StrDeserializer::new(self.0))?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant {
    type Error = ProbeError;

    fn unit_variant(self) -> Result<(), ProbeError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, ProbeError> {
        Err(ProbeError::Other)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, ProbeError> {
        Err(ProbeError::Other)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], _: V) -> Result<V::Value, ProbeError> {
        Err(ProbeError::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Deserialize, Serialize)]
    #[serde(rename_all = "kebab-case")]
    enum Splitter {
        BestOfAll,
        Random,
    }

    #[derive(Deserialize, Serialize)]
    #[serde(default, deny_unknown_fields)]
    struct Tree {
        depth: Option<u32>,
        splitter: Splitter,
        #[serde(rename = "rate")]
        renamed: f64,
        weights: Vec<f32>,
    }

    impl Default for Tree {
        fn default() -> Tree {
            Tree { depth: None, splitter: Splitter::Random, renamed: 0.5, weights: vec![1.0, 2.5] }
        }
    }

    #[derive(Deserialize)]
    struct Mixed {
        name: String,
        #[serde(default)]
        is_wide: bool,
        pair: (u8, f64),
        nested: Nested,
        perhaps: Option<i64>,
        splitter: Splitter,
    }

    #[derive(Deserialize)]
    struct Nested {
        inner: u64,
    }

    #[derive(Deserialize, Serialize)]
    struct Shrink {
        prior: f64,
        #[serde(default = "seven")]
        rows: usize,
    }

    fn seven() -> usize {
        7
    }

    /// Compares parameters in the form `name: type = default, required`.
    #[track_caller]
    fn check(parameters: Vec<Parameter>, expected: &[&str]) {
        let written = parameters.into_iter().map(|parameter| {
            let Parameter { name, type_, default, required } = parameter;
            let default = if default.is_empty() { default } else { format!(" = {default}") };
            format!("{name}: {type_}{default}{}", if required { ", required" } else { "" })
        });
        assert_eq!(written.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn parameters_are_described() {
        check(
            (&&Describe::<Tree>::NEW).parameters(),
            &[
                "depth: u32 or null = null",
                "splitter: \"best-of-all\" | \"random\" = \"random\"",
                "rate: f64 = 0.5",
                "weights: list of f32 = [1.0,2.5]",
            ],
        );
        check((&&Describe::<Shrink>::NEW).parameters(), &["prior: f64, required", "rows: u64 = 7"]);
        check(
            (&&Describe::<Mixed>::NEW).parameters(),
            &[
                "name: text, required",
                "is_wide: bool",
                "pair: list of 2, required",
                "nested: object, required",
                "perhaps: i64 or null",
                "splitter: \"best-of-all\" | \"random\", required",
            ],
        );
        check((&&Describe::<NoParams>::NEW).parameters(), &[]);
        check((&&Describe::<std::collections::HashMap<String, f64>>::NEW).parameters(), &[]);
        check((&&Describe::<serde_json::Value>::NEW).parameters(), &[]);
    }

    #[test]
    fn described_parameters_can_be_parsed() {
        let Mixed { name, is_wide, pair, nested, perhaps, splitter } =
            parse(r#"{"name": "a", "pair": [1, 2.0], "nested": {"inner": 3}, "splitter": "random"}"#).unwrap();
        assert_eq!((name.as_str(), is_wide, pair, nested.inner, perhaps), ("a", false, (1, 2.0), 3, None));
        assert!(matches!(splitter, Splitter::Random));
        let Err(error) = parse::<NoParams>(r#"{"x": 1}"#) else { panic!("it takes none") };
        assert!(error.starts_with("invalid parameters"), "{error}");
    }
}
