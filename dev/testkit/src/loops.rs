//! Files, or parts of them, as block devices of the kernel, which needs root.

use std::path::Path;
use std::process::Command;

use crate::tools::run;

/// A part of a file.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The file.
    pub file: &'a Path,
    /// Where in it the part begins.
    pub start_bytes: u64,
    /// How long it is; 0 for all that follows.
    pub len_bytes: u64,
}

/// Block devices, as long as the value lives. What they are devices of is forgotten with them.
pub struct Loops {
    names: Vec<String>,
}

impl Loops {
    /// Attaches a device to each part.
    pub fn attach(parts: &[Part<'_>]) -> Self {
        let mut loops = Self { names: Vec::new() };
        for Part { file, start_bytes, len_bytes } in parts {
            let (start, len) = (start_bytes.to_string(), len_bytes.to_string());
            let args = ["--show", "-f", "-o", &start, "--sizelimit", &len, file.to_str().unwrap()];
            loops.names.push(run("losetup", &args).trim().to_owned());
        }
        loops
    }

    /// Names of the devices, in the order of the parts.
    pub fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for name in &self.names {
            // That it was no device of a Btrfs is no fault.
            let _ = Command::new("btrfs").args(["device", "scan", "--forget", name]).output();
            let detached = Command::new("losetup").args(["-d", name]).status();
            if !detached.is_ok_and(|status| status.success()) && !std::thread::panicking() {
                panic!("{name} is not detached");
            }
        }
    }
}
