//! Runs all test programs, several at a time, each with its output in one piece.
//!
//! `cargo test` runs one program after the other. Most tests wait for other programs and for the disk half of the time, so the processors
//! idle while the last tests of a program end. What measures time runs by itself at the end.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

/// What stands for the package of examples in documentation, which are no program of their own.
const DOCUMENTATION: &str = "examples in documentation";
/// What stands for the package of the benchmark on tiny disks.
const BENCHMARK: &str = "benchmark on tiny disks";
/// What the harness of tests asks how many it may run at a time.
const THREADS: &str = "RUST_TEST_THREADS";
/// Lines of what a failed program said that the summary repeats.
const COMPLAINT_LINES: usize = 150;
/// These take longest, so they begin first: package and program. The first takes as long as all others, and runs twice as many tests at a time.
const LONG: [(&str, &str); 8] = [
    ("leandisk-cli", "it"),
    ("leandisk-filesystem", "it"),
    (BENCHMARK, ""),
    ("leandisk-crash", "it"),
    (DOCUMENTATION, ""),
    ("leandisk-image", "it"),
    ("leandisk-serve", "it"),
    ("leandisk-verify", "it"),
];
/// Where a distribution has its programs.
const DISTRIBUTION: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
/// These read whole disks into memory again and again, and do not measure how much of it is taken: what they let go is kept for the next one,
/// instead of asking the kernel for other pages each time (mallopt(3)). Not for those whose threads allocate much: they would wait for each other.
const WITH_DISKS_IN_MEMORY: [(&str, &str); 1] = [("leandisk-filesystem", "it")];
const KEEP_MEMORY: &str =
    "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296:glibc.malloc.arena_max=1";
/// These say nothing of tests: what they try, they try in a process of its own kind.
const SILENT: [(&str, &str); 2] = [("leandisk-os", "confined"), (BENCHMARK, "")];
/// These measure time, so they run by themselves.
const ALONE: [(&str, &str); 2] = [("leandisk-os", "storage_timing"), ("leandisk-report", "browser")];

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Programs that run at a time
    #[arg(long, default_value_t = 3)]
    programs: usize,
    /// What starts a program, and gets it as its arguments
    #[arg(long)]
    runner: Option<PathBuf>,
    /// The program of which the benchmark on tiny disks runs beside the tests
    #[arg(long, value_name = "PROGRAM")]
    benchmark: Option<PathBuf>,
    /// For `cargo test`
    #[arg(last = true)]
    cargo: Vec<String>,
}

/// What runs, and says whether it passed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    package: String,
    name: String,
    /// Of the package, where it runs.
    folder: PathBuf,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Tests(PathBuf),
    /// Examples in documentation, which cargo runs.
    Documentation,
    /// The benchmark on tiny disks, of this program.
    Benchmark(PathBuf),
}

impl Program {
    fn is_of(&self, names: &[(&str, &str)]) -> Option<usize> {
        names.iter().position(|(package, name)| self.package == *package && self.name == *name)
    }

    fn command(&self, arguments: &Arguments) -> Command {
        match (&self.kind, &arguments.runner) {
            (Kind::Documentation, _) => cargo(arguments, &["--doc"]),
            (Kind::Benchmark(program), _) => benchmark(program),
            (Kind::Tests(path), runner) => {
                let mut command = Command::new(runner.as_ref().unwrap_or(path));
                command.args(runner.is_some().then_some(path));
                // As cargo does for a program. Cargo itself would take it for a change, and build again what was built without it.
                command.env("CARGO_MANIFEST_DIR", &self.folder);
                command
            }
        }
    }
}

/// How a program ended.
struct Ended {
    program: Program,
    is_success: bool,
    took: Duration,
    output: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let began = Instant::now();
    let programs = built(arguments)?;
    let (alone, mut beside): (Vec<_>, Vec<_>) =
        programs.into_iter().partition(|program| program.is_of(&ALONE).is_some());
    beside.push(here(DOCUMENTATION, Kind::Documentation)?);
    if let Some(program) = &arguments.benchmark {
        beside.push(here(BENCHMARK, Kind::Benchmark(program.clone()))?);
    }
    let mut ended = run_all(ordered(beside), arguments.programs, arguments)?;
    ended.extend(run_all(alone, 1, arguments)?);
    summarize(&ended, began.elapsed())
}

