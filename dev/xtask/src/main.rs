//! Developer tasks. `bench` compares Leandisk with the tools that people use today; `kill` shows that a change in place
//! survives being killed, `crash` that it survives power cuts, `durability` that disks in use lose nothing that was flushed;
//! `crates` holds the layers of the code against ARCHITECTURE.md; `test` runs all tests.

#![allow(clippy::print_stdout)]

mod bench;
mod crash;
mod crates;
mod durability;
mod kill;
mod modules;
mod overhead;
mod test_programs;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(about)]
enum Task {
    /// Compare times, reads and memory with qemu-img, ntfsclone and partclone, on disks made for it
    Bench(bench::Arguments),
    /// Cut the power at every write of changes in place on simulated disks, recover, and compare every byte
    Crash(crash::Arguments),
    /// Hold the crates against the order in ARCHITECTURE.md, and draw them there
    Crates(crates::Arguments),
    /// Ask disks in use random things, with restarts, kills and power cuts between, and compare with a log
    Durability(durability::Arguments),
    /// Kill changes in place at random moments, recover, and compare every file
    Kill(kill::Arguments),
    /// What parts of serving take of the processors, for `bench`
    #[command(hide = true)]
    Overhead(overhead::Arguments),
    /// Run all test programs, several at a time
    Test(test_programs::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Task::parse() {
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Crash(arguments) => crash::run(&arguments),
        Task::Crates(arguments) => crates::run(&arguments),
        Task::Durability(arguments) => durability::run(&arguments),
        Task::Kill(arguments) => kill::run(&arguments),
        Task::Overhead(arguments) => overhead::run(&arguments),
        Task::Test(arguments) => test_programs::run(&arguments),
    }
}
