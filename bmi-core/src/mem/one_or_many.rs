//! A short list that needs no allocation while it has one entry, which is the usual case on the
//! data path. Clones share the entries that are on the heap.

use std::sync::Arc;

/// No entry, one entry inline, or several on the heap.
#[derive(Clone, Debug)]
pub(crate) enum OneOrMany<V> {
    None,
    One(V),
    Many(Arc<[V]>),
}

impl<V> OneOrMany<V> {
    pub(crate) fn as_slice(&self) -> &[V] {
        match self {
            OneOrMany::None => &[],
            OneOrMany::One(entry) => std::slice::from_ref(entry),
            OneOrMany::Many(entries) => entries,
        }
    }

    /// Collects the entries. Stops at the first that fails, and returns its error.
    pub(crate) fn try_collect<E>(mut entries: impl Iterator<Item = Result<V, E>>) -> Result<OneOrMany<V>, E> {
        let Some(first) = entries.next().transpose()? else { return Ok(OneOrMany::None) };
        let Some(second) = entries.next().transpose()? else { return Ok(OneOrMany::One(first)) };
        let mut many = vec![first, second];
        for entry in entries {
            many.push(entry?);
        }
        Ok(OneOrMany::Many(many.into()))
    }
}

impl<V> FromIterator<V> for OneOrMany<V> {
    fn from_iter<I: IntoIterator<Item = V>>(entries: I) -> OneOrMany<V> {
        let collected = OneOrMany::try_collect(entries.into_iter().map(Ok::<V, std::convert::Infallible>));
        collected.unwrap_or_else(|never| match never {})
    }
}
