//! Developer tasks. `bench` compares Leandisk with the tools that people use today; `kill` shows that a change in place
//! survives being killed.

#![allow(clippy::print_stdout)]

mod bench;
mod kill;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(about)]
enum Task {
    /// Compare times, reads and memory with qemu-img, ntfsclone and partclone, on disks made for it
    Bench(bench::Arguments),
    /// Kill changes in place at random moments, recover, and compare every file
    Kill(kill::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Task::parse() {
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Kill(arguments) => kill::run(&arguments),
    }
}
