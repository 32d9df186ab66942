//! List of the JSON keys and exit codes that scripts rely on (docs/reference/names.txt), read from the source.
//!
//! Configuration keys, options and metrics have separate pages, which tests of `marline-cli` compare.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use syn::{Attribute, Expr, Field, Item, ItemConst, ItemEnum, ItemStruct, Lit};

use crate::TaskResult;

const PAGE: &str = "docs/reference/names.txt";
const HEAD: &str = "JSON keys, words and exit codes, written by `cargo xtask reference`.\n";

/// Files with the types and `json!` values that a command or a socket prints.
const SOURCES: [(&str, &[&str]); 4] = [
    (
        "Control socket and `monitor --json`",
        &[
            "crates/marline-cli/src/control/protocol.rs",
            "crates/marline-cli/src/control/protocol/reports.rs",
            "crates/marline-cli/src/memory.rs",
            "crates/marline/src/path_table/change.rs",
        ],
    ),
    (
        "Other commands with --json",
        &[
            "crates/marline-cli/src/cmd/status.rs",
            "crates/marline-cli/src/doctor.rs",
            "crates/marline-cli/src/cmd/doctor.rs",
            "crates/marline-cli/src/cmd/server/listing.rs",
            "crates/marline-cli/src/cmd/policies.rs",
            "crates/marline-cli/src/cmd/demo.rs",
            "crates/marline-cli/src/demo/outcome.rs",
        ],
    ),
    ("Dashboard", &["crates/marline-dashboard/src/model.rs"]),
    (
        "Exit codes besides 0 and 1",
        &["crates/marline-cli/src/lib.rs", "crates/marline-cli/src/cmd/status.rs"],
    ),
];

/// Writes the page.
pub(crate) fn write(root: &Path) -> TaskResult {
    let page = page(root)?;
    fs::write(root.join(PAGE), page).map_err(|error| format!("{PAGE}: {error}"))
}

/// Compares the page with the source.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let found = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    match page(root) {
        Ok(wanted) if wanted == found => Vec::new(),
        Ok(_) => vec![format!(
            "{PAGE}: differs; run `cargo xtask reference`, and list renames in CHANGELOG.md"
        )],
        Err(error) => vec![error],
    }
}

fn page(root: &Path) -> Result<String, String> {
    let mut page = HEAD.to_owned();
    for (title, files) in SOURCES {
        let _ = write!(page, "\n{title}\n");
        for file in files {
            let text =
                fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))?;
            let lines =
                if title.starts_with("Exit") { list_exit_codes(&text) } else { keys(&text) };
            page += &lines.map_err(|error| format!("{file}: {error}"))?;
        }
    }
    Ok(page)
}

/// Lists each serialized type on a line, and the keys of `json!` values on another.
fn keys(text: &str) -> Result<String, String> {
    let mut lines = String::new();
    for item in syn::parse_file(text).map_err(|error| error.to_string())?.items {
        let (name, names) = match &item {
            Item::Struct(of) if is_serialized(&of.attrs) => (&of.ident, list_struct_keys(of)),
            Item::Enum(of) if is_serialized(&of.attrs) => (&of.ident, list_enum_names(of)),
            _ => continue,
        };
        let _ = writeln!(lines, "  {name}: {}", names.join(" "));
    }
    let literal = list_literal_keys(text);
    if !literal.is_empty() {
        let _ = writeln!(lines, "  {}", literal.join(" "));
    }
    Ok(lines)
}

fn list_struct_keys(of: &ItemStruct) -> Vec<String> {
    let is_flat = |field: &Field| serde_text(&field.attrs).contains("flatten");
    let key = |field: &Field| {
        let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
        serde_value(&field.attrs, "rename").unwrap_or(name)
    };
    of.fields.iter().filter(|field| !is_flat(field)).map(key).collect()
}

