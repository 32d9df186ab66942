//! Public items of a crate, one per line, including items re-exported from other crates of this workspace.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::Value;

use super::render::{Renderer, list, text};

/// JSON of a crate, with maps from ids to definition paths and back.
pub(super) struct DocumentedCrate {
    json: Value,
    paths: BTreeMap<String, Vec<String>>,
    own: BTreeMap<Vec<String>, String>,
}

impl DocumentedCrate {
    const fn renderer(&self) -> Renderer<'_> {
        Renderer { paths: &self.paths }
    }

    pub(super) fn new(json: Value) -> Self {
        let (mut paths, mut own) = (BTreeMap::new(), BTreeMap::new());
        for (id, entry) in json["paths"].as_object().into_iter().flatten() {
            let path: Vec<String> =
                list(&entry["path"]).map(|part| text(part).to_owned()).collect();
            if entry["crate_id"] == 0 {
                own.insert(path.clone(), id.clone());
            }
            paths.insert(id.clone(), path);
        }
        DocumentedCrate { json, paths, own }
    }

    fn item(&self, id: &str) -> Option<&Value> {
        self.json["index"].get(id)
    }
}

/// An item at a public path.
struct Place<'a> {
    krate: &'a str,
    id: String,
    path: String,
}

/// Collects one line per public item.
struct SurfaceCollector<'a> {
    crates: &'a BTreeMap<String, DocumentedCrate>,
    waiting: VecDeque<Place<'a>>,
    /// Public paths of items that were already listed.
    listed: BTreeMap<(&'a str, String), String>,
    lines: BTreeSet<String>,
}

/// Lines of the public items of crate `name`, sorted.
pub(super) fn lines(crates: &BTreeMap<String, DocumentedCrate>, name: &str) -> BTreeSet<String> {
    let mut surface = SurfaceCollector {
        crates,
        waiting: VecDeque::new(),
        listed: BTreeMap::new(),
        lines: BTreeSet::new(),
    };
    if let Some((krate, documented)) = crates.get_key_value(name) {
        let root = documented.json["root"].to_string();
        surface.waiting.push_back(Place { krate, id: root, path: name.to_owned() });
    }
    // Items near the root come first, so that an item with several paths is listed under the shortest.
    while let Some(place) = surface.waiting.pop_front() {
        surface.visit(place);
    }
    surface.lines
}

/// Names at the root of crate `name`.
pub(super) fn root_names(lines: &BTreeSet<String>, name: &str) -> BTreeSet<String> {
    let prefix = format!("{name}::");
    let names = lines.iter().filter_map(|line| {
        let path = line.split(' ').find(|word| word.starts_with(&prefix))?;
        path[prefix.len()..].split(|c: char| !c.is_alphanumeric() && c != '_').next()
    });
    names.map(str::to_owned).collect()
}

impl<'a> SurfaceCollector<'a> {
    fn visit(&mut self, place: Place<'a>) {
        let Place { krate, id, path } = place;
        let Some(documented) = self.crates.get(krate) else { return };
        let Some(item) = documented.item(&id) else { return };
        let inner = &item["inner"];
        if let Some(import) = inner.get("use") {
            return self.follow_import(krate, documented, import, &path);
        }
        if let Some(first) = self.listed.get(&(krate, id.clone())) {
            self.lines.insert(format!("use {path} = {first}"));
            return;
        }
        self.listed.insert((krate, id), path.clone());
        if let Some(module) = inner.get("module") {
            self.lines.insert(format!("mod {path}"));
            self.children(krate, documented, &module["items"], &path);
            return;
        }
        Lister { documented, lines: &mut self.lines }.item(item, &path);
    }

    /// Adds the public items of a module.
    fn children(
        &mut self,
        krate: &'a str,
        documented: &DocumentedCrate,
        items: &Value,
        path: &str,
    ) {
        for id in list(items) {
            let id = id.to_string();
            let Some(item) = documented.item(&id).filter(|item| item["visibility"] == "public")
            else {
                continue;
            };
            let import = &item["inner"]["use"];
            let name = if import.is_null() { text(&item["name"]) } else { text(&import["name"]) };
            let path =
                if import["is_glob"] == true { path.to_owned() } else { format!("{path}::{name}") };
            self.waiting.push_back(Place { krate, id, path });
        }
    }

    /// Adds the item named by an import, from any crate.
    fn follow_import(
        &mut self,
        krate: &'a str,
        documented: &DocumentedCrate,
        import: &Value,
        path: &str,
    ) {
        let id = import["id"].to_string();
        if let Some(item) = documented.item(&id) {
            match import["is_glob"] == true {
                true => self.children(krate, documented, &item["inner"]["module"]["items"], path),
                false => self.waiting.push_back(Place { krate, id, path: path.to_owned() }),
            }
            return;
        }
        let definition = documented.paths.get(&id);
        let found = definition.and_then(|definition| {
            let (krate, other) = self.crates.get_key_value(definition.first()?)?;
            Some((krate, other.own.get(definition)?.clone()))
        });
        match found {
            Some((krate, id)) => self.waiting.push_back(Place { krate, id, path: path.to_owned() }),
            None => {
                self.lines.insert(format!("use {path} = {}", text(&import["source"])));
            }
        }
    }
}

/// Lists one item and its parts.
struct Lister<'a> {
    documented: &'a DocumentedCrate,
    lines: &'a mut BTreeSet<String>,
}

