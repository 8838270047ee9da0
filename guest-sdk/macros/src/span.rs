//! Spans of generated code.

use proc_macro2::Span;
use syn::spanned::Spanned;

/// The span for compiler errors about a type.
pub fn at(node: &impl Spanned) -> Span {
    node.span().resolved_at(Span::call_site())
}
