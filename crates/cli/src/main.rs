//! The `leandisk` program.
fn main() {}
