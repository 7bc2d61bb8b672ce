//! What is made for other machines: the libraries for programs in C (`libraries`), and the Debian
//! package (`deb`).

pub(crate) mod deb;
mod libraries;

pub(crate) use libraries::main;
