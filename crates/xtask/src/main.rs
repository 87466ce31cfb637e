//! Developer tasks. `bench` compares Leandisk with the tools that people use today.

#![allow(clippy::print_stdout)]

mod bench;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(about)]
enum Task {
    /// Compare times, reads and memory with qemu-img, ntfsclone and partclone, on disks made for it
    Bench(bench::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Task::parse() {
        Task::Bench(arguments) => bench::run(&arguments),
    }
}
