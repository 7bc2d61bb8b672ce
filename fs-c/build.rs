//! Gives the shared library its name for the loader, and its symbols their version.

fn main() {
    let map = concat!(env!("CARGO_MANIFEST_DIR"), "/pvfs.map");
    println!("cargo:rerun-if-changed={map}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpvfs.so.0");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={map}");
}
