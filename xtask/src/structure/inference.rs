//! What is known of the variables and expressions of a function, and the function that a call
//! reaches.
//!
//! Types are not inferred as the compiler does it. They are followed from where they are written
//! (parameters, fields, results of functions of the directory) through the forms that the code
//! uses: fields, `get(…)`, `?`, `expect(…)`, `let Some(…) =`. Whatever else has an unknown type.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Expr, Member, Pat};

use super::definitions::{Definitions, Function, only_file};
use super::names::{Named, Space};
use super::types::{Known, Place, words};

/// Names of methods that common types of the standard library have.
const COMMON: &str = " \
    add all any append as_bytes as_deref as_mut as_ref as_slice as_str borrow borrow_mut chain chunks clear clone \
    cloned cmp collect contains contains_key copied count default drain drop entry enumerate eq err expect extend \
    filter filter_map find find_map finish first flat_map flush fmt fold for_each from get get_mut hash index insert \
    into into_iter is_empty is_err is_none is_ok is_some iter iter_mut join keys last len lock map map_err max min \
    next ok or_else parse partition peek poll pop pop_back pop_front position push push_back push_front read recv \
    remove replace resize retain rev send set skip sort split split_at sum swap take then then_some to_owned \
    to_string truncate unwrap unwrap_or values values_mut windows write zip ";

/// Methods of a holder that return what it holds.
const UNWRAPS: [&str; 4] = ["expect", "unwrap", "unwrap_or_else", "unwrap_or_default"];
/// Methods of a holder that return a holder of the same.
const KEEPS: &str = " \
    as_deref as_deref_mut as_mut as_ref back back_mut by_ref chain cloned copied drain filter find first first_mut \
    front front_mut get get_mut into_iter iter iter_mut last last_mut map_err next ok ok_or ok_or_else or or_else peek \
    pop pop_back pop_front remove replace rev skip take values values_mut ";
/// Methods of a holder that pass what it holds to a closure.
const PASSES: &str = " \
    all and_then any filter find filter_map find_map for_each inspect is_none_or is_some_and map map_or map_or_else \
    position retain retain_mut ";

/// What a call reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached<'a> {
    Function(&'a Function),
    /// One of several functions, or perhaps none of the directory.
    Ambiguous,
    Nothing,
}

/// The place that is being read.
pub(super) struct Inference<'a> {
    pub(super) definitions: &'a Definitions,
    /// The names of the methods that the rest of the crate defines.
    pub(super) outside: &'a BTreeSet<String>,
    pub(super) place: Place<'a>,
    /// The variables of the blocks that are being read, from the outermost.
    pub(super) scopes: Vec<BTreeMap<String, Known>>,
}

impl<'a> Inference<'a> {
    // ---- what is known --------------------------------------------------------------------------

    /// Records the variables of a pattern for a value whose type may be known.
    pub(super) fn bind(&mut self, pattern: &Pat, known: &Known) {
        let inside = if let Known::Holder(held) = known { held } else { &Known::Unknown };
        match pattern {
            Pat::Ident(name) => {
                if let Some(scope) = self.scopes.last_mut() {
                    scope.insert(name.ident.to_string(), known.clone());
                }
                if let Some((_, same)) = &name.subpat {
                    self.bind(same, known);
                }
            }
            Pat::Type(typed) => {
                let known = self.place.known(&typed.ty);
                self.bind(&typed.pat, &known);
            }
            Pat::Reference(reference) => self.bind(&reference.pat, known),
            Pat::Paren(paren) => self.bind(&paren.pat, known),
            Pat::Guard(guard) => self.bind(&guard.pat, known),
            Pat::Or(cases) => cases.cases.iter().for_each(|case| self.bind(case, known)),
            Pat::Slice(slice) => slice.elems.iter().for_each(|part| self.bind(part, inside)),
            Pat::Tuple(tuple) => tuple.elems.iter().for_each(|part| self.bind(part, &Known::Unknown)),
            Pat::TupleStruct(variant) => {
                let is_holder = variant.path.is_ident("Some") || variant.path.is_ident("Ok");
                let inside = if is_holder { inside } else { &Known::Unknown };
                variant.elems.iter().for_each(|part| self.bind(part, inside));
            }
            Pat::Struct(structure) => {
                let of = self.place.of_path(&structure.path);
                for field in &structure.fields {
                    let known = self.field(&of, &field.member);
                    self.bind(&field.pat, &known);
                }
            }
            _ => {}
        }
    }

    fn field(&self, of: &Known, member: &Member) -> Known {
        let name = match member {
            Member::Named(name) => name.to_string(),
            Member::Unnamed(number) => number.index.to_string(),
        };
        match of {
            Known::Here(of) => {
                let fields = self.definitions.fields.get(of);
                fields.and_then(|fields| fields.get(&name)).cloned().unwrap_or(Known::Unknown)
            }
            Known::Elsewhere | Known::Holder(_) => Known::Elsewhere,
            Known::Unknown => Known::Unknown,
        }
    }