/// Names of the variants, with the keys of their fields in parentheses.
fn list_enum_names(of: &ItemEnum) -> Vec<String> {
    let is_kebab = serde_text(&of.attrs).contains("kebab-case");
    let word = |variant: &syn::Variant| {
        let name = variant.ident.to_string();
        let name = if is_kebab { to_kebab_case(&name) } else { name };
        let fields: Vec<String> = variant
            .fields
            .iter()
            .filter_map(|field| Some(field.ident.as_ref()?.to_string()))
            .collect();
        if fields.is_empty() { name } else { format!("{name}({})", fields.join(" ")) }
    };
    of.variants.iter().map(word).collect()
}

fn to_kebab_case(name: &str) -> String {
    let mut kebab = String::new();
    for (at, letter) in name.char_indices() {
        if letter.is_uppercase() && at > 0 {
            kebab.push('-');
        }
        kebab.extend(letter.to_lowercase());
    }
    kebab
}

/// Keys of the `json!` values outside tests: strings before a colon.
fn list_literal_keys(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut keys = Vec::new();
    let mut pieces = code.split('"').peekable();
    // Pieces alternate between code and the contents of strings.
    while let (Some(_), Some(name)) = (pieces.next(), pieces.next()) {
        let is_key = pieces.peek().is_some_and(|next| next.starts_with(": "));
        if is_key && code.contains("json!") && name.chars().all(|c| c == '_' || c.is_alphanumeric())
        {
            keys.push(name.to_owned());
        }
    }
    keys
}

/// Lists each constant that becomes an exit code.
fn list_exit_codes(text: &str) -> Result<String, String> {
    let mut lines = String::new();
    for item in syn::parse_file(text).map_err(|error| error.to_string())?.items {
        let Item::Const(ItemConst { ident, expr, .. }) = item else { continue };
        if let Expr::Lit(literal) = &*expr
            && let Lit::Int(code) = &literal.lit
            && text.contains(&format!("ExitCode::from({ident})"))
        {
            let _ = writeln!(lines, "  {ident} {code}");
        }
    }
    Ok(lines)
}

fn is_serialized(attributes: &[Attribute]) -> bool {
    attributes_text(attributes, &["derive", "cfg_attr"]).contains("Serialize")
}

/// Text of the attributes with one of these names.
fn attributes_text(attributes: &[Attribute], names: &[&str]) -> String {
    let named = attributes
        .iter()
        .filter(|attribute| names.iter().any(|name| attribute.path().is_ident(name)));
    let lists = named.filter_map(|attribute| attribute.meta.require_list().ok());
    lists.map(|list| list.tokens.to_string()).collect::<Vec<_>>().join(" ")
}

fn serde_text(attributes: &[Attribute]) -> String {
    attributes_text(attributes, &["serde", "cfg_attr"])
}

/// Value of a serde attribute: `rename = "value"`.
fn serde_value(attributes: &[Attribute], name: &str) -> Option<String> {
    let text = serde_text(attributes);
    let (_, value) = text.split_once(&format!("{name} = \""))?;
    Some(value.split('"').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_match_serde() {
        let text = "#[derive(Serialize)] struct A { x_us: u64, #[serde(rename = \"verdict\")] y: \
            u8,\n\
                    #[serde(flatten)] z: B }\nstruct Private { q: u8 }\n\
                    #[derive(Serialize)] #[serde(rename_all = \"kebab-case\")] enum E { OneWord, \
                    Two { a: u8 } }";
        assert_eq!(keys(text).unwrap(), "  A: x_us verdict\n  E: one-word two(a)\n");
        let text = "fn f() { json!({\"p50_ms\": 1, \"echo\": {\"error\": \"a\"}}) }";
        assert_eq!(keys(text).unwrap(), "  p50_ms echo error\n");
    }

    #[test]
    fn exit_codes_are_constants() {
        let text =
            "const NO_PATH: u8 = 2;\nconst OTHER: u8 = 3;\nfn f() { ExitCode::from(NO_PATH) }";
        assert_eq!(list_exit_codes(text).unwrap(), "  NO_PATH 2\n");
    }
}
