//! The name by which programs find the library when they run: it changes when they would have to be built anew.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libleandisk.so.0");
}
