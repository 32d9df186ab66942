//! Check of state ownership inside a connection, and of circular imports.
//!
//! A room is a field of `Connection` whose type is a struct in the connection's folder. The compiler protects
//! private fields; this check makes sure that they are private, that no other file has a way around that, and that
//! only one file holds two rooms at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{
    Fields, FnArg, ImplItem, Item, ItemMod, ReceiverKind, ReturnType, Type, UseTree, Visibility,
};

use crate::TaskResult;
use crate::manifest;

/// The file that may hold two rooms.
const TWO_ROOM_FILE: &str = "crates/marline-core/src/connection.rs";
/// Folder of the rooms.
const ROOMS: &str = "crates/marline-core/src/connection";
/// Crates whose files may import each other circularly: a program that plays the kernel for packetdrill's scripts.
const CIRCLES_ALLOWED: &[&str] = &["packetdrill-adapter"];

/// Fails with every finding.
pub(crate) fn check(root: &Path) -> TaskResult {
    let mut wrong = Vec::new();
    let rooms = Rooms::read(root)?;
    wrong.extend(rooms.findings());
    let mut files = 0;
    for of in manifest::workspace_crates(root)? {
        let graph = Graph::read(&of.dir.join("src"))?;
        files += graph.imports.len();
        let circles = graph.circles();
        if !CIRCLES_ALLOWED.contains(&of.name.as_str()) {
            wrong.extend(circles.iter().map(|circle| format!("{}: {circle}", of.name)));
        }
    }
    if wrong.is_empty() {
        println!("rooms: {} of a connection, {files} files without a circle", rooms.names.len());
        return Ok(());
    }
    Err(format!("{} findings\n{}", wrong.len(), wrong.join("\n")))
}

fn parse(file: &Path) -> Result<syn::File, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display()))
}

/// All Rust files below a folder, without tests.
fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if name == "tests" {
            continue;
        }
        if path.is_dir() {
            rust_files(&path, found)?;
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

/// Structs of the connection and their files.
struct Rooms {
    /// Types of `Connection`'s fields that are defined in the folder.
    names: BTreeSet<String>,
    /// Struct, its file, and its public fields.
    structs: BTreeMap<String, (String, Vec<String>)>,
    files: Vec<(String, syn::File)>,
}

impl Rooms {
    fn read(root: &Path) -> Result<Self, String> {
        let mut paths = vec![root.join(TWO_ROOM_FILE)];
        rust_files(&root.join(ROOMS), &mut paths)?;
        let mut files = Vec::new();
        let mut structs = BTreeMap::new();
        for path in paths {
            let file = parse(&path)?;
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            for item in &file.items {
                if let Item::Struct(found) = item {
                    let public = public_fields(&found.fields);
                    structs.insert(found.ident.to_string(), (name.clone(), public));
                }
            }
            files.push((name, file));
        }
        let mut names = BTreeSet::new();
        for item in files.first().map(|(_, file)| &file.items).into_iter().flatten() {
            if let Item::Struct(found) = item
                && found.ident == "Connection"
            {
                for field in &found.fields {
                    let types = named(&field.ty);
                    names.extend(types.into_iter().filter(|name| structs.contains_key(name)));
                }
            }
        }
        Ok(Rooms { names, structs, files })
    }

    fn findings(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.names.len() < 5 {
            wrong.push(format!(
                "{TWO_ROOM_FILE}: {} rooms: has `Connection` moved?",
                self.names.len()
            ));
        }
        let mut owned = self.names.clone();
        owned.insert("Connection".to_owned());
        for (name, file) in &self.files {
            let mut looker =
                FileVisitor { rooms: self, file: name, owned: &mut owned, wrong: &mut wrong };
            looker.visit_file(file);
        }
        for name in &owned {
            let Some((file, public)) = self.structs.get(name) else { continue };
            wrong.extend(public.iter().map(|field| {
                format!("{file}: {name}.{field} can be written from other files: make it private")
            }));
            let modules = self.files.iter().filter(|(name, _)| name == file);
            for module in modules.flat_map(|(_, file)| child_modules(file)) {
                if file != TWO_ROOM_FILE {
                    wrong.push(format!("{file}: `mod {module}` can write what {name} owns"));
                }
            }
        }
        wrong.sort();
        wrong.dedup();
        wrong
    }
}

fn public_fields(fields: &Fields) -> Vec<String> {
    let public = fields.iter().filter(|field| !matches!(field.vis, Visibility::Inherited));
    public.map(|f| f.ident.as_ref().map_or("0".to_owned(), ToString::to_string)).collect()
}

/// Modules in files of their own below this one, without tests.
fn child_modules(file: &syn::File) -> Vec<String> {
    let modules = file.items.iter().filter_map(|item| match item {
        Item::Mod(ItemMod { ident, content: None, .. }) if ident != "tests" => Some(ident),
        _ => None,
    });
    modules.map(ToString::to_string).collect()
}

/// Names of the types within a type.
fn named(of: &Type) -> Vec<String> {
    struct Names(Vec<String>);
    impl<'a> Visit<'a> for Names {
        fn visit_path_segment(&mut self, segment: &'a syn::PathSegment) {
            self.0.push(segment.ident.to_string());
            visit::visit_path_segment(self, segment);
        }
    }
    let mut names = Names(Vec::new());
    names.visit_type(of);
    names.0
}

fn is_mutable(receiver: &ReceiverKind) -> bool {
    match receiver {
        ReceiverKind::Reference(_, _, mutability) => mutability.is_some(),
        ReceiverKind::Typed(_, of) => matches!(&**of, Type::Reference(r) if r.mutability.is_some()),
        _ => false,
    }
}

/// Types that a function's result lets its caller change.
fn lent_mutably(result: &ReturnType) -> Vec<String> {
    struct Lent(Vec<String>);
    impl<'a> Visit<'a> for Lent {
        fn visit_type_reference(&mut self, reference: &'a syn::TypeReference) {
            if reference.mutability.is_some() {
                self.0.extend(named(&reference.elem));
            }
            visit::visit_type_reference(self, reference);
        }
    }
    let mut lent = Lent(Vec::new());
    if let ReturnType::Type(_, of) = result {
        lent.visit_type(of);
    }
    lent.0
}

/// Visitor of the functions of one file.
struct FileVisitor<'a> {
    rooms: &'a Rooms,
    file: &'a str,
    /// Structs whose fields must be private: rooms, and types that they lend mutably.
    owned: &'a mut BTreeSet<String>,
    wrong: &'a mut Vec<String>,
}

