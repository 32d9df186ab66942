//! Check of state ownership inside a connection and inside a shard of the driver, and of circular imports.
//!
//! An owner is a field of `Connection` or `State` whose type is a struct in that folder. The compiler protects
//! private fields; this check ensures that they are private, that no other file can bypass that, and that only the hub
//! and listed structs hold several owners at a time, as the list states.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{
    Fields, FnArg, ImplItem, Item, ItemMod, ReceiverKind, ReturnType, Type, UseTree, Visibility,
};

use crate::TaskResult;
use crate::manifest;

/// State that is divided among owners.
struct OwnedState {
    /// Struct whose fields are the owners.
    state: &'static str,
    /// The file of that struct, which may hold any owners.
    hub: &'static str,
    /// Folder of the owners.
    folder: &'static str,
    /// Structs that borrow several owners from the hub for a call.
    borrowers: &'static [Borrower],
}

/// A struct of references to several owners.
struct Borrower {
    name: &'static str,
    /// Owners that it borrows mutably.
    owners: &'static [&'static str],
    /// Reason why one call changes all of them.
    reason: &'static str,
}

const AREAS: &[OwnedState] = &[
    OwnedState {
        state: "Connection",
        hub: "crates/marline-core/src/connection.rs",
        folder: "crates/marline-core/src/connection",
        borrowers: &[
            Borrower {
                name: "SegmentBuilder",
                owners: &[
                    "Session",
                    "PathSet",
                    "Sender",
                    "Receiver",
                    "Scheduling",
                    "Closing",
                    "DeliveryWatch",
                    "MemoryTrim",
                    "FastOpening",
                    "ReplayGuard",
                ],
                reason: "a segment carries data, acknowledgments and options of all parts",
            },
            Borrower {
                name: "Assignment",
                owners: &[
                    "PathSet",
                    "Sender",
                    "Scheduling",
                    "Closing",
                    "DeliveryWatch",
                    "MemoryTrim",
                ],
                reason: "the scheduler's decisions move data from the sender to subflows",
            },
            Borrower {
                name: "Joins",
                owners: &["PathSet", "Sender", "Receiver", "ReplayGuard"],
                reason: "the SYN of a Fast JOIN carries data or a DATA_ACK",
            },
            Borrower {
                name: "FastOpenHandshake",
                owners: &["Session", "PathSet", "Sender", "Receiver", "FastOpening"],
                reason: "data in the first SYN shifts the positions of both streams",
            },
            Borrower {
                name: "Opening",
                owners: &["PathSet", "Attempts", "Sender", "Receiver"],
                reason: "a new subflow needs a slot in each part",
            },
            Borrower {
                name: "Reception",
                owners: &["Session", "PathSet", "Receiver"],
                reason: "a mapping relates positions in a subflow to the stream",
            },
            Borrower {
                name: "Silence",
                owners: &["PathSet", "Receiver", "Closing", "Liveness"],
                reason: "missing stream data is a sign of a silent path",
            },
            Borrower {
                name: "PeerMessages",
                owners: &["Session", "PathSet", "RtoExchange"],
                reason: "messages wait with the paths' signals until they are sent",
            },
            Borrower {
                name: "Ending",
                owners: &[
                    "PathSet",
                    "Attempts",
                    "Sender",
                    "Receiver",
                    "Closing",
                    "Scheduling",
                    "Liveness",
                ],
                reason: "each part drops a subflow whose slot may be reused",
            },
        ],
    },
    OwnedState {
        state: "State",
        hub: "crates/marline-io/src/driver/state.rs",
        folder: "crates/marline-io/src/driver",
        borrowers: &[],
    },
];
/// Crates whose files may import each other circularly: a program that acts as the kernel for packetdrill's scripts.
const CRATES_WITH_CIRCLES: &[&str] = &["packetdrill-adapter"];

