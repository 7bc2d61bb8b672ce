//! What is taken for one address or several.

use crate::{Addr, Error};

/// One address or several: texts such as `tcp://storage-1:7001`, [`Addr`]s, and arrays and vectors
/// of them.
pub trait IntoAddrs {
    /// Returns the addresses.
    ///
    /// # Errors
    /// `Invalid` for a text that is no address.
    fn into_addrs(self) -> Result<Vec<Addr>, Error>;
}

impl IntoAddrs for &str {
    fn into_addrs(self) -> Result<Vec<Addr>, Error> {
        Ok(vec![self.parse()?])
    }
}

impl IntoAddrs for String {
    fn into_addrs(self) -> Result<Vec<Addr>, Error> {
        self.as_str().into_addrs()
    }
}

impl IntoAddrs for &String {
    fn into_addrs(self) -> Result<Vec<Addr>, Error> {
        self.as_str().into_addrs()
    }
}

impl IntoAddrs for Addr {
    fn into_addrs(self) -> Result<Vec<Addr>, Error> {
        Ok(vec![self])
    }
}

impl IntoAddrs for &Addr {
    fn into_addrs(self) -> Result<Vec<Addr>, Error> {
        Ok(vec![self.clone()])
    }
}

impl<A: IntoAddrs, const N: usize> IntoAddrs for [A; N] {
    fn into_addrs(self) -> Result<Vec<Addr>, Error> {
        all(self)
    }
}

impl<A: IntoAddrs> IntoAddrs for Vec<A> {
    fn into_addrs(self) -> Result<Vec<Addr>, Error> {
        all(self)
    }
}

impl<'a, A> IntoAddrs for &'a [A]
where
    &'a A: IntoAddrs,
{
    fn into_addrs(self) -> Result<Vec<Addr>, Error> {
        all(self)
    }
}

fn all<A: IntoAddrs>(addrs: impl IntoIterator<Item = A>) -> Result<Vec<Addr>, Error> {
    let mut parsed = Vec::new();
    for addr in addrs {
        parsed.extend(addr.into_addrs()?);
    }
    Ok(parsed)
}
