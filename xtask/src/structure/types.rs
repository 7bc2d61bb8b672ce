//! What is known of the type of a variable, a field or a parameter: enough to find its methods.

use syn::{
    GenericArgument, GenericParam, Generics, PathArguments, PathSegment, ReturnType, Signature, Type, TypeParamBound,
};

use super::names::{Named, Names, Space, TypeName};
use super::source::ModulePath;

/// What is known of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// A type or trait of the directory.
    Here(TypeName),
    /// A type that is defined elsewhere. None of its methods is in the directory.
    Elsewhere,
    /// A type that is defined elsewhere and holds one of the directory, such as `Option<Peer>`.
    Holder(Box<Known>),
    /// Nothing.
    Unknown,
}

/// Types that stand for what they point to.
const POINTERS: [&str; 4] = ["Box", "Rc", "Arc", "Pin"];

/// The place in which a type is written: it decides what the names mean.
#[derive(Clone)]
pub(super) struct Place<'a> {
    pub(super) names: &'a Names,
    pub(super) module: ModulePath,
    /// The meaning of `Self`.
    pub(super) owner: Known,
    /// Type parameters, with the first of their bounds that is a trait of the directory.
    generics: Vec<(String, Known)>,
}

impl<'a> Place<'a> {
    pub(super) fn new(names: &'a Names, module: &ModulePath) -> Place<'a> {
        Place { names, module: module.clone(), owner: Known::Unknown, generics: Vec::new() }
    }

    /// Adds the type parameters of an `impl` or a function.
    pub(super) fn with_generics(mut self, generics: &Generics) -> Place<'a> {
        for parameter in &generics.params {
            if let GenericParam::Type(parameter) = parameter {
                let bound = self.of_bounds(parameter.bounds.iter());
                self.generics.push((parameter.ident.to_string(), bound));
            }
        }
        self
    }

    /// Returns what is known of a type.
    pub(super) fn known(&self, ty: &Type) -> Known {
        match ty {
            Type::Reference(reference) => self.known(&reference.elem),
            Type::Paren(paren) => self.known(&paren.elem),
            Type::Group(group) => self.known(&group.elem),
            Type::ImplTrait(traits) => self.of_bounds(traits.bounds.iter()),
            Type::TraitObject(traits) => self.of_bounds(traits.bounds.iter()),
            Type::Path(path) if path.qself.is_none() => self.of_path(&path.path),
            Type::Infer(_) | Type::Macro(_) | Type::Verbatim(_) => Known::Unknown,
            _ => Known::Elsewhere,
        }
    }

    /// Returns what is known of the type that a path names.
    pub(super) fn of_path(&self, path: &syn::Path) -> Known {
        let Some(last) = path.segments.last() else { return Known::Unknown };
        if path.is_ident("Self") {
            return self.owner.clone();
        }
        if POINTERS.iter().any(|pointer| last.ident == pointer)
            && let PathArguments::AngleBracketed(arguments) = &last.arguments
            && let Some(GenericArgument::Type(inside)) = arguments.args.first()
        {
            return self.known(inside);
        }
        if let Some((_, bound)) = self.generics.iter().rev().find(|(name, _)| path.is_ident(name.as_str())) {
            return bound.clone();
        }
        match self.names.resolve(&self.module, &words(path), Space::Types) {
            Some(Named::Type(name)) => Known::Here(name),
            // A variant of an enum.
            Some(Named::Member(..)) => Known::Unknown,
            _ => self.of_arguments(last),
        }
    }

    /// Returns what is known of a type of elsewhere by its arguments: the first of a `Result`, the
    /// last of any other (the values of a map).
    fn of_arguments(&self, segment: &PathSegment) -> Known {
        let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return Known::Elsewhere };
        let mut types = arguments.args.iter().filter_map(|argument| match argument {
            GenericArgument::Type(ty) => Some(ty),
            _ => None,
        });
        let held = if segment.ident == "Result" { types.next() } else { types.next_back() };
        match held.map(|ty| self.known(ty)) {
            Some(held @ (Known::Here(_) | Known::Holder(_))) => Known::Holder(Box::new(held)),
            _ => Known::Elsewhere,
        }
    }

    /// Returns what is known of the result of a function.
    pub(super) fn output(&self, signature: &Signature) -> Known {
        match &signature.output {
            ReturnType::Default => Known::Elsewhere,
            ReturnType::Type(_, ty) => self.clone().with_generics(&signature.generics).known(ty),
        }
    }

    fn of_bounds<'b>(&self, bounds: impl Iterator<Item = &'b TypeParamBound>) -> Known {
        let traits = bounds.filter_map(|bound| match bound {
            TypeParamBound::Trait(bound) => Some(self.of_path(&bound.path)),
            _ => None,
        });
        traits.into_iter().find(|known| *known != Known::Elsewhere).unwrap_or(Known::Elsewhere)
    }
}

/// Returns the names in a path.
pub(super) fn words(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::source::parse;
    use super::*;

    #[test]
    fn a_type_is_found_behind_references_pointers_and_bounds() {
        let sources = parse([("peer.rs", "struct Peer; trait Events {}"), ("send.rs", "use super::peer::*;")]).unwrap();
        let (names, module) = (Names::new(&sources, None), vec!["send".to_owned()]);
        let generics: syn::ItemFn = syn::parse_str("fn f<T: Transport, E: Clone + Events>() {}").unwrap();
        let place = Place::new(&names, &module).with_generics(&generics.sig.generics);
        let known = |text: &str| place.known(&syn::parse_str(text).unwrap());
        for text in ["Peer", "&mut Peer", "Box<Peer>", "&Arc<Peer>", "super::peer::Peer", "(Peer)"] {
            assert_eq!(known(text), Known::Here((vec!["peer".into()], "Peer".into())), "{text}");
        }
        for text in ["E", "&mut E", "impl Events", "Box<dyn Events>"] {
            assert_eq!(known(text), Known::Here((vec!["peer".into()], "Events".into())), "{text}");
        }
        for text in ["T", "Vec<u8>", "Result<u8, Peer>", "usize", "[Peer]", "(Peer, Peer)", "impl Transport"] {
            assert_eq!(known(text), Known::Elsewhere, "{text}");
        }
        let peer = || Box::new(known("Peer"));
        for text in ["Vec<Peer>", "Option<&mut Peer>", "Result<Peer, Error>", "BTreeMap<u8, Box<Peer>>"] {
            assert_eq!(known(text), Known::Holder(peer()), "{text}");
        }
        assert_eq!(known("Option<Vec<Peer>>"), Known::Holder(Box::new(Known::Holder(peer()))));
        assert_eq!([known("_"), known("Self")], [Known::Unknown, Known::Unknown]);
    }
}