/// Fails with a list of all findings.
pub(crate) fn check(root: &Path) -> TaskResult {
    let mut wrong = Vec::new();
    let mut counts = Vec::new();
    for area in AREAS {
        let owners = Owners::read(root, area)?;
        wrong.extend(owners.findings());
        counts.push(format!("{} owners in `{}`", owners.names.len(), area.state));
    }
    let mut files = 0;
    for of in manifest::workspace_crates(root)? {
        let graph = Graph::read(&of.dir.join("src"))?;
        files += graph.imports.len();
        let circles = graph.import_cycles();
        if !CRATES_WITH_CIRCLES.contains(&of.name.as_str()) {
            wrong.extend(circles.iter().map(|circle| format!("{}: {circle}", of.name)));
        }
    }
    if wrong.is_empty() {
        println!("ownership: {}, {files} files without circular imports", counts.join(", "));
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

/// Structs of an area and their files.
struct Owners {
    area: &'static OwnedState,
    /// Types of the state's fields that are defined in the folder.
    names: BTreeSet<String>,
    /// Struct, its file, and its public fields.
    structs: BTreeMap<String, (String, Vec<String>)>,
    files: Vec<(String, syn::File)>,
}

impl Owners {
    /// True for an owner, and for the state itself.
    fn is_owner(&self, name: &str) -> bool {
        self.names.contains(name) || name == self.area.state
    }

    fn read(root: &Path, area: &'static OwnedState) -> Result<Self, String> {
        let hub = root.join(area.hub);
        let mut paths = vec![hub.clone()];
        let mut others = Vec::new();
        rust_files(&root.join(area.folder), &mut others)?;
        paths.extend(others.into_iter().filter(|path| *path != hub));
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
                && found.ident == area.state
            {
                for field in &found.fields {
                    let types = type_names(&field.ty);
                    names.extend(types.into_iter().filter(|name| structs.contains_key(name)));
                }
            }
        }
        Ok(Owners { area, names, structs, files })
    }

    fn findings(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.names.len() < 5 {
            wrong.push(format!(
                "{}: only {} owners found; was `{}` moved?",
                self.area.hub,
                self.names.len(),
                self.area.state
            ));
        }
        let mut owned = self.names.clone();
        owned.insert(self.area.state.to_owned());
        for (name, file) in &self.files {
            let mut looker =
                FileVisitor { owners: self, file: name, owned: &mut owned, wrong: &mut wrong };
            looker.visit_file(file);
        }
        for Borrower { name, .. } in self.area.borrowers {
            if !self.structs.contains_key(*name) {
                wrong.push(format!("{}: unknown borrower `{name}`", self.area.folder));
            }
        }
        for name in &owned {
            let Some((file, public)) = self.structs.get(name) else { continue };
            wrong.extend(public.iter().map(|field| {
                format!("{file}: {name}.{field} can be written from other files: make it private")
            }));
            let modules = self.files.iter().filter(|(name, _)| name == file);
            for module in modules.flat_map(|(_, file)| child_modules(file)) {
                if file != self.area.hub {
                    wrong.push(format!("{file}: `mod {module}` can write fields of {name}"));
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

/// Modules in separate files below this one, without tests.
fn child_modules(file: &syn::File) -> Vec<String> {
    let modules = file.items.iter().filter_map(|item| match item {
        Item::Mod(ItemMod { ident, content: None, .. }) if ident != "tests" => Some(ident),
        _ => None,
    });
    modules.map(ToString::to_string).collect()
}

/// Names of the types within a type.
fn type_names(of: &Type) -> Vec<String> {
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

/// Types that a function's result lets the caller modify.
fn mutably_returned(result: &ReturnType) -> Vec<String> {
    struct ReturnVisitor(Vec<String>);
    impl<'a> Visit<'a> for ReturnVisitor {
        fn visit_type_reference(&mut self, reference: &'a syn::TypeReference) {
            if reference.mutability.is_some() {
                self.0.extend(type_names(&reference.elem));
            }
            visit::visit_type_reference(self, reference);
        }
    }
    let mut lent = ReturnVisitor(Vec::new());
    if let ReturnType::Type(_, of) = result {
        lent.visit_type(of);
    }
    lent.0
}

/// Visitor of the functions of one file.
struct FileVisitor<'a> {
    owners: &'a Owners,
    file: &'a str,
    /// Structs whose fields must be private: owners, and types that they lend mutably.
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
                FnArg::Typed(typed) => held.extend(mutable_borrows(&typed.ty)),
                FnArg::Receiver(_) => {}
            }
        }
        held.retain(|name| self.owners.is_owner(name));
        if self.file != self.owners.area.hub && held.len() > 1 {
            let held: Vec<&str> = held.iter().map(String::as_str).collect();
            let (file, name) = (self.file, &signature.ident);
            self.wrong.push(format!("{file}: fn {name} holds {} mutably", held.join(" and ")));
        }
        let lent = mutably_returned(&signature.output);
        self.owned.extend(lent.into_iter().filter(|name| self.owners.structs.contains_key(name)));
    }
}

/// Types behind a mutable reference. Empty for any other type.
fn mutable_borrows(of: &Type) -> Vec<String> {
    match of {
        Type::Reference(reference) if reference.mutability.is_some() => {
            type_names(&reference.elem).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

impl<'a> Visit<'a> for FileVisitor<'_> {
    fn visit_item_impl(&mut self, of: &'a syn::ItemImpl) {
        let name = type_names(&of.self_ty).into_iter().next();
        let OwnedState { state, hub, .. } = self.owners.area;
        if name.as_deref() == Some(state) && self.file != *hub {
            self.wrong.push(format!("{}: impl {state} is allowed only in {hub}", self.file));
        }
        for item in &of.items {
            if let ImplItem::Fn(function) = item {
                self.function(name.as_deref(), &function.sig);
            }
        }
    }

    fn visit_item_struct(&mut self, found: &'a syn::ItemStruct) {
        let fields = found.fields.iter();
        let mut held: BTreeSet<_> = fields.flat_map(|field| mutable_borrows(&field.ty)).collect();
        held.retain(|name| self.owners.is_owner(name));
        let name = found.ident.to_string();
        let listed = self.owners.area.borrowers.iter().find(|borrower| borrower.name == name);
        let stated: BTreeSet<String> =
            listed.into_iter().flat_map(|b| b.owners).map(ToString::to_string).collect();
        let file = self.file;
        let list = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
        match listed {
            None if held.len() > 1 && file != self.owners.area.hub => self.wrong.push(format!(
                "{file}: {name} borrows {} mutably, but is not a listed borrower",
                list(&held)
            )),
            Some(borrower) if held != stated => self.wrong.push(format!(
                "{file}: {name} borrows {} mutably, but the list states {} ({})",
                list(&held),
                list(&stated),
                borrower.reason
            )),
            _ => {}
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
                    flatten_use_tree(&import.tree, &mut Vec::new(), &mut found);
                }
            }
            let named = found.iter().filter_map(|import| resolve(module, import, &modules));
            imports.insert(module.clone(), named.filter(|named| named != module).collect());
        }
        Ok(Graph { imports })
    }

    /// Sets of files that import each other, one text per set.
    fn import_cycles(&self) -> Vec<String> {
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

fn flatten_use_tree(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten_use_tree(&path.tree, before, found);
            before.pop();
        }
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| flatten_use_tree(tree, before, found));
        }
        UseTree::Name(name) => found.push([&before[..], &[name.ident.to_string()]].concat()),
        UseTree::Rename(name) => found.push([&before[..], &[name.ident.to_string()]].concat()),
        UseTree::Glob(_) => found.push(before.clone()),
    }
}

/// The file that an import of a module refers to. Names in the crate's root are ignored, because the root only
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
            graph(&[("a", &["b"]), ("b", &["c"]), ("c", &["a", "d"]), ("d", &[])]).import_cycles();
        assert_eq!(circles, ["files import each other: a, b, c"]);
        assert!(graph(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])]).import_cycles().is_empty());
    }

    const AREA: OwnedState = OwnedState {
        state: "Connection",
        hub: "connection.rs",
        folder: "connection",
        borrowers: &[Borrower { name: "Pair", owners: &["A", "B"], reason: "a test" }],
    };
    const PAIR: (&str, &str) = ("pair", "struct Pair<'a> { a: &'a mut A, b: &'a mut B, c: &'a C }");

    fn findings(holder: &str, others: &[(&str, &str)]) -> Vec<String> {
        let area = &AREA;
        let others: Vec<_> = match others.iter().any(|(_, text)| text.contains("Pair")) {
            true => others.to_vec(),
            false => [others, &[PAIR]].concat(),
        };
        let mut files = vec![(area.hub.to_owned(), syn::parse_file(holder).expect("Rust"))];
        for (name, text) in &others {
            let name = format!("{}/{name}.rs", area.folder);
            files.push((name, syn::parse_file(text).expect("Rust")));
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
        Owners { area, names, structs, files }.findings()
    }

    #[test]
    fn code_that_can_write_fields_outside_is_found() {
        assert_eq!(findings("struct Connection { a: A }", &[("a", "struct A { x: u8 }")]), [""; 0]);
        let open = findings("", &[("a", "pub struct A { pub(super) x: u8 }")]);
        assert!(open[0].contains("A.x can be written"), "{open:?}");
        let child = findings("", &[("a", "mod rest; pub struct A { x: u8 }")]);
        assert!(child[0].contains("`mod rest` can write"), "{child:?}");
        let lent =
            "struct A { p: P } struct P { pub x: u8 } impl A { fn p(&mut self) -> &mut P {} }";
        assert!(findings("", &[("a", lent)])[0].contains("P.x can be written"));
    }

    #[test]
    fn only_the_hub_holds_two_owners_in_a_function() {
        let both = "struct A {} impl A { fn f(&mut self, b: &mut B) {} fn g(&mut self, b: &B) {} }";
        let found = findings("", &[("a", both)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("fn f holds A and B mutably"));
        assert_eq!(findings("fn f(a: &mut A, b: &mut B) {}", &[]), [""; 0]);
        assert!(findings("", &[("a", "impl Connection {}")])[0].contains("impl Connection"));
    }

    #[test]
    fn listed_structs_borrow_as_stated() {
        assert_eq!(findings("", &[PAIR]), [""; 0]);
        let other = findings("", &[("other", "struct Other<'a> { a: &'a mut A, c: &'a mut C }")]);
        assert!(other[0].contains("Other borrows A, C mutably, but is not a listed"), "{other:?}");
        let more = "struct Pair<'a> { a: &'a mut A, b: &'a mut B, c: &'a mut C }";
        let more = findings("", &[("pair", more)]);
        assert!(more[0].contains("A, B, C mutably, but the list states A, B"), "{more:?}");
        assert!(findings("", &[("pair", "struct Pairs;")])[0].contains("unknown borrower `Pair`"));
    }
}
