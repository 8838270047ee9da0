//! Types in a component's task signatures that the client knows.

/// Maximum nesting of types; no real signature is deeper.
const DEPTH_MAX: u32 = 32;

/// A type, identified by the encoding of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Type {
    Unit,
    Bool,
    /// Number of bits, and whether it is signed.
    Int(u32, bool),
    F32,
    F64,
    Char,
    Text,
    Option(Box<Type>),
    List(Box<Type>),
    Tuple(Vec<Type>),
    /// A type that only the component knows.
    Other,
}

impl Type {
    /// Parses any text as a type in Rust's syntax, with or without paths and spaces.
    pub(crate) fn parse(text: &str) -> Type {
        let compact: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        parse(&compact, 0)
    }

    /// Returns whether the type and all types in it are known.
    pub(crate) fn is_known(&self) -> bool {
        match self {
            Type::Other => false,
            Type::Option(inner) | Type::List(inner) => inner.is_known(),
            Type::Tuple(all) => all.iter().all(Type::is_known),
            _ => true,
        }
    }

    /// Returns whether both types are known and differ, so that the encoding of one can't be decoded as the other.
    pub(crate) fn contradicts(&self, other: &Type) -> bool {
        self.is_known() && other.is_known() && self != other
    }
}

fn parse(text: &str, depth: u32) -> Type {
    if depth > DEPTH_MAX {
        return Type::Other;
    }
    if let Some(inner) = text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        let all: Vec<Type> = arguments(inner).map(|part| parse(part, depth + 1)).collect();
        return if all.is_empty() { Type::Unit } else { Type::Tuple(all) };
    }
    let (path, inner) = match text.split_once('<') {
        Some((path, rest)) => (path, rest.strip_suffix('>')),
        None => (text, None),
    };
    let name = path.rsplit("::").next().unwrap_or(path);
    let mut inner = inner.into_iter().flat_map(arguments);
    match (name, inner.next(), inner.next()) {
        ("Vec", Some(element), None) => Type::List(Box::new(parse(element, depth + 1))),
        ("Option", Some(value), None) => Type::Option(Box::new(parse(value, depth + 1))),
        (name, None, None) => named(name),
        _ => Type::Other,
    }
}

fn named(name: &str) -> Type {
    match name {
        "bool" => Type::Bool,
        "char" => Type::Char,
        "f32" => Type::F32,
        "f64" => Type::F64,
        "String" | "&str" => Type::Text,
        // Integers of the word size are encoded as 64 bits.
        "usize" => Type::Int(64, false),
        "isize" => Type::Int(64, true),
        _ => {
            let int = |prefix, signed| {
                let bits = name.strip_prefix(prefix)?.parse::<u32>().ok()?;
                matches!(bits, 8 | 16 | 32 | 64).then_some(Type::Int(bits, signed))
            };
            int('u', false).or_else(|| int('i', true)).unwrap_or(Type::Other)
        }
    }
}

/// Splits at commas outside of brackets.
fn arguments(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    let parts = text.split(move |c| {
        match c {
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    // A trailing comma is allowed.
    parts.filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_parsed() {
        let list = |element| Type::List(Box::new(element));
        let option = |value| Type::Option(Box::new(value));
        for (text, expected) in [
            ("()", Type::Unit),
            ("bool", Type::Bool),
            ("u8", Type::Int(8, false)),
            ("isize", Type::Int(64, true)),
            ("Vec < f64 >", list(Type::F64)),
            ("alloc::vec::Vec<core::option::Option<alloc::string::String>>", list(option(Type::Text))),
            (
                "(i64 , Vec < (u32 , char) > ,)",
                Type::Tuple(vec![Type::Int(64, true), list(Type::Tuple(vec![Type::Int(32, false), Type::Char]))]),
            ),
            ("Shared", Type::Other),
            ("u7", Type::Other),
            ("HashMap < String , f64 >", Type::Other),
            ("Vec < ObjectRef < i64 > >", list(Type::Other)),
            ("[f64 ; 3]", Type::Other),
            ("& str", Type::Text),
            ("Vec<", Type::Other),
            ("(((", Type::Other),
            ("", Type::Other),
        ] {
            assert_eq!(Type::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn deeply_nested_types_are_unknown() {
        let deep = format!("{}u8{}", "Vec<".repeat(100_000), ">".repeat(100_000));
        assert!(!Type::parse(&deep).is_known());
    }

    #[test]
    fn only_known_types_contradict() {
        for (one, other, expected) in [
            ("u64", "i64", true),
            ("usize", "u64", false),
            ("Vec<u8>", "std::vec::Vec<u8>", false),
            ("Vec<Model>", "Vec<u8>", false),
            ("Option<f64>", "f64", true),
        ] {
            assert_eq!(Type::parse(one).contradicts(&Type::parse(other)), expected, "{one} {other}");
        }
    }
}