impl FileVisitor<'_> {
    fn function(&mut self, of: Option<&str>, signature: &syn::Signature) {
        let mut held = BTreeSet::new();
        for input in &signature.inputs {
            match input {
                FnArg::Receiver(receiver) if is_mutable(&receiver.kind) => {
                    held.extend(of.map(str::to_owned));
                }
                FnArg::Typed(typed) => {
                    if let Type::Reference(reference) = &*typed.ty
                        && reference.mutability.is_some()
                    {
                        held.extend(named(&reference.elem));
                    }
                }
                FnArg::Receiver(_) => {}
            }
        }
        held.retain(|name| self.rooms.names.contains(name) || name == "Connection");
        if self.file != TWO_ROOM_FILE && held.len() > 1 {
            let held: Vec<&str> = held.iter().map(String::as_str).collect();
            let (file, name) = (self.file, &signature.ident);
            self.wrong.push(format!("{file}: fn {name} holds {} mutably", held.join(" and ")));
        }
        let lent = lent_mutably(&signature.output);
        self.owned.extend(lent.into_iter().filter(|name| self.rooms.structs.contains_key(name)));
    }
}

impl<'a> Visit<'a> for FileVisitor<'_> {
    fn visit_item_impl(&mut self, of: &'a syn::ItemImpl) {
        let name = named(&of.self_ty).into_iter().next();
        if name.as_deref() == Some("Connection") && self.file != TWO_ROOM_FILE {
            self.wrong.push(format!("{}: impl Connection: that is {TWO_ROOM_FILE}'s", self.file));
        }
        for item in &of.items {
            if let ImplItem::Fn(function) = item {
                self.function(name.as_deref(), &function.sig);
            }
        }
    }

    fn visit_item_fn(&mut self, function: &'a syn::ItemFn) {
        self.function(None, &function.sig);
    }

    fn visit_item_mod(&mut self, _: &'a ItemMod) {}
}

/// Imports between the files of a crate.
struct Graph {
    imports: BTreeMap<Vec<String>, BTreeSet<Vec<String>>>,
}

impl Graph {
    fn read(src: &Path) -> Result<Self, String> {
        let mut paths = Vec::new();
        if src.exists() {
            rust_files(src, &mut paths)?;
        }
        let modules: BTreeMap<Vec<String>, PathBuf> =
            paths.into_iter().map(|path| (module_of(src, &path), path)).collect();
        let mut imports = BTreeMap::new();
        for (module, path) in &modules {
            let mut found = Vec::new();
            for item in &parse(path)?.items {
                if let Item::Use(import) = item {
                    flatten(&import.tree, &mut Vec::new(), &mut found);
                }
            }
            let named = found.iter().filter_map(|import| resolve(module, import, &modules));
            imports.insert(module.clone(), named.filter(|named| named != module).collect());
        }
        Ok(Graph { imports })
    }