    /// Returns the type of the variable with a name, or `None` if there is no such variable.
    fn variable(&self, name: &str) -> Option<&Known> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name))
    }

    /// Returns what is known of the type of an expression.
    pub(super) fn known(&self, expression: &Expr) -> Known {
        match expression {
            Expr::Path(path) if path.path.is_ident("self") => match &self.place.owner {
                // A trait of the directory may be implemented for it.
                Known::Elsewhere => Known::Unknown,
                owner => owner.clone(),
            },
            Expr::Path(path) => {
                let name = path.path.get_ident().map(ToString::to_string);
                name.and_then(|name| self.variable(&name).cloned()).unwrap_or(Known::Unknown)
            }
            Expr::Struct(structure) => self.place.of_path(&structure.path),
            Expr::Field(field) => self.field(&self.known(&field.base), &field.member),
            Expr::Reference(reference) => self.known(&reference.expr),
            Expr::Paren(paren) => self.known(&paren.expr),
            Expr::Await(future) => self.known(&future.base),
            Expr::Unary(unary) if matches!(unary.op, syn::UnOp::Deref(_)) => self.known(&unary.expr),
            Expr::Try(tried) => self.held_by(&tried.expr),
            Expr::Index(index) => self.held_by(&index.expr),
            Expr::Call(call) => match &*call.func {
                Expr::Path(path) => output(self.path(&path.path)),
                _ => Known::Unknown,
            },
            Expr::MethodCall(call) => self.result(&call.receiver, &call.method.to_string()),
            _ => Known::Unknown,
        }
    }

    /// Returns what is known of the type that an expression holds.
    pub(super) fn held_by(&self, expression: &Expr) -> Known {
        if let Known::Holder(held) = self.known(expression) { *held } else { Known::Unknown }
    }

    /// Returns what is known of the result of a method.
    fn result(&self, receiver: &Expr, name: &str) -> Known {
        match self.known(receiver) {
            Known::Holder(held) if UNWRAPS.contains(&name) => *held,
            Known::Holder(held) if is_in(KEEPS, name) => Known::Holder(held),
            known if name == "clone" => known,
            _ => output(self.method(receiver, name)),
        }
    }

    /// Returns what is known of the parameter of a closure that is passed to a method.
    pub(super) fn passed_by(&self, receiver: &Expr, name: &str) -> Known {
        if is_in(PASSES, name) { self.held_by(receiver) } else { Known::Unknown }
    }

    // ---- what is reached ------------------------------------------------------------------------

    /// Returns what a call of a method reaches.
    pub(super) fn method(&self, receiver: &Expr, name: &str) -> Reached<'a> {
        let known = self.known(receiver);
        if let Known::Here(owner) = &known
            && let Some(members) = self.definitions.members.get(&(owner.clone(), name.to_owned()))
        {
            return one_of(members);
        }
        let Some(methods) = self.definitions.methods.get(name) else { return Reached::Nothing };
        match known {
            Known::Elsewhere | Known::Holder(_) => Reached::Nothing,
            _ if is_in(COMMON, name) || self.outside.contains(name) => Reached::Ambiguous,
            _ => one_of(methods),
        }
    }

    /// Returns what a path reaches that is called or handed on.
    pub(super) fn path(&self, path: &syn::Path) -> Reached<'a> {
        let words = words(path);
        let is_variable = words.len() == 1 && self.variable(&words[0]).is_some();
        if is_variable {
            return Reached::Nothing;
        }
        let named = match (&words[..], &self.place.owner) {
            ([own, name], Known::Here(owner)) if own == "Self" => Some(Named::Member(owner.clone(), name.clone())),
            _ => self.place.names.resolve(&self.place.module, &words, Space::Values),
        };
        let reached = match named {
            Some(Named::Function(module, name)) => {
                self.definitions.functions.get(&(module, name)).map(Reached::Function)
            }
            Some(Named::Member(owner, name)) => self.definitions.members.get(&(owner, name)).map(|all| one_of(all)),
            _ => None,
        };
        reached.unwrap_or(Reached::Nothing)
    }
}

/// Returns one of several functions, if all of them are in one file.
fn one_of(functions: &[Function]) -> Reached<'_> {
    only_file(functions).map_or(Reached::Ambiguous, Reached::Function)
}

fn output(reached: Reached<'_>) -> Known {
    if let Reached::Function(function) = reached { function.output.clone() } else { Known::Unknown }
}

/// Returns true if a name is in a list with spaces around each name.
fn is_in(names: &str, name: &str) -> bool {
    names.split_ascii_whitespace().any(|one| one == name)
}
