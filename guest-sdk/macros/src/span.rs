//! Spans of generated code.

use proc_macro2::Span;
use syn::spanned::Spanned;

/// The span for compiler errors about a type.
pub fn at(of: &impl Spanned) -> Span {
    of.span().resolved_at(Span::call_site())
}
