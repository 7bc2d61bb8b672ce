//! Gives the shared library its name for the loader, and its symbols their version.
//!
//! rustc hands the linker a list of symbols of its own. lld, which it uses on this target, takes
//! the version from the directives in the objects then, if a map declares it. The linker of GNU
//! refuses two lists, so elsewhere the symbols have no version.

use std::env;

fn main() {
    let is = |key: &str, value: &str| env::var(key).is_ok_and(|found| found == value);
    if !is("CARGO_CFG_TARGET_OS", "linux") {
        return;
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libbmi.so.0");
    if is("CARGO_CFG_TARGET_ARCH", "x86_64") {
        let map = concat!(env!("CARGO_MANIFEST_DIR"), "/bmi.map");
        println!("cargo:rerun-if-changed={map}");
        println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={map}");
    }
}