/// What belongs to no package.
fn here(what: &str, kind: Kind) -> Result<Program> {
    Ok(Program { package: what.into(), name: String::new(), folder: env::current_dir()?, kind })
}

/// This program, as the benchmark of `program`.
fn benchmark(program: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench", "--smoke", "--program"]).arg(program);
    command
}

fn cargo(arguments: &Arguments, more: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg("test").args(&arguments.cargo).args(more);
    command
}

/// Builds all test programs, and finds them in what cargo says of it.
fn built(arguments: &Arguments) -> Result<Vec<Program>> {
    let mut command = cargo(arguments, &["--no-run", "--message-format", "json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output().context("start cargo")?;
    ensure!(output.status.success(), "cargo built no tests: {}", output.status);
    let messages = String::from_utf8(output.stdout)?;
    let programs: Vec<_> = messages.lines().map(program).collect::<Result<_>>()?;
    let programs: Vec<_> = programs.into_iter().flatten().collect();
    ensure!(!programs.is_empty(), "there is no test");
    Ok(programs)
}

/// The test program that this line of cargo's is of, if it is of one.
fn program(line: &str) -> Result<Option<Program>> {
    let message: Value = serde_json::from_str(line).with_context(|| format!("what cargo says: {line}"))?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let Some(path) = message["executable"].as_str().filter(|_| is_test) else { return Ok(None) };
    let folder = message["manifest_path"].as_str().map(Path::new).and_then(Path::parent);
    let folder = folder.context("a package without a folder")?.to_owned();
    let name = message["target"]["name"].as_str().context("a program without a name")?.to_owned();
    Ok(Some(Program { package: package(&message)?, name, folder, kind: Kind::Tests(path.into()) }))
}

/// The name of a message's package: behind the last `#` of `path+file:///FOLDER#NAME@VERSION`, or the folder's name, if that is the same.
fn package(message: &Value) -> Result<String> {
    let id = message["package_id"].as_str().context("a program without a package")?;
    let (folder, name) = id.rsplit_once('#').context("a package without a version")?;
    let name = name.split_once('@').map(|(name, _)| name);
    Ok(name.or_else(|| folder.rsplit('/').next()).unwrap_or(folder).to_owned())
}

/// The long ones first, in their order.
fn ordered(mut programs: Vec<Program>) -> VecDeque<Program> {
    programs.sort_by_key(|program| program.is_of(&LONG).unwrap_or(LONG.len()));
    programs.into()
}

/// Runs all programs, `count` at a time, and prints what each said when it has ended.
fn run_all(
    programs: impl Into<VecDeque<Program>>,
    count: usize,
    arguments: &Arguments,
) -> Result<Vec<Ended>> {
    let (queue, ended) = (Mutex::new(programs.into()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..count).map(|_| scope.spawn(|| work(&queue, &ended, arguments))).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| bail!("a worker panicked")))
    })?;
    Ok(ended.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn work(queue: &Mutex<VecDeque<Program>>, ended: &Mutex<Vec<Ended>>, arguments: &Arguments) -> Result<()> {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(program) = next else { return Ok(()) };
        let end = run_one(program, arguments)?;
        let mut all = ended.lock().unwrap_or_else(PoisonError::into_inner);
        println!("\n     Running {} {}\n{}", end.program.package, end.program.name, end.output);
        all.push(end);
    }
}

fn run_one(program: Program, arguments: &Arguments) -> Result<Ended> {
    let began = Instant::now();
    let mut output: File = tempfile::tempfile()?;
    let mut command = program.command(arguments);
    command.current_dir(&program.folder);
    if program.kind != Kind::Documentation {
        command.env("PATH", tools_of_distribution_first(&env::var_os("PATH").unwrap_or_default())?);
    }
    if let (Some(0), Some(threads)) = (program.is_of(&LONG), threads()) {
        command.env(THREADS, (2 * threads).to_string());
    }
    if program.is_of(&WITH_DISKS_IN_MEMORY).is_some() {
        command.env("GLIBC_TUNABLES", KEEP_MEMORY);
    }
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
    let status = command.status().with_context(|| format!("start {} {}", program.package, program.name))?;
    output.rewind()?;
    let mut text = Vec::new();
    output.read_to_end(&mut text)?;
    let output = String::from_utf8_lossy(&text).into_owned();
    Ok(Ended { program, is_success: status.success(), took: began.elapsed(), output })
}