impl Lister<'_> {
    fn item(&mut self, item: &Value, path: &str) {
        let documented = self.documented;
        let renderer = documented.renderer();
        let open = if is_non_exhaustive(item) { " #[non_exhaustive]" } else { "" };
        let Some((kind, inner)) = item["inner"].as_object().and_then(|inner| inner.iter().next())
        else {
            return;
        };
        let generics = renderer.generics(&inner["generics"]);
        let conditions = renderer.conditions(&inner["generics"]);
        match kind.as_str() {
            "struct" | "enum" | "union" => {
                self.put(format!("{kind} {path}{generics}{conditions}{open}"));
                self.fields(&inner["kind"], path);
                self.variants(&inner["variants"], path);
                self.list_impls(&inner["impls"], path);
            }
            "trait" => {
                let bounds = match renderer.bounds(&inner["bounds"]) {
                    none if none.is_empty() => none,
                    bounds => format!(": {bounds}"),
                };
                self.put(format!("trait {path}{generics}{bounds}{conditions}"));
                self.members(&inner["items"], path, true);
            }
            "function" => self.function(inner, path, "fn"),
            "constant" => {
                self.put(format!("const {path}: {}", renderer.render_type(&inner["type"])))
            }
            "static" => {
                self.put(format!("static {path}: {}", renderer.render_type(&inner["type"])))
            }
            "type_alias" => {
                let of = renderer.render_type(&inner["type"]);
                self.put(format!("type {path}{generics} = {of}"));
            }
            other => self.put(format!("{other} {path}")),
        }
    }

    fn put(&mut self, line: String) {
        self.lines.insert(line);
    }

    fn function(&mut self, inner: &Value, path: &str, word: &str) {
        let renderer = self.documented.renderer();
        let header = &inner["header"];
        let flag = |name: &str, word: &'static str| if header[name] == true { word } else { "" };
        let (constant, asynchronous) = (flag("is_const", "const "), flag("is_async", "async "));
        let generics = renderer.generics(&inner["generics"]);
        let conditions = renderer.conditions(&inner["generics"]);
        let signature = renderer.signature(&inner["sig"]);
        let unsafe_word = flag("is_unsafe", "unsafe ");
        self.put(format!(
            "{constant}{asynchronous}{unsafe_word}{word} {path}{generics}{signature}{conditions}"
        ));
    }

    /// Public fields of a struct.
    fn fields(&mut self, kind: &Value, path: &str) {
        let plain = list(&kind["plain"]["fields"]);
        for id in plain.chain(list(&kind["tuple"])) {
            let Some(field) = self.documented.item(&id.to_string()) else { continue };
            if field["visibility"] == "public" {
                self.field(field, path);
            }
        }
    }

    fn field(&mut self, field: &Value, path: &str) {
        let renderer = self.documented.renderer();
        let of = renderer.render_type(&field["inner"]["struct_field"]);
        self.put(format!("field {path}.{}: {of}", text(&field["name"])));
    }

    fn variants(&mut self, variants: &Value, path: &str) {
        for id in list(variants) {
            let Some(variant) = self.documented.item(&id.to_string()) else { continue };
            let open = if is_non_exhaustive(variant) { " #[non_exhaustive]" } else { "" };
            let path = format!("{path}::{}", text(&variant["name"]));
            self.put(format!("variant {path}{open}"));
            let kind = &variant["inner"]["variant"]["kind"];
            let fields = list(&kind["struct"]["fields"]).chain(list(&kind["tuple"]));
            for id in fields {
                if let Some(field) = self.documented.item(&id.to_string()) {
                    self.field(field, &path);
                }
            }
        }
    }

    /// Methods and constants of a type, and the traits it implements. Auto traits and blanket implementations are
    /// omitted, because they follow from the rest.
    fn list_impls(&mut self, impls: &Value, path: &str) {
        let documented = self.documented;
        let renderer = documented.renderer();
        for id in list(impls) {
            let Some(found) = documented.item(&id.to_string()) else { continue };
            let inner = &found["inner"]["impl"];
            if inner["is_synthetic"] == true || !inner["blanket_impl"].is_null() {
                continue;
            }
            if inner["trait"].is_null() {
                self.members(&inner["items"], path, false);
                continue;
            }
            let generics = renderer.generics(&inner["generics"]);
            let conditions = renderer.conditions(&inner["generics"]);
            let (base, of) = (renderer.path(&inner["trait"]), renderer.render_type(&inner["for"]));
            // Derived equality uses a helper trait that programs never name.
            if !base.ends_with("StructuralPartialEq") {
                self.put(format!("impl{generics} {base} for {of}{conditions} ({path})"));
            }
        }
    }

    /// Members of a trait (`of_trait`) or of an inherent implementation.
    fn members(&mut self, items: &Value, path: &str, of_trait: bool) {
        let documented = self.documented;
        let renderer = documented.renderer();
        for id in list(items) {
            let Some(member) = documented.item(&id.to_string()) else { continue };
            if !of_trait && member["visibility"] != "public" {
                continue;
            }
            let path = format!("{path}::{}", text(&member["name"]));
            let inner = &member["inner"];
            if let Some(function) = inner.get("function") {
                let required = of_trait && function["has_body"] != true;
                self.function(function, &path, if required { "required fn" } else { "fn" });
            } else if let Some(constant) = inner.get("assoc_const") {
                let required =
                    if of_trait && constant["value"].is_null() { "required " } else { "" };
                let of = renderer.render_type(&constant["type"]);
                self.put(format!("{required}const {path}: {of}"));
            } else if let Some(alias) = inner.get("assoc_type") {
                let required = if of_trait && alias["type"].is_null() { "required " } else { "" };
                let bounds = renderer.bounds(&alias["bounds"]);
                self.put(format!("{required}type {path}: {bounds}"));
            }
        }
    }
}

/// Returns true if other crates must expect more variants or fields.
fn is_non_exhaustive(item: &Value) -> bool {
    list(&item["attrs"]).any(|attribute| {
        attribute == "non_exhaustive" || text(&attribute["other"]).contains("non_exhaustive")
    })
}
