//! Resolves paths such as `super::receive::on_message` to what they name in the directory.
//!
//! A name in a module is a module below it, an item of it, or what a `use` brings there, also by
//! `*`. A `use` inside of a function counts for its whole module. A path that leads out of the
//! directory resolves to nothing. `#[path]` is not read.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::Visit;
use syn::{Item, ItemMod, ItemUse, UseTree};

use super::source::{ModulePath, Source};
use super::types::words;

/// A type or trait of the directory: its module and its name.
pub(super) type TypeName = (ModulePath, String);

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Module(ModulePath),
    Type(TypeName),
    /// A function that is not in an `impl`.
    Function(ModulePath, String),
    /// A name in a type: an associated function, or a variant of an enum.
    Member(TypeName, String),
}

/// The two namespaces in which Rust keeps the names that matter here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    /// Modules, types and traits.
    Types,
    /// Functions.
    Values,
}

/// The names of all modules of the directory.
pub(super) struct Names {
    modules: BTreeMap<ModulePath, Module>,
    /// The path of the directory from the root of its crate, if it is known.
    place: Option<ModulePath>,
}

#[derive(Default)]
struct Module {
    types: BTreeSet<String>,
    functions: BTreeSet<String>,
    /// Names that a `use` brings, with their paths, and other names of types (`type A = B`).
    uses: Vec<(String, Vec<String>)>,
    /// Paths of which a `use` brings everything.
    globs: Vec<Vec<String>>,
}

/// The most steps from `use` to `use` until a name is found. It ends circles.
const MOST_STEPS: usize = 8;

impl Names {
    /// Collects the names of all files.
    pub(super) fn new(sources: &[Source], place: Option<ModulePath>) -> Names {
        let mut names = Names { modules: BTreeMap::from([(ModulePath::new(), Module::default())]), place };
        for source in sources {
            names.collect(&source.module, &source.items);
        }
        names
    }

    fn collect(&mut self, path: &ModulePath, items: &[Item]) {
        let mut module = Module::default();
        for item in items {
            match item {
                Item::Fn(item) => drop(module.functions.insert(item.sig.ident.to_string())),
                Item::Struct(item) => drop(module.types.insert(item.ident.to_string())),
                Item::Enum(item) => drop(module.types.insert(item.ident.to_string())),
                Item::Union(item) => drop(module.types.insert(item.ident.to_string())),
                Item::Trait(item) => drop(module.types.insert(item.ident.to_string())),
                Item::Type(item) => {
                    if let syn::Type::Path(to) = &*item.ty {
                        module.uses.push((item.ident.to_string(), words(&to.path)));
                    }
                }
                Item::Mod(item) => {
                    if let Some((_, items)) = &item.content {
                        self.collect(&child(path, &item.ident.to_string()), items);
                    }
                }
                _ => {}
            }
            module.visit_item(item);
        }
        self.modules.insert(path.clone(), module);
    }

    /// Returns what a path names that is written in the module `from`.
    pub(super) fn resolve(&self, from: &ModulePath, path: &[String], space: Space) -> Option<Named> {
        self.resolve_in(from, path, space, MOST_STEPS)
    }

    fn resolve_in(&self, from: &ModulePath, path: &[String], space: Space, steps: usize) -> Option<Named> {
        let steps = steps.checked_sub(1)?;
        let (mut at, mut rest) = match path.split_first()? {
            (first, rest) if first == "self" => (Named::Module(from.clone()), rest),
            (first, _) if first == "super" => (Named::Module(from.clone()), path),
            (first, rest) if first == "crate" => {
                (Named::Module(ModulePath::new()), rest.strip_prefix(self.place.as_ref()?.as_slice())?)
            }
            (first, rest) => {
                let of = if rest.is_empty() { space } else { Space::Types };
                (self.look_up(from, first, of, steps)?, rest)
            }
        };
        while let Some((name, after)) = rest.split_first() {
            let of = if after.is_empty() { space } else { Space::Types };
            at = match at {
                Named::Module(module) if name == "super" => Named::Module(module.split_last()?.1.to_vec()),
                Named::Module(module) => self.look_up(&module, name, of, steps)?,
                Named::Type(owner) => Named::Member(owner, name.clone()),
                Named::Function(..) | Named::Member(..) => return None,
            };
            rest = after;
        }
        Some(at)
    }

    /// Returns what a name means in a module.
    fn look_up(&self, path: &ModulePath, name: &str, space: Space, steps: usize) -> Option<Named> {
        let module = self.modules.get(path)?;
        let below = child(path, name);
        match space {
            Space::Types if self.modules.contains_key(&below) => return Some(Named::Module(below)),
            Space::Types if module.types.contains(name) => return Some(Named::Type((path.clone(), name.to_owned()))),
            Space::Values if module.functions.contains(name) => {
                return Some(Named::Function(path.clone(), name.to_owned()));
            }
            _ => {}
        }
        let mut uses = module.uses.iter().filter(|(known, _)| known == name);
        let mut globs = module.globs.iter();
        uses.find_map(|(_, to)| self.resolve_in(path, to, space, steps)).or_else(|| {
            globs.find_map(|glob| self.resolve_in(path, &[glob.as_slice(), &[name.to_owned()]].concat(), space, steps))
        })
    }
}