/// The tools that the gate installs are the distribution's. What somebody has before them in the path under the same name, as a version manager
/// puts scripts that look for the program that is meant, may be another one, and takes its time at each of thousands of calls.
fn tools_of_distribution_first(path: &OsStr) -> Result<OsString> {
    let folders = DISTRIBUTION.iter().map(PathBuf::from).chain(env::split_paths(path));
    env::join_paths(folders).context("a folder in PATH has a colon in its name")
}

/// Tests that run at a time in one program, where the caller says so.
fn threads() -> Option<usize> {
    env::var(THREADS).ok()?.parse().ok()
}

/// How many tests a program's last lines say had this outcome.
fn counted(output: &str, outcome: &str) -> usize {
    let of_line = |line: &str| -> Option<usize> {
        let rest = line.strip_prefix("test result: ")?;
        let part = rest.split([';', '.']).find(|part| part.trim_end().ends_with(outcome))?;
        part.split_whitespace().next()?.parse().ok()
    };
    output.lines().filter_map(of_line).sum()
}

/// What a program's failed tests said, as the harness repeats it at the end, without backtraces; of one that ended otherwise, its last lines.
fn complaint(output: &str) -> String {
    let said = output.split_once("\nfailures:\n").map(|(_, said)| said);
    let said = said.map(|said| said.split_once("\nfailures:\n").map_or(said, |(said, _)| said));
    let mut is_in_backtrace = false;
    let is_told = |line: &&str| {
        is_in_backtrace = (is_in_backtrace || *line == "stack backtrace:") && !line.starts_with("note: ");
        !is_in_backtrace
    };
    let lines: Vec<_> = said.unwrap_or(output).trim().lines().filter(is_told).collect();
    let shown = match said {
        Some(_) => &lines[..lines.len().min(COMPLAINT_LINES)],
        None => &lines[lines.len().saturating_sub(COMPLAINT_LINES)..],
    };
    shown.join("\n")
}

