//! Finds the calls in the files of a directory, and the functions that they reach.
//!
//! A path, called or handed on (`receive::on_message(…)`, `map(Peer::is_open)`), reaches the
//! function that it names, unless it is the name of a variable. For a method call
//! `receiver.name(…)` the first rule that fits decides:
//!
//! 1. The receiver's type is one of the directory, and has the method: the call reaches the method.
//!    `self` always has a known type; `inference` says what else has.
//! 2. The receiver's type is one of elsewhere: the call reaches nothing in the directory.
//! 3. The directory defines methods of this name, and so do common types of the standard library or
//!    the rest of the crate: the call is ambiguous.
//! 4. One file of the directory defines methods of this name: the call reaches that file.
//! 5. Several files do: the call is ambiguous.
//!
//! Ambiguous calls are listed, and are not part of the graph. The arguments of macros are read as
//! expressions where they can be.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::parse::discouraged::Speculative;
use syn::parse::{ParseStream, Parser};
use syn::visit::{self, Visit};
use syn::{Expr, FnArg, Generics, ImplItem, Item, ItemImpl, ItemTrait, Pat, Signature, TraitItem, TraitItemFn};

use super::definitions::{Definitions, Function, shown};
use super::inference::{Inference, Reached};
use super::names::Names;
use super::source::Source;
use super::types::{Known, Place};

/// A call from file to file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// The number of the file with the call.
    pub(super) from: usize,
    /// The function with the call.
    pub(super) caller: String,
    pub(super) line: usize,
    /// The function that is called.
    pub(super) to: Function,
}

/// A call that may reach a method of the directory. It is not known which one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ambiguous {
    /// The number of the file with the call.
    pub(super) from: usize,
    pub(super) line: usize,
    /// The name of the method.
    pub(super) name: String,
}

/// What was found in all files.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The calls from a file to another one.
    pub(super) calls: Vec<Call>,
    pub(super) ambiguous: Vec<Ambiguous>,
    /// The number of calls of `expect` of each file.
    pub(super) expects: Vec<usize>,
}

/// Finds the calls in all files. `outside` has the names of the methods of the rest of the crate.
pub(super) fn find(sources: &[Source], names: &Names, definitions: &Definitions, outside: &BTreeSet<String>) -> Found {
    let mut found = Found { expects: vec![0; sources.len()], ..Found::default() };
    for (file, source) in sources.iter().enumerate() {
        let place = Place::new(names, &source.module);
        let inference = Inference { definitions, outside, place, scopes: Vec::new() };
        let mut reader = Reader { inference, file, caller: String::new(), found: &mut found };
        source.items.iter().for_each(|item| reader.visit_item(item));
    }
    found
}

/// Reads a file.
struct Reader<'a> {
    inference: Inference<'a>,
    file: usize,
    /// The function that is being read, with its type.
    caller: String,
    found: &'a mut Found,
}