impl Module {
    /// Records what a `use` brings.
    fn add_use(&mut self, tree: &UseTree, path: &mut Vec<String>) {
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.add_use(&part.tree, path);
                path.pop();
            }
            UseTree::Name(name) => self.add_name(&name.ident.to_string(), &name.ident.to_string(), path),
            UseTree::Rename(name) => self.add_name(&name.ident.to_string(), &name.rename.to_string(), path),
            UseTree::Glob(_) => self.globs.push(path.clone()),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(tree, path)),
        }
    }

    fn add_name(&mut self, name: &str, known_as: &str, path: &[String]) {
        match (name, path.last()) {
            // `use a::b::{self}` brings `b`.
            ("self", Some(last)) => {
                let known_as = if known_as == "self" { last.as_str() } else { known_as };
                self.uses.push((known_as.to_owned(), path.to_vec()));
            }
            _ => self.uses.push((known_as.to_owned(), [path, &[name.to_owned()]].concat())),
        }
    }
}

/// Finds each `use` of the module, also inside of functions.
impl<'ast> Visit<'ast> for Module {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.add_use(&item.tree, &mut Vec::new());
    }

    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}
}

/// Returns the path of a module in a module.
fn child(path: &[String], name: &str) -> ModulePath {
    [path, &[name.to_owned()]].concat()
}

#[cfg(test)]
mod tests {
    use super::super::source::parse;
    use super::*;

    /// Resolves a path of functions that is written in a module; returns what it names.
    fn resolve(from: &str, path: &str) -> Option<String> {
        let root = "pub use send::transmit as hand_over; use std::mem; use crate::elsewhere::lost; struct Endpoint; type Waiting = send::Queue; mod inner { fn deep() {} }";
        let receive = "use super::*; use super::send::{self, Queue, flush}; use self::send as sender; fn on_message() { use super::inner::deep; deep() }";
        let send = "use round::{self}; use around as round; use round as around; pub fn transmit() {} pub fn flush() {} pub struct Queue;";
        let sources =
            parse([("mod.rs", root), ("receive.rs", receive), ("send.rs", send), ("deep/low.rs", "fn f() {}")]);
        let names = Names::new(&sources.unwrap(), Some(vec!["endpoint".into()]));
        let parts =
            |text: &str| text.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<_>>();
        Some(match names.resolve(&parts(from), &parts(path), Space::Values)? {
            Named::Module(path) => format!("module {}", path.join("::")),
            Named::Type((path, name)) => format!("type {}::{name}", path.join("::")),
            Named::Function(path, name) => format!("{}::{name}", path.join("::")),
            Named::Member((path, owner), name) => format!("{}::{owner}.{name}", path.join("::")),
        })
    }

    #[test]
    fn paths_lead_to_functions_and_members_of_the_directory() {
        for (from, path, expected) in [
            ("receive", "on_message", "receive::on_message"),
            ("receive", "self::on_message", "receive::on_message"),
            ("receive", "flush", "send::flush"),
            ("receive", "send::transmit", "send::transmit"),
            ("receive", "sender::transmit", "send::transmit"),
            ("receive", "super::send::transmit", "send::transmit"),
            ("receive", "crate::endpoint::send::transmit", "send::transmit"),
            ("receive", "hand_over", "send::transmit"),
            ("receive", "Queue::push", "send::Queue.push"),
            ("receive", "Waiting::push", "send::Queue.push"),
            ("receive", "super::Endpoint::new", "::Endpoint.new"),
            ("receive", "Endpoint::new", "::Endpoint.new"),
            ("", "receive::on_message", "receive::on_message"),
            ("", "inner::deep", "inner::deep"),
            ("receive", "deep", "inner::deep"),
            ("inner", "super::send::flush", "send::flush"),
            ("deep::low", "super::super::send::flush", "send::flush"),
        ] {
            assert_eq!(resolve(from, path).as_deref(), Some(expected), "{path} in {from}");
        }
    }

    #[test]
    fn paths_out_of_the_directory_and_circles_of_uses_lead_to_nothing() {
        for (from, path) in [
            ("", "mem::swap"),
            ("", "lost"),
            ("", "super::other"),
            ("receive", "mem::swap"),
            ("receive", "crate::send::transmit"),
            ("receive", "unknown"),
            ("receive", "send::Queue"),
            ("send", "round::f"),
        ] {
            assert_eq!(resolve(from, path), None, "{path} in {from}");
        }
    }
}
