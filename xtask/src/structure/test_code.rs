//! Removes code that exists only in tests: items with `#[test]`, or with a `#[cfg]` that cannot
//! hold in a build without tests and fuzzing.

use std::ops::RangeInclusive;

use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Fields, ImplItem, Item, Meta, Token, TraitItem};

/// What was removed from a file.
#[derive(Default)]
pub(super) struct Removed {
    /// The lines, from 1.
    pub(super) lines: Vec<RangeInclusive<usize>>,
    /// The names of the modules that have files of their own.
    pub(super) modules: Vec<String>,
}

impl Removed {
    fn add(&mut self, part: &impl Spanned) {
        let span = part.span();
        self.lines.push(span.start().line..=span.end().line);
    }
}

/// Removes the tests from the items of a file.
pub(super) fn remove(items: &mut Vec<Item>) -> Removed {
    let mut removed = Removed::default();
    remove_from(items, &mut removed);
    removed
}

fn remove_from(items: &mut Vec<Item>, removed: &mut Removed) {
    items.retain_mut(|item| {
        if is_test_only(attributes(item)) {
            removed.add(item);
            if let Item::Mod(module) = item
                && module.content.is_none()
            {
                removed.modules.push(module.ident.to_string());
            }
            return false;
        }
        remove_inside(item, removed);
        true
    });
}

/// Removes the tests from what an item contains.
fn remove_inside(item: &mut Item, removed: &mut Removed) {
    match item {
        Item::Mod(module) => {
            if let Some((_, items)) = &mut module.content {
                remove_from(items, removed);
            }
        }
        Item::Impl(block) => block.items.retain(|item| match item {
            ImplItem::Fn(function) => keep(&function.attrs, function, removed),
            ImplItem::Const(constant) => keep(&constant.attrs, constant, removed),
            _ => true,
        }),
        Item::Trait(block) => block.items.retain(|item| match item {
            TraitItem::Fn(function) => keep(&function.attrs, function, removed),
            _ => true,
        }),
        Item::Struct(definition) => {
            if let Fields::Named(fields) = &mut definition.fields {
                let all = std::mem::take(&mut fields.named);
                fields.named = all.into_iter().filter(|field| keep(&field.attrs, field, removed)).collect();
            }
        }
        _ => {}
    }
}

/// Returns whether a part stays, and records its lines if not.
fn keep(attributes: &[Attribute], part: &impl Spanned, removed: &mut Removed) -> bool {
    let stays = !is_test_only(attributes);
    if !stays {
        removed.add(part);
    }
    stays
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns true if what has these attributes exists only in tests.
pub(super) fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_cfg = attribute.path().is_ident("cfg");
        attribute.path().is_ident("test")
            || (is_cfg && attribute.parse_args::<Meta>().is_ok_and(|condition| !can_be(&condition, true)))
    })
}

/// Returns true if a condition can have this value in a build without tests and fuzzing.
fn can_be(condition: &Meta, value: bool) -> bool {
    let Meta::List(list) = condition else {
        let is_test = condition.path().is_ident("test") || condition.path().is_ident("fuzzing");
        return !is_test || !value;
    };
    let Ok(parts) = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated) else { return true };
    let mut parts = parts.iter();
    match list.path.get_ident().map(ToString::to_string).as_deref() {
        Some("not") => parts.all(|part| can_be(part, !value)),
        // A conjunction is true if all parts are, and false if one part is.
        Some("all") if value => parts.all(|part| can_be(part, true)),
        Some("all") => parts.any(|part| can_be(part, false)),
        Some("any") if value => parts.any(|part| can_be(part, true)),
        Some("any") => parts.all(|part| can_be(part, false)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_that_hold_only_in_tests_are_recognised() {
        let is_test = |attribute: &str| {
            let file = syn::parse_file(&format!("{attribute} fn f() {{}}")).unwrap();
            is_test_only(attributes(&file.items[0]))
        };
        for attribute in ["#[test]", "#[cfg(test)]", "#[cfg(any(test, fuzzing))]", "#[cfg(all(test, unix))]"] {
            assert!(is_test(attribute), "{attribute}");
        }
        for attribute in [
            "",
            "#[inline]",
            "#[cfg(not(test))]",
            "#[cfg(any(test, feature = \"tokio\"))]",
            "#[cfg(all(unix, not(test)))]",
            "#[cfg(not(any(test, unix)))]",
            "#[cfg_attr(test, allow(dead_code))]",
        ] {
            assert!(!is_test(attribute), "{attribute}");
        }
    }

    #[test]
    fn tests_are_removed_from_implementations_traits_and_structures() {
        let text = "struct S { a: u8, #[cfg(test)] b: u8 }\nimpl S { #[cfg(test)]\nfn a() {}\nfn b() {} }\n\
                    trait T { #[cfg(test)] fn a(); fn b(); }\nmod m { #[test] fn c() {} }";
        let mut items = syn::parse_file(text).unwrap().items;
        let removed = remove(&mut items);
        assert_eq!(removed.lines, [1..=1, 2..=3, 5..=5, 6..=6]);
        let Item::Impl(block) = &items[1] else { panic!("the second item") };
        assert_eq!(block.items.len(), 1);
        let Item::Struct(structure) = &items[0] else { panic!("the first item") };
        assert_eq!(structure.fields.len(), 1);
    }
}