    /// Sets of files that import each other, each as text.
    fn circles(&self) -> Vec<String> {
        let mut circles = BTreeSet::new();
        for module in self.imports.keys() {
            let there = self.reachable(module);
            let back: BTreeSet<_> =
                there.iter().filter(|other| self.reachable(other).contains(module)).collect();
            if there.contains(module) {
                let names: Vec<String> = back.iter().map(|module| module.join("::")).collect();
                circles.insert(format!("files import each other: {}", names.join(", ")));
            }
        }
        circles.into_iter().collect()
    }

    fn reachable(&self, from: &[String]) -> BTreeSet<Vec<String>> {
        let mut found = BTreeSet::new();
        let mut left: Vec<&Vec<String>> = self.imports.get(from).into_iter().flatten().collect();
        while let Some(module) = left.pop() {
            if found.insert(module.clone()) {
                left.extend(self.imports.get(module).into_iter().flatten());
            }
        }
        found
    }
}

/// Module path of a file.
fn module_of(src: &Path, file: &Path) -> Vec<String> {
    let inner = file.strip_prefix(src).unwrap_or(file).with_extension("");
    let parts = inner.iter().map(|part| part.to_string_lossy().into_owned());
    let mut parts: Vec<String> = parts.collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

fn flatten(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, found);
            before.pop();
        }
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| flatten(tree, before, found));
        }
        UseTree::Name(name) => found.push([&before[..], &[name.ident.to_string()]].concat()),
        UseTree::Rename(name) => found.push([&before[..], &[name.ident.to_string()]].concat()),
        UseTree::Glob(_) => found.push(before.clone()),
    }
}

/// The file that an import of a module refers to. Names in the crate's root are left out, because the root only
/// re-exports them.
fn resolve(
    module: &[String],
    import: &[String],
    modules: &BTreeMap<Vec<String>, PathBuf>,
) -> Option<Vec<String>> {
    let (first, rest) = import.split_first()?;
    let mut target: Vec<String> = match first.as_str() {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        "super" => module.split_last()?.1.to_vec(),
        _ => return None,
    };
    for part in rest {
        if part == "super" {
            target.pop();
        } else {
            target.push(part.clone());
        }
    }
    while !target.is_empty() && !modules.contains_key(&target) {
        target.pop();
    }
    (!target.is_empty()).then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(imports: &[(&str, &[&str])]) -> Graph {
        let path = |name: &str| name.split("::").map(str::to_owned).collect::<Vec<_>>();
        let imports =
            imports.iter().map(|(from, to)| (path(from), to.iter().map(|to| path(to)).collect()));
        Graph { imports: imports.collect() }
    }

    #[test]
    fn an_import_cycle_is_named_once_with_all_its_files() {
        let circles =
            graph(&[("a", &["b"]), ("b", &["c"]), ("c", &["a", "d"]), ("d", &[])]).circles();
        assert_eq!(circles, ["files import each other: a, b, c"]);
        assert!(graph(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])]).circles().is_empty());
    }

    fn rooms(holder: &str, others: &[(&str, &str)]) -> Vec<String> {
        let mut files = vec![(TWO_ROOM_FILE.to_owned(), syn::parse_file(holder).expect("Rust"))];
        for (name, text) in others {
            files.push((format!("{ROOMS}/{name}.rs"), syn::parse_file(text).expect("Rust")));
        }
        let mut structs = BTreeMap::new();
        for (name, file) in &files {
            for item in &file.items {
                if let Item::Struct(found) = item {
                    let public = public_fields(&found.fields);
                    structs.insert(found.ident.to_string(), (name.clone(), public));
                }
            }
        }
        let names = ["A", "B", "C", "D", "E"].map(str::to_owned).into();
        Rooms { names, structs, files }.findings()
    }

    #[test]
    fn code_that_can_write_fields_from_elsewhere_is_found() {
        assert_eq!(rooms("struct Connection { a: A }", &[("a", "struct A { x: u8 }")]), [""; 0]);
        let open = rooms("", &[("a", "pub struct A { pub(super) x: u8 }")]);
        assert!(open[0].contains("A.x can be written"), "{open:?}");
        let child = rooms("", &[("a", "mod rest; pub struct A { x: u8 }")]);
        assert!(child[0].contains("`mod rest` can write"), "{child:?}");
        let lent =
            "struct A { p: P } struct P { pub x: u8 } impl A { fn p(&mut self) -> &mut P {} }";
        assert!(rooms("", &[("a", lent)])[0].contains("P.x can be written"));
    }

    #[test]
    fn one_file_alone_holds_two_rooms() {
        let both = "struct A {} impl A { fn f(&mut self, b: &mut B) {} fn g(&mut self, b: &B) {} }";
        let found = rooms("", &[("a", both)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("fn f holds A and B mutably"));
        assert_eq!(rooms("fn f(a: &mut A, b: &mut B) {}", &[]), [""; 0]);
        assert!(rooms("", &[("a", "impl Connection {}")])[0].contains("impl Connection"));
    }
}
