//! Check of parameters: no function takes a tuple, because a call does not show the meaning of its parts.
//!
//! A struct or separate parameters name them. Slices and iterators of tuples are allowed, and so are methods
//! of a trait's implementation: the trait's declaration is checked if it is in this repository.

use syn::visit::{self, Visit};
use syn::{Attribute, FnArg, ImplItem, ItemFn, ItemImpl, Signature, TraitItemFn, Type};

/// Every function of a file that takes a tuple, with the remedy.
pub(crate) fn tuples(text: &str) -> Result<Vec<String>, String> {
    let file = syn::parse_file(text).map_err(|error| error.to_string())?;
    let mut visitor = TupleVisitor(Vec::new());
    visitor.visit_file(&file);
    Ok(visitor.0)
}

/// Visitor that collects findings in all functions.
struct TupleVisitor(Vec<String>);

impl TupleVisitor {
    fn check(&mut self, attributes: &[Attribute], signature: &Signature) {
        let takes_tuple = signature.inputs.iter().any(|input| match input {
            FnArg::Typed(typed) => is_tuple(&typed.ty),
            FnArg::Receiver(_) => false,
        });
        if takes_tuple && !is_python(attributes) {
            let name = &signature.ident;
            self.0.push(format!("fn {name} takes a tuple: use a struct, or separate parameters"));
        }
    }
}

impl<'a> Visit<'a> for TupleVisitor {
    fn visit_item_fn(&mut self, function: &'a ItemFn) {
        self.check(&function.attrs, &function.sig);
        visit::visit_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'a TraitItemFn) {
        self.check(&function.attrs, &function.sig);
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_item_impl(&mut self, of: &'a ItemImpl) {
        if of.trait_.is_none() && !is_python(&of.attrs) {
            for item in &of.items {
                if let ImplItem::Fn(function) = item {
                    self.check(&function.attrs, &function.sig);
                }
            }
        }
        visit::visit_item_impl(self, of);
    }
}

/// Returns true for a tuple of two or more, and for a reference to one.
fn is_tuple(of: &Type) -> bool {
    match of {
        Type::Tuple(tuple) => tuple.elems.len() > 1,
        Type::Reference(reference) => is_tuple(&reference.elem),
        Type::Paren(inner) => is_tuple(&inner.elem),
        _ => false,
    }
}

/// Returns true if pyo3 calls the function, because Python tuples arrive as tuples.
fn is_python(attributes: &[Attribute]) -> bool {
    let first =
        |attribute: &Attribute| attribute.path().segments.first().map(|s| s.ident.to_string());
    attributes.iter().filter_map(first).any(|name| name.starts_with("py"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let found = tuples(text).expect("Rust");
        found.iter().filter_map(|message| message.split(' ').nth(1)).map(str::to_owned).collect()
    }

    #[test]
    fn a_tuple_is_found_in_every_kind_of_function() {
        assert_eq!(found("fn a((x, y): (u8, u8)) {} fn b(p: &(u8, u8), q: u8) {}"), ["a", "b"]);
        assert_eq!(found("fn a(q: u8, p: &mut (u8, u8)) {} fn b(p: &&(u8, u8)) {}"), ["a", "b"]);
        assert_eq!(found("impl A { fn a(&self, p: (u8, u8)) {} }"), ["a"]);
        assert_eq!(found("trait T { fn a(&self, p: (u8, u8)); }"), ["a"]);
        let nested = "mod m { impl T for A { fn a() { fn b(p: (u8, u8)) {} } } }";
        assert_eq!(found(nested), ["b"]);
    }

    #[test]
    fn collections_closures_and_foreign_signatures_are_allowed() {
        let allowed = "fn a(p: &[(u8, u8)], q: Vec<(u8, u8)>, r: Option<(u8, u8)>, s: ()) {} \
            fn b(p: impl Iterator<Item = (u8, u8)>) { p.map(|(x, y): (u8, u8)| x + y); } \
            fn c() -> (u8, u8) { (1, 2) } impl T for A { fn d(&self, p: (u8, u8)) {} } \
            #[pyfunction] fn e(p: (u8, u8)) {} #[pymethods] impl A { fn f(p: (u8, u8)) {} }";
        assert_eq!(found(allowed), [""; 0]);
        assert!(tuples("fn").is_err());
    }
}
