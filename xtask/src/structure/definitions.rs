//! The functions, methods and fields that the files of a directory define.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Fields, ImplItem, Item, Signature, TraitItem};

use super::names::{Names, TypeName};
use super::source::{ModulePath, Source};
use super::types::{Known, Place};

/// A function or a method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    /// The number of its file.
    pub(super) file: usize,
    /// The name, after the name of its type if it has one: `on_message`, `Peer::unpark`.
    pub(super) name: String,
    /// What is known of its result.
    pub(super) output: Known,
}

/// All that the files define.
#[derive(Default)]
pub(super) struct Definitions {
    /// Functions that are not in an `impl`.
    pub(super) functions: BTreeMap<(ModulePath, String), Function>,
    /// Associated functions of the types and traits of the directory. A type may have several of a
    /// name, from several traits.
    pub(super) members: BTreeMap<(TypeName, String), Vec<Function>>,
    /// All functions with a receiver, by name.
    pub(super) methods: BTreeMap<String, Vec<Function>>,
    /// The fields of structures. Those of a tuple structure are numbers.
    pub(super) fields: BTreeMap<TypeName, BTreeMap<String, Known>>,
    /// The number of functions of each file.
    pub(super) counts: Vec<usize>,
    /// The files that have an `impl` of a type, by the type's name, each with the number of
    /// functions in it.
    pub(super) implementations: BTreeMap<String, BTreeMap<usize, usize>>,
}

impl Definitions {
    pub(super) fn new(sources: &[Source], names: &Names) -> Definitions {
        let mut all = Definitions { counts: vec![0; sources.len()], ..Definitions::default() };
        for (file, source) in sources.iter().enumerate() {
            all.collect(file, &source.module, &source.items, names);
        }
        all
    }

    fn collect(&mut self, file: usize, module: &ModulePath, items: &[Item], names: &Names) {
        let place = Place::new(names, module);
        for item in items {
            match item {
                Item::Fn(item) => {
                    self.counts[file] += 1;
                    let name = item.sig.ident.to_string();
                    let output = place.output(&item.sig);
                    self.functions.insert((module.clone(), name.clone()), Function { file, name, output });
                }
                Item::Impl(item) => {
                    let functions = item.items.iter().filter_map(|item| match item {
                        ImplItem::Fn(function) => Some(&function.sig),
                        _ => None,
                    });
                    let mut place = place.clone().with_generics(&item.generics);
                    place.owner = place.known(&item.self_ty);
                    self.add_block(file, &place, &shown(&item.self_ty), functions);
                }
                Item::Trait(item) => {
                    let functions = item.items.iter().filter_map(|item| match item {
                        TraitItem::Fn(function) => Some(&function.sig),
                        _ => None,
                    });
                    let name = item.ident.to_string();
                    let mut place = place.clone().with_generics(&item.generics);
                    place.owner = Known::Here((module.clone(), name.clone()));
                    self.add_block(file, &place, &name, functions);
                }
                Item::Struct(item) => {
                    let place = place.clone().with_generics(&item.generics);
                    self.fields.insert((module.clone(), item.ident.to_string()), fields(&item.fields, &place));
                }
                Item::Mod(item) => {
                    let below = [&module[..], &[item.ident.to_string()]].concat();
                    let items = item.content.as_ref().map_or(&[][..], |(_, items)| items);
                    self.collect(file, &below, items, names);
                }
                _ => {}
            }
        }
    }

    /// Adds the functions of an `impl` or a trait, whose type is the owner of `place`.
    fn add_block<'a>(
        &mut self,
        file: usize,
        place: &Place<'_>,
        shown: &str,
        functions: impl Iterator<Item = &'a Signature>,
    ) {
        let count = self.implementations.entry(shown.to_owned()).or_default().entry(file).or_default();
        for signature in functions {
            *count += 1;
            self.counts[file] += 1;
            let name = signature.ident.to_string();
            let function = Function { file, name: format!("{shown}::{name}"), output: place.output(signature) };
            if signature.receiver().is_some() {
                self.methods.entry(name.clone()).or_default().push(function.clone());
            }
            if let Known::Here(owner) = &place.owner {
                self.members.entry((owner.clone(), name)).or_default().push(function);
            }
        }
    }

    /// Returns the number of fields of the structures with a name. Returns `None` if there is none.
    pub(super) fn field_count(&self, name: &str) -> Option<usize> {
        let structures = self.fields.iter().filter(|((_, known), _)| known == name);
        structures.map(|(_, fields)| fields.len()).reduce(|a, b| a + b)
    }
}

/// Returns the fields of a structure.
fn fields(fields: &Fields, place: &Place<'_>) -> BTreeMap<String, Known> {
    let named = fields.iter().enumerate().map(|(number, field)| {
        let name = field.ident.as_ref().map_or_else(|| number.to_string(), ToString::to_string);
        (name, place.known(&field.ty))
    });
    named.collect()
}

/// Returns the name of a type, for people.
pub(super) fn shown(ty: &syn::Type) -> String {
    match ty {
        syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default(),
        syn::Type::Reference(reference) => shown(&reference.elem),
        _ => "_".to_owned(),
    }
}

/// Returns the only file in which functions are, or `None` if there are several or none.
pub(super) fn only_file(functions: &[Function]) -> Option<&Function> {
    let files: BTreeSet<usize> = functions.iter().map(|function| function.file).collect();
    if files.len() == 1 { functions.first() } else { None }
}

#[cfg(test)]
mod tests {
    use super::super::source::parse;
    use super::*;

    #[test]
    fn functions_methods_and_fields_are_collected() {
        let root = "use peers::Peers; pub struct Endpoint<T> { now: u64, peers: Peers } impl<T> Endpoint<T> { fn new() {} fn poll(&self) {} }";
        let peers = "use super::Endpoint; pub struct Peers(Vec<u8>); fn helper() {} mod inner { fn deep() {} }\n\
                     impl<T> Endpoint<T> { fn lose(&mut self) {} } impl Drop for Endpoint<u8> { fn drop(&mut self) {} }";
        let sources = parse([("mod.rs", root), ("peers.rs", peers)]).unwrap();
        let all = Definitions::new(&sources, &Names::new(&sources, None));
        assert_eq!(all.counts, [2, 4]);
        assert_eq!(all.implementations["Endpoint"], BTreeMap::from([(0, 2), (1, 2)]));
        assert_eq!(
            (all.field_count("Endpoint"), all.field_count("Peers"), all.field_count("Gone")),
            (Some(2), Some(1), None)
        );
        let endpoint = (vec![], "Endpoint".to_owned());
        assert_eq!(all.fields[&endpoint]["peers"], Known::Here((vec!["peers".into()], "Peers".into())));
        assert_eq!(all.fields[&endpoint]["now"], Known::Elsewhere);
        assert_eq!(all.members[&(endpoint, "lose".to_owned())][0].file, 1);
        assert_eq!(all.methods.keys().collect::<Vec<_>>(), ["drop", "lose", "poll"]);
        assert!(all.functions.contains_key(&(vec!["peers".into(), "inner".into()], "deep".into())));
    }
}