/// Says how long each program took, and fails if one has failed, or says nothing of its tests.
fn summarize(ended: &[Ended], took: Duration) -> Result<()> {
    for end in ended {
        let Ended { program, output, .. } = end;
        let (passed, ignored) = (counted(output, "passed"), counted(output, "ignored"));
        println!(
            "{:>5} s {passed:>5} passed {ignored:>3} ignored  {} {}",
            end.took.as_secs(),
            program.package,
            program.name
        );
    }
    let passed: usize = ended.iter().map(|end| counted(&end.output, "passed")).sum();
    println!("{passed} tests passed in {} s", took.as_secs());
    let has_tested =
        |end: &Ended| end.program.is_of(&SILENT).is_some() || end.output.contains("test result: ");
    let failed: Vec<_> = ended.iter().filter(|end| !end.is_success || !has_tested(end)).collect();
    for end in &failed {
        println!("FAILED: {} {}", end.program.package, end.program.name);
        let names = end.output.lines().filter(|line| line.ends_with("... FAILED"));
        names.for_each(|line| println!("  {line}"));
        println!("{}", complaint(&end.output));
    }
    ensure!(failed.is_empty(), "{} of {} programs failed", failed.len(), ended.len());
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn line(reason: &str, is_test: bool, executable: &str) -> String {
        format!(
            r#"{{"reason":"{reason}","package_id":"path+file:///a/crates/image#leandisk-image@0.1.0","manifest_path":"/a/crates/image/Cargo.toml",
            "target":{{"name":"it"}},"profile":{{"test":{is_test}}},"executable":{executable}}}"#
        )
    }

    fn named(package: &str, name: &str) -> Program {
        Program {
            package: package.into(),
            name: name.into(),
            folder: "/".into(),
            kind: Kind::Tests("/bin/true".into()),
        }
    }

    fn ended(is_success: bool, output: &str) -> Ended {
        let program = named("leandisk", "it");
        Ended { program, is_success, took: Duration::ZERO, output: output.into() }
    }

    #[test]
    fn programs_of_tests_are_found_in_what_cargo_says() {
        let found = program(&line("compiler-artifact", true, r#""/t/it-1""#)).unwrap().unwrap();
        assert_eq!((found.package.as_str(), found.name.as_str()), ("leandisk-image", "it"));
        assert_eq!(found.folder, Path::new("/a/crates/image"));
        assert_eq!(found.kind, Kind::Tests("/t/it-1".into()));
        for other in [
            line("compiler-artifact", true, "null"),
            line("compiler-artifact", false, r#""/t/leandisk""#),
            line("build-finished", true, r#""/t/it-1""#),
        ] {
            assert_eq!(program(&other).unwrap(), None);
        }
        program("what is no JSON").unwrap_err();
    }

    #[test]
    fn a_package_named_as_its_folder_is_found() {
        let of = |id: &str| package(&serde_json::json!({ "package_id": id })).unwrap();
        assert_eq!(of("path+file:///a/crates/leandisk#0.1.0"), "leandisk");
        assert_eq!(of("path+file:///a/crates/cli#leandisk-cli@0.1.0"), "leandisk-cli");
    }

    #[test]
    fn long_ones_begin_first() {
        let programs =
            vec![named("leandisk", "leandisk"), named("leandisk-crash", "it"), named("leandisk-cli", "it")];
        let names: Vec<_> = ordered(programs).into_iter().map(|program| program.package).collect();
        assert_eq!(names, ["leandisk-cli", "leandisk-crash", "leandisk"]);
    }

    #[test]
    fn only_programs_of_tests_are_told_the_folder_of_their_package() {
        let folder = |kind, runner: Option<&str>| {
            let runner = runner.map(PathBuf::from);
            let arguments = Arguments { programs: 1, runner, benchmark: None, cargo: Vec::new() };
            let command = Program { kind, ..named("a", "it") }.command(&arguments);
            let program = command.get_program().to_owned();
            let told = command.get_envs().find(|(name, _)| *name == "CARGO_MANIFEST_DIR");
            (program, told.and_then(|(_, folder)| Some(folder?.to_owned())))
        };
        for (runner, program) in [(None, "/a/it"), (Some("/a/runner"), "/a/runner")] {
            assert_eq!(folder(Kind::Tests("/a/it".into()), runner), (program.into(), Some("/".into())));
        }
        assert_eq!(folder(Kind::Documentation, None).1, None);
        assert_eq!(folder(Kind::Benchmark("/a/b".into()), None).1, None);
    }

    #[test]
    fn the_distributions_tools_are_found_first() {
        let found = tools_of_distribution_first(OsStr::new("/home/a/.shims:/usr/bin")).unwrap();
        assert_eq!(found, "/usr/sbin:/usr/bin:/sbin:/bin:/home/a/.shims:/usr/bin");
    }

    #[test]
    fn all_of_them_run_and_each_ends_as_it_ends() {
        let arguments = Arguments { programs: 2, runner: None, benchmark: None, cargo: Vec::new() };
        let of = |path: &str| Program { kind: Kind::Tests(path.into()), ..named(path, "it") };
        let queue: Vec<_> = ["/bin/true", "/bin/false", "/bin/true"].map(of).into();
        let mut ends = run_all(queue, 2, &arguments).unwrap();
        ends.sort_by_key(|end| end.program.package.clone());
        let ends: Vec<_> = ends.iter().map(|end| (end.program.package.as_str(), end.is_success)).collect();
        assert_eq!(ends, [("/bin/false", false), ("/bin/true", true), ("/bin/true", true)]);
    }

    #[test]
    fn the_summary_repeats_why_a_test_failed() {
        let said = "running 1 test\ntest a ... FAILED\n\nfailures:\n\n---- a stdout ----\nthe reason\nstack backtrace:\n   0: main\nnote: more\n\nfailures:\n    a\n\ntest result: FAILED.";
        assert_eq!(complaint(said), "---- a stdout ----\nthe reason\nnote: more");
        let many: String = (0..=COMPLAINT_LINES).map(|index| format!("line {index}\n")).collect();
        let last = complaint(&format!("{many}killed"));
        assert!(last.starts_with("line 2\n") && last.ends_with("\nkilled"), "{last}");
    }

    #[test]
    fn a_failed_program_and_a_silent_one_fail() {
        let said =
            "test result: ok. 7 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        assert_eq!((counted(said, "passed"), counted(said, "ignored")), (7, 2));
        assert_eq!(counted(&format!("{said}{said}"), "passed"), 14);
        summarize(&[ended(true, said)], Duration::ZERO).unwrap();
        summarize(&[ended(true, said), ended(false, said)], Duration::ZERO).unwrap_err();
        summarize(&[ended(true, "")], Duration::ZERO).unwrap_err();
    }
}
