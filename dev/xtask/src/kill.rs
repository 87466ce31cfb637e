//! `kill -9` at random moments of a change in place or a `compact`, then recovery, and every file hashed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::bench::{Inputs, Scale, shell_as_root};

/// Format by Leandisk's name and by QEMU's.
const FORMATS: [(&str, &str); 6] =
    [("raw", "raw"), ("qcow2", "qcow2"), ("vhdx", "vhdx"), ("vhd", "vpc"), ("vmdk", "vmdk"), ("vdi", "vdi")];

/// What is killed: the command with its options.
const CHANGES: [&[&str]; 4] = [
    &["defrag", "--goal", "files"],
    &["defrag", "--goal", "free"],
    &["defrag", "--goal", "pack"],
    &["compact", "--move", "always"],
];

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// How often
    #[arg(long, default_value_t = 1000)]
    runs: u64,
    /// Where to begin: a run's number says what it does
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Size of the disks, as a share of those of the benchmark
    #[arg(long, default_value_t = 0.03)]
    scale: f64,
    /// The program
    #[arg(long, default_value = "target/release/leandisk")]
    program: PathBuf,
    /// Where the disks are put
    #[arg(long, default_value = "target/kill")]
    dir: PathBuf,
}

/// A disk, and what its files must be.
struct Base {
    disk: PathBuf,
    format: (&'static str, &'static str),
    tree: String,
    /// How long each change takes if it is let be.
    whole: [Duration; CHANGES.len()],
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    fs::create_dir_all(&arguments.dir)?;
    let program = arguments.program.canonicalize().context("the program is not built")?;
    let bases = bases(arguments, &program)?;
    let (mut killed, mut recovered) = (0, 0);
    for run in arguments.first..arguments.first + arguments.runs {
        // Multiplied by an odd constant: the bits of a counter, well mixed and the same in each session.
        let mixed =
            run.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let base = &bases[usize::try_from(run)? % bases.len()];
        let change = usize::try_from(run)? / bases.len() % CHANGES.len();
        let outcome = kill_once(arguments, &program, base, change, mixed >> 11)
            .with_context(|| format!("run {run}: {} {}", base.disk.display(), CHANGES[change].join(" ")))?;
        killed += u64::from(outcome.was_killed);
        recovered += u64::from(outcome.had_journal);
        if (run + 1) % 20 == 0 {
            eprintln!(
                "{} runs, {killed} killed, {recovered} with a journal: nothing lost",
                run + 1 - arguments.first
            );
        }
    }
    println!(
        "{} runs, {killed} killed before the end, {recovered} with a journal: nothing lost",
        arguments.runs
    );
    ensure!(killed > arguments.runs / 4, "too few runs were killed in the middle to show anything");
    Ok(())
}

fn bases(arguments: &Arguments, program: &Path) -> Result<Vec<Base>> {
    let inputs = Inputs::new(&arguments.dir, Scale(arguments.scale));
    let mut bases = Vec::new();
    for kind in ["ntfs", "ext4"] {
        let input = inputs.aged_volume(kind, 85);
        input.prepare()?;
        let tree = tree(&input.path)?;
        for format in FORMATS {
            let disk = arguments.dir.join(format!("base-{kind}.{}", format.0));
            // A VHD is as long as its geometry says, unless it is told to be as long as the volume.
            shell_as_root(
                "options=(); [ \"$1\" != vpc ] || options=(-o force_size=on); \
                 qemu-img convert -f raw -O \"$1\" \"${options[@]}\" \"$2\" \"$3\"",
                &[format.1, text(&input.path)?, text(&disk)?],
            )?;
            let mut base = Base { disk, format, tree: tree.clone(), whole: [Duration::ZERO; CHANGES.len()] };
            for (change, whole) in base.whole.iter_mut().enumerate() {
                let copy = copy(arguments, &base.disk)?;
                let started = Instant::now();
                let status = command(program, &copy, format.0, CHANGES[change]).status()?;
                ensure!(status.success(), "{} of {}: {status}", CHANGES[change][0], base.disk.display());
                *whole = started.elapsed();
            }
            bases.push(base);
        }
    }
    Ok(bases)
}