impl Reader<'_> {
    fn scoped(&mut self, read: impl FnOnce(&mut Self)) {
        self.inference.scopes.push(BTreeMap::new());
        read(self);
        self.inference.scopes.pop();
    }

    /// Records what a call reaches.
    fn record(&mut self, reached: Reached<'_>, name: &str, line: usize) {
        match reached {
            Reached::Function(to) if to.file != self.file => {
                self.found.calls.push(Call { from: self.file, caller: self.caller.clone(), line, to: to.clone() });
            }
            Reached::Ambiguous => {
                self.found.ambiguous.push(Ambiguous { from: self.file, line, name: name.to_owned() });
            }
            Reached::Function(_) | Reached::Nothing => {}
        }
    }

    // ---- items ----------------------------------------------------------------------------------

    /// Reads items with another meaning of `Self`.
    fn with_owner(
        &mut self,
        generics: &Generics,
        owner: impl FnOnce(&Place<'_>) -> Known,
        read: impl FnOnce(&mut Self),
    ) {
        let mut place = self.inference.place.clone().with_generics(generics);
        place.owner = owner(&place);
        let before = std::mem::replace(&mut self.inference.place, place);
        read(self);
        self.inference.place = before;
    }

    fn implementation(&mut self, block: &ItemImpl) {
        let owner = shown(&block.self_ty);
        for part in &block.items {
            match part {
                ImplItem::Fn(part) => self.function(Some(&owner), &part.sig, &part.block),
                ImplItem::Const(part) => self.constant(&part.ident, &part.expr),
                _ => {}
            }
        }
    }

    /// Reads the functions of a trait that have a body.
    fn trait_definition(&mut self, block: &ItemTrait) {
        let owner = block.ident.to_string();
        for part in &block.items {
            if let TraitItem::Fn(TraitItemFn { sig, default: Some(body), .. }) = part {
                self.function(Some(&owner), sig, body);
            }
        }
    }

    /// Reads a function. Its parameters are variables in its body.
    fn function(&mut self, owner: Option<&str>, signature: &Signature, body: &syn::Block) {
        let name = signature.ident.to_string();
        let name = owner.map_or(name.clone(), |owner| format!("{owner}::{name}"));
        let caller = std::mem::replace(&mut self.caller, name);
        let same = self.inference.place.owner.clone();
        self.with_owner(
            &signature.generics,
            |_| same,
            |reader| {
                reader.scoped(|reader| {
                    for parameter in &signature.inputs {
                        if let FnArg::Typed(parameter) = parameter {
                            let known = reader.inference.place.known(&parameter.ty);
                            reader.inference.bind(&parameter.pat, &known);
                        }
                    }
                    reader.visit_block(body);
                });
            },
        );
        self.caller = caller;
    }

    fn constant(&mut self, name: &Ident, value: &Expr) {
        let caller = std::mem::replace(&mut self.caller, name.to_string());
        self.visit_expr(value);
        self.caller = caller;
    }

    // ---- macros ---------------------------------------------------------------------------------

    /// Reads the arguments of a macro: expressions, and tokens between them that are none.
    fn macro_arguments(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        while !input.is_empty() {
            let ahead = input.fork();
            match ahead.parse::<Expr>() {
                // An expression that takes no token would be read for ever.
                Ok(expression) if ahead.cursor() != input.cursor() => {
                    self.visit_expr(&expression);
                    input.advance_to(&ahead);
                }
                _ => {
                    if let TokenTree::Group(group) = input.parse()? {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads tokens that may be expressions.
    fn tokens(&mut self, tokens: TokenStream) {
        let read = |input: ParseStream<'_>| self.macro_arguments(input);
        // What cannot be read was skipped.
        drop(read.parse2(tokens));
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Fn(item) => self.function(None, &item.sig, &item.block),
            Item::Impl(item) => {
                self.with_owner(
                    &item.generics,
                    |place| place.known(&item.self_ty),
                    |reader| reader.implementation(item),
                );
            }
            Item::Trait(item) => {
                let owner = Known::Here((self.inference.place.module.clone(), item.ident.to_string()));
                self.with_owner(&item.generics, |_| owner, |reader| reader.trait_definition(item));
            }
            Item::Const(item) => self.constant(&item.ident, &item.expr),
            Item::Static(item) => self.constant(&item.ident, &item.expr),
            Item::Mod(item) => {
                self.inference.place.module.push(item.ident.to_string());
                visit::visit_item_mod(self, item);
                self.inference.place.module.pop();
            }
            // The rules of a macro are no calls, and neither are types and names.
            _ => {}
        }
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.scoped(|reader| visit::visit_block(reader, block));
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let mut known = Known::Unknown;
        if let Some(init) = &local.init {
            self.visit_expr(&init.expr);
            known = self.inference.known(&init.expr);
            if let Some((_, diverge)) = &init.diverge {
                self.visit_expr(diverge);
            }
        }
        self.inference.bind(&local.pat, &known);
    }

    fn visit_expr_let(&mut self, condition: &'ast syn::ExprLet) {
        self.visit_expr(&condition.expr);
        let known = self.inference.known(&condition.expr);
        self.inference.bind(&condition.pat, &known);
    }

    fn visit_expr_if(&mut self, choice: &'ast syn::ExprIf) {
        self.scoped(|reader| visit::visit_expr_if(reader, choice));
    }

    fn visit_expr_while(&mut self, repeated: &'ast syn::ExprWhile) {
        self.scoped(|reader| visit::visit_expr_while(reader, repeated));
    }

    fn visit_expr_for_loop(&mut self, repeated: &'ast syn::ExprForLoop) {
        self.visit_expr(&repeated.expr);
        let known = self.inference.held_by(&repeated.expr);
        self.scoped(|reader| {
            reader.inference.bind(&repeated.pat, &known);
            reader.visit_block(&repeated.body);
        });
    }

    fn visit_expr_match(&mut self, choice: &'ast syn::ExprMatch) {
        self.visit_expr(&choice.expr);
        let known = self.inference.known(&choice.expr);
        for arm in &choice.arms {
            self.scoped(|reader| {
                reader.inference.bind(&arm.pat, &known);
                if let Pat::Guard(guarded) = &arm.pat {
                    reader.visit_expr(&guarded.guard);
                }
                reader.visit_expr(&arm.body);
            });
        }
    }

    fn visit_expr_closure(&mut self, closure: &'ast syn::ExprClosure) {
        self.scoped(|reader| visit::visit_expr_closure(reader, closure));
    }

    fn visit_pat(&mut self, pattern: &'ast Pat) {
        self.inference.bind(pattern, &Known::Unknown);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let name = call.method.to_string();
        if name == "expect" && call.args.len() == 1 {
            self.found.expects[self.file] += 1;
        }
        self.record(self.inference.method(&call.receiver, &name), &name, call.method.span().start().line);
        self.visit_expr(&call.receiver);
        let passed = self.inference.passed_by(&call.receiver, &name);
        for argument in &call.args {
            match argument {
                Expr::Closure(closure) if closure.inputs.len() == 1 => self.scoped(|reader| {
                    reader.inference.bind(&closure.inputs[0], &passed);
                    reader.visit_expr(&closure.body);
                }),
                other => self.visit_expr(other),
            }
        }
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        if path.qself.is_none()
            && let Some(last) = path.path.segments.last()
        {
            let (name, line) = (last.ident.to_string(), last.ident.span().start().line);
            self.record(self.inference.path(&path.path), &name, line);
        }
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
    }
}
