//! Types, bounds and signatures of rustdoc's JSON as Rust text. The format is unstable, so unknown nodes are printed
//! unchanged.

use std::collections::BTreeMap;

use serde_json::Value;

/// Renders nodes of one crate's JSON.
pub(super) struct Renderer<'a> {
    /// Definition paths of all items that the crate mentions, by id.
    pub(super) paths: &'a BTreeMap<String, Vec<String>>,
}

/// Elements of an array. Empty for anything else.
pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Text of a string. Empty for anything else.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Key and value of an object with one entry, which is how the format writes an enum's variant.
fn variant(value: &Value) -> Option<(&str, &Value)> {
    let (kind, inner) = value.as_object()?.iter().next()?;
    Some((kind, inner))
}

fn join_parts(parts: impl Iterator<Item = String>, separator: &str) -> String {
    parts.collect::<Vec<_>>().join(separator)
}

impl Renderer<'_> {
    /// A type.
    pub(super) fn render_type(&self, value: &Value) -> String {
        let Some((kind, inner)) = variant(value) else {
            return if value == "infer" { "_".to_owned() } else { value.to_string() };
        };
        match kind {
            "resolved_path" => self.path(inner),
            "generic" | "primitive" => text(inner).to_owned(),
            "tuple" => self.tuple(inner),
            "slice" => format!("[{}]", self.render_type(inner)),
            "array" => format!("[{}; {}]", self.render_type(&inner["type"]), text(&inner["len"])),
            "borrowed_ref" => {
                let lifetime = match text(&inner["lifetime"]) {
                    "" => String::new(),
                    name => format!("{name} "),
                };
                let mutable = if inner["is_mutable"] == true { "mut " } else { "" };
                format!("&{lifetime}{mutable}{}", self.render_type(&inner["type"]))
            }
            "raw_pointer" => {
                let mutable = if inner["is_mutable"] == true { "mut" } else { "const" };
                format!("*{mutable} {}", self.render_type(&inner["type"]))
            }
            "impl_trait" => format!("impl {}", self.bounds(inner)),
            "dyn_trait" => {
                let traits = list(&inner["traits"]).map(|bound| self.path(&bound["trait"]));
                let lifetime = inner["lifetime"].as_str().map(str::to_owned);
                format!("dyn {}", join_parts(traits.chain(lifetime), " + "))
            }
            "function_pointer" => format!("fn{}", self.signature(&inner["sig"])),
            "qualified_path" => self.render_qualified(inner),
            _ => value.to_string(),
        }
    }

    fn tuple(&self, value: &Value) -> String {
        let all: Vec<String> = list(value).map(|part| self.render_type(part)).collect();
        match &all[..] {
            [one] => format!("({one},)"),
            all => format!("({})", all.join(", ")),
        }
    }

    fn render_qualified(&self, value: &Value) -> String {
        let name = text(&value["name"]);
        let of = self.render_type(&value["self_type"]);
        match &value["trait"] {
            Value::Null => format!("{of}::{name}"),
            base if text(&base["path"]).is_empty() => format!("{of}::{name}"),
            base => format!("<{of} as {}>::{name}", self.path(base)),
        }
    }

    /// Renders a path with its arguments. Items of this workspace have only their names, because a private module may
    /// move.
    pub(super) fn path(&self, value: &Value) -> String {
        let written = text(&value["path"]);
        let last = written.rsplit("::").next().unwrap_or(written);
        let name = match self.paths.get(&value["id"].to_string()) {
            Some(path) if !path.first().is_some_and(|krate| krate.starts_with("marline")) => {
                path.join("::")
            }
            _ => last.to_owned(),
        };
        name + &self.arguments(&value["args"])
    }

    fn arguments(&self, value: &Value) -> String {
        let Some((kind, inner)) = variant(value) else { return String::new() };
        if kind == "parenthesized" {
            let inputs =
                join_parts(list(&inner["inputs"]).map(|input| self.render_type(input)), ", ");
            return format!("({inputs}){}", self.output(&inner["output"]));
        }
        let plain = list(&inner["args"]).map(|argument| match variant(argument) {
            Some(("lifetime", name)) => text(name).to_owned(),
            Some(("type", of)) => self.render_type(of),
            Some(("const", of)) => text(&of["expr"]).to_owned(),
            _ => "_".to_owned(),
        });
        let constraints = list(&inner["constraints"]).map(|constraint| {
            let name = text(&constraint["name"]);
            match variant(&constraint["binding"]) {
                Some(("equality", term)) => format!("{name} = {}", self.render_type(&term["type"])),
                Some((_, bounds)) => format!("{name}: {}", self.bounds(bounds)),
                None => name.to_owned(),
            }
        });
        match join_parts(plain.chain(constraints), ", ") {
            none if none.is_empty() => none,
            all => format!("<{all}>"),
        }
    }

    /// Renders bounds, joined by plus signs.
    pub(super) fn bounds(&self, value: &Value) -> String {
        let one = |bound: &Value| match variant(bound) {
            Some(("trait_bound", inner)) => {
                let optional = if inner["modifier"] == "maybe" { "?" } else { "" };
                format!("{optional}{}", self.path(&inner["trait"]))
            }
            Some(("outlives", lifetime)) => text(lifetime).to_owned(),
            _ => bound.to_string(),
        };
        join_parts(list(value).map(one), " + ")
    }

    /// Renders generic parameters in angle brackets. Empty without any. `impl Trait` arguments are not parameters.
    pub(super) fn generics(&self, value: &Value) -> String {
        let shown = list(&value["params"]).filter_map(|parameter| {
            let name = text(&parameter["name"]);
            Some(match variant(&parameter["kind"])? {
                ("type", of) if of["is_synthetic"] == true => return None,
                ("type", of) => {
                    let default = match &of["default"] {
                        Value::Null => String::new(),
                        default => format!(" = {}", self.render_type(default)),
                    };
                    match self.bounds(&of["bounds"]) {
                        none if none.is_empty() => format!("{name}{default}"),
                        bounds => format!("{name}: {bounds}{default}"),
                    }
                }
                ("const", of) => format!("const {name}: {}", self.render_type(&of["type"])),
                _ => name.to_owned(),
            })
        });
        match join_parts(shown, ", ") {
            none if none.is_empty() => none,
            all => format!("<{all}>"),
        }
    }

    /// Renders the where clause with a leading space. Empty without one.
    pub(super) fn conditions(&self, value: &Value) -> String {
        let one = |predicate: &Value| match variant(predicate) {
            Some(("bound_predicate", inner)) => {
                format!("{}: {}", self.render_type(&inner["type"]), self.bounds(&inner["bounds"]))
            }
            _ => predicate.to_string(),
        };
        match join_parts(list(&value["where_predicates"]).map(one), ", ") {
            none if none.is_empty() => none,
            all => format!(" where {all}"),
        }
    }

    /// Renders arguments and result. Names of arguments are not part of the interface.
    pub(super) fn signature(&self, value: &Value) -> String {
        let inputs = list(&value["inputs"]).map(|input| match text(&input[0]) {
            "self" => format!("self: {}", self.render_type(&input[1])),
            _ => self.render_type(&input[1]),
        });
        format!("({}){}", join_parts(inputs, ", "), self.output(&value["output"]))
    }

    fn output(&self, value: &Value) -> String {
        match value {
            Value::Null => String::new(),
            output => format!(" -> {}", self.render_type(output)),
        }
    }
}