struct Outcome {
    was_killed: bool,
    had_journal: bool,
}

fn kill_once(
    arguments: &Arguments,
    program: &Path,
    base: &Base,
    change: usize,
    random: u64,
) -> Result<Outcome> {
    let disk = copy(arguments, &base.disk)?;
    let mut child = command(program, &disk, base.format.0, CHANGES[change]).spawn()?;
    let whole = u64::try_from(base.whole[change].as_micros())?.max(2);
    // A compact looks around for most of its time, and then changes something.
    let from = if CHANGES[change][0] == "compact" { whole / 2 } else { 0 };
    std::thread::sleep(Duration::from_micros(from + random % (whole - from)));
    child.kill()?;
    let was_killed = !child.wait()?.success();
    let journal =
        disk.with_file_name(format!(".{}.leandisk-journal", disk.file_name().unwrap_or_default().display()));
    let had_journal = journal.exists();
    let output = Command::new(program).args(["recover", text(&disk)?, "-f", base.format.0]).output()?;
    ensure!(output.status.success(), "recover: {}", String::from_utf8_lossy(&output.stderr));
    ensure!(!journal.exists(), "the journal is left");
    check(&disk, base)?;
    Ok(Outcome { was_killed, had_journal })
}

/// Has real tools look at the disk, and compares every file.
fn check(disk: &Path, base: &Base) -> Result<()> {
    let raw = match base.format.0 {
        "raw" => disk.to_owned(),
        _ => {
            let raw = disk.with_extension("check");
            if base.format.0 != "vhd" {
                shell_as_root("qemu-img check -q -f \"$1\" \"$2\"", &[base.format.1, text(disk)?])?;
            }
            shell_as_root(
                "qemu-img convert -f \"$1\" -O raw \"$2\" \"$3\"",
                &[base.format.1, text(disk)?, text(&raw)?],
            )?;
            raw
        }
    };
    let found = tree(&raw)?;
    ensure!(found == base.tree, "files differ:\n{}", first_difference(&base.tree, &found));
    Ok(())
}

/// Checks a volume with its own tools, and lists every file with its hash, size, mode, owner, times and links.
fn tree(raw: &Path) -> Result<String> {
    shell_as_root(
        r#"
        mnt=$(mktemp -d)
        trap '! mountpoint -q "$mnt" || umount "$mnt"; rmdir "$mnt"' EXIT
        if ntfsinfo -m "$1" > /dev/null 2>&1; then
            ntfsfix -n "$1" > /dev/null
            ntfsresize --info --force --no-progress-bar "$1" > /dev/null
            mount -t ntfs-3g -o ro "$1" "$mnt"
        else
            e2fsck -fn "$1" > /dev/null 2>&1
            mount -o ro,noload,loop "$1" "$mnt"
        fi
        cd "$mnt"
        find . -printf '%p %y %s %m %U:%G %T@ %n %l\n' | sort
        find . -type f -print0 | sort -z | xargs -0 sha256sum
        cd /
        "#,
        &[text(raw)?],
    )
}

fn first_difference(expected: &str, found: &str) -> String {
    let pair = expected.lines().zip(found.lines()).find(|(expected, found)| expected != found);
    pair.map_or_else(
        || "one has more files".into(),
        |(expected, found)| format!("expected {expected}\nfound    {found}"),
    )
}

fn copy(arguments: &Arguments, base: &Path) -> Result<PathBuf> {
    let name = format!("disk.{}", base.extension().unwrap_or_default().display());
    let copy = arguments.dir.join(name);
    shell_as_root("cp --reflink=auto --sparse=always \"$1\" \"$2\"", &[text(base)?, text(&copy)?])?;
    Ok(copy)
}

fn command(program: &Path, disk: &Path, format: &str, change: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg(change[0]).arg(disk).args(&change[1..]).args(["-f", format, "--progress", "none"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path in UTF-8")
}
