//! Running one contender once, on a cold cache.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// One way to do a case's work.
pub(super) struct Contender {
    pub(super) name: String,
    /// The program and its arguments.
    pub(super) command: Vec<String>,
    /// What it makes; removed before each run.
    pub(super) target: PathBuf,
    /// Whether it takes root, as loop devices do.
    pub(super) as_root: bool,
    /// What is done before and after as root, untimed, with the target's path as `$1`: to make a copy that is changed in
    /// place, and to say as JSON what became of it.
    pub(super) around: Option<Around>,
}

/// See [`Contender::around`].
#[derive(Clone)]
pub(super) struct Around {
    pub(super) before: String,
    pub(super) after: String,
    /// Who says which files are fragmented before, so that reading them is measured before and after.
    pub(super) reading_by: Option<String>,
}

/// How long it takes to read the files that were fragmented before, through a mount and on a cold cache.
pub(super) struct Reading {
    pub(super) before_seconds: f64,
    pub(super) after_seconds: f64,
}

/// What one run took.
pub(super) struct Sample {
    pub(super) seconds: f64,
    /// What Leandisk says that it read; 0 of others.
    pub(super) reported_read_bytes: f64,
    /// What the process really had to fetch from the disk.
    pub(super) device_read_bytes: f64,
    pub(super) peak_memory_bytes: f64,
    /// What the target takes on the host.
    pub(super) target_bytes: f64,
    /// What was written to the device under the target, by anyone, until all of it was there.
    pub(super) device_written_bytes: f64,
    /// What the run printed, if that was JSON.
    pub(super) printed: Value,
    /// What was found out after it.
    pub(super) found: Value,
    pub(super) reading: Option<Reading>,
}

/// What one run has in the page cache, about: more takes longer than it helps. Left out where there is not twice as much.
const TAKEN_BACK_BYTES: usize = 2 << 30;
/// Memory comes in pages of this size at the least.
const PAGE_BYTES: usize = 4096;

/// What is in memory when a run begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cache {
    /// Nothing of any disk.
    Cold,
    /// Whatever is there: for a run whose figures nobody reads, beside which others work.
    AsItIs,
}

impl Contender {
    /// Runs it to its end.
    pub(super) fn run(&self, cache: Cache) -> Result<Sample> {
        self.clean()?;
        let target = self.target.display().to_string();
        if let Some(around) = &self.around {
            shell_as_root(&around.before, &[&target])?;
        }
        let reading_by = self.around.as_ref().and_then(|around| around.reading_by.as_deref());
        let fragmented = reading_by.map(|program| fragmented_files(program, &target)).transpose()?;
        let before_seconds = fragmented.as_ref().map(|list| read_all(&target, list)).transpose()?;
        if cache == Cache::Cold {
            drop_caches()?;
            take_back_memory();
        }
        let written_before = device_written_bytes(&self.target)?;
        let usage = self.target.with_extension("usage");
        let mut words = vec!["/usr/bin/time".to_owned(), "-f".into(), "%M %I".into(), "-o".into()];
        words.push(usage.display().to_string());
        words.extend(self.command.iter().cloned());
        let mut command = if self.as_root { root_command(&words[0]) } else { Command::new(&words[0]) };
        command.args(&words[1..]).stdin(Stdio::null());
        let started = Instant::now();
        let output = command.output().with_context(|| words.join(" "))?;
        // For everybody: a copy that a power cut takes away is none.
        if output.status.success() && self.target.is_file() {
            shell_as_root("sync -d \"$1\"", &[&target])?;
        }
        let seconds = started.elapsed().as_secs_f64();
        ensure!(
            output.status.success(),
            "{}: {}\n{}",
            words.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        let (peak_kib, blocks) = parse_usage(&fs::read_to_string(&usage)?)?;
        if cache == Cache::Cold {
            shell_as_root("sync", &[])?;
        }
        let device_written_bytes = device_written_bytes(&self.target)? - written_before;
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        let found = match &self.around {
            None => Value::Null,
            Some(around) => serde_json::from_str(&shell_as_root(&around.after, &[&target])?)
                .with_context(|| around.after.clone())?,
        };
        let after_seconds = fragmented.as_ref().map(|list| read_all(&target, list)).transpose()?;
        let reading = before_seconds.zip(after_seconds);
        let sample = Sample {
            reading: reading.map(|(before_seconds, after_seconds)| Reading { before_seconds, after_seconds }),
            seconds,
            reported_read_bytes: printed["read_bytes"].as_f64().unwrap_or(0.0),
            device_written_bytes,
            printed,
            found,
            device_read_bytes: blocks * 512.0,
            peak_memory_bytes: peak_kib * 1024.0,
            target_bytes: allocated_bytes(&self.target)?,
        };
        sudo_remove(&usage)?;
        Ok(sample)
    }

    /// Removes what it made.
    pub(super) fn clean(&self) -> Result<()> {
        sudo_remove(&self.target)
    }
}

/// The paths of the fragmented files of the only volume of a raw disk, from its root, one behind the other with a zero after each.
fn fragmented_files(program: &str, disk: &str) -> Result<Vec<u8>> {
    let lines = format!("{disk}.files");
    shell_as_root("\"$1\" analyze -f raw --files \"$2\" \"$3\" > /dev/null", &[program, &lines, disk])?;
    let mut paths = Vec::new();
    for line in fs::read_to_string(&lines)?.lines() {
        let file: Value = serde_json::from_str(line)?;
        let path = file["path"].as_str().context("a path")?;
        if file["kind"] == "file" && file["fragments"].as_u64() > Some(1) && !path.starts_with("/<") {
            paths.extend_from_slice(path.trim_start_matches('/').as_bytes());
            paths.push(0);
        }
    }
    sudo_remove(Path::new(&lines))?;
    Ok(paths)
}

/// Seconds that it takes to read files of the only volume of a raw disk.
fn read_all(disk: &str, paths: &[u8]) -> Result<f64> {
    const SCRIPT: &str = r#"
        type=ext4; ! ntfsinfo -m "$1" > /dev/null 2>&1 || type=ntfs-3g
        list=$(realpath "$2")
        mnt=$(mktemp -d); trap 'cd /; umount "$mnt"; rmdir "$mnt"' EXIT
        mount -t "$type" -o ro,loop "$1" "$mnt"
        sync; echo 3 > /proc/sys/vm/drop_caches
        cd "$mnt"
        begun=$(date +%s%N)
        xargs -0 -r -a "$list" cat > /dev/null
        echo $(($(date +%s%N) - begun))
    "#;
    let list = format!("{disk}.list");
    fs::write(&list, paths)?;
    let nanoseconds: f64 = shell_as_root(SCRIPT, &[disk, &list])?.trim().parse()?;
    fs::remove_file(&list)?;
    Ok(nanoseconds / 1e9)
}

/// Bytes written so far to the device that `path` is, or will be, on; no number if it is on no device of its own.
fn device_written_bytes(path: &Path) -> Result<f64> {
    /// `Documentation/admin-guide/iostats.rst`: the seventh field counts sectors of 512 bytes.
    const SECTORS_WRITTEN: usize = 6;
    let device = fs::metadata(path.parent().context("a file in a folder")?)?.dev();
    let (major, minor) = (device >> 8 & 0xfff, (device & 0xff) | (device >> 12 & 0xfff00));
    let Ok(stat) = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")) else {
        return Ok(f64::NAN);
    };
    let sectors: f64 = stat.split_whitespace().nth(SECTORS_WRITTEN).context("iostats")?.parse()?;
    Ok(sectors * 512.0)
}

/// The last line of what GNU time wrote: peak KiB, and blocks of 512 bytes read from the disk.
fn parse_usage(text: &str) -> Result<(f64, f64)> {
    let line = text.lines().last().unwrap_or_default();
    match line.split_once(' ') {
        Some((peak, blocks)) => Ok((peak.parse()?, blocks.parse()?)),
        None => bail!("GNU time said '{text}'"),
    }
}

#[allow(clippy::cast_precision_loss)]
fn allocated_bytes(path: &Path) -> Result<f64> {
    Ok((fs::metadata(path)?.blocks() * 512) as f64)
}

fn sudo_remove(path: &Path) -> Result<()> {
    if path.exists() {
        shell_as_root("rm -f -- \"$1\"", &[&path.display().to_string()])?;
    }
    Ok(())
}

/// Nothing of any disk stays in memory, and nothing is left to be written.
fn drop_caches() -> Result<()> {
    shell_as_root("sync; echo 3 > /proc/sys/vm/drop_caches", &[]).map(drop)
}

/// Has the host of this machine give back what a run's pages will be in. A kernel that reports its free pages lends them to the host of a virtual
/// machine, and the first to touch one again waits for it, not everybody equally.
fn take_back_memory() {
    let is_lent = Path::new("/sys/module/page_reporting").exists();
    if !is_lent || available_bytes().is_none_or(|bytes| bytes < 2 * TAKEN_BACK_BYTES) {
        return;
    }
    let mut memory = vec![0_u8; TAKEN_BACK_BYTES];
    for page in memory.chunks_mut(PAGE_BYTES) {
        page[0] = 1;
    }
    std::hint::black_box(&memory);
}

/// What memory programs may still have (proc_meminfo(5)).
fn available_bytes() -> Option<usize> {
    let all = fs::read_to_string("/proc/meminfo").ok()?;
    let line = all.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<usize>().ok()?.checked_mul(1024)
}

fn root_command(program: &str) -> Command {
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if is_root {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.args(["-n", program]);
    command
}

/// `mount` tries again where somebody looks at the loop device that was just attached. `umount FOLDER` waits until the file system has ended: who
/// has mounts of its own, as tests beside this, begins with all that there are, and until they let go of it, it lives on, and what it has in
/// memory is not on the disk. Its loop device goes with it.
const MOUNTS: &str = r#"
mount() {
    local said status
    said=$(mktemp)
    for _ in {1..1500}; do
        status=0
        command mount "$@" 2>"$said" || status=$?
        [ $status != 0 ] && grep -q 'already mounted or mount point busy' "$said" || break
        sleep 0.02
    done
    cat "$said" >&2
    rm "$said"
    return $status
}
umount() {
    local source device file
    source=$(findmnt -nro SOURCE --mountpoint "$1" | tail -n 1)
    device=/sys/block/${source#/dev/}/loop
    file=$(cat "$device/backing_file" 2>/dev/null) || file=
    [ "$(cat "$device/autoclear" 2>/dev/null)" = 1 ] || file=
    command umount "$1"
    for _ in {1..1500}; do
        [ -n "$file" ] && [ "$(cat "$device/backing_file" 2>/dev/null)" = "$file" ] || return 0
        sleep 0.02
    done
    echo "$source is still in use after 30 s" >&2
    return 1
}
"#;

/// Runs a shell script as root, and answers what it printed.
pub(crate) fn shell_as_root(script: &str, args: &[&str]) -> Result<String> {
    let script = format!("set -euo pipefail; PATH=$PATH:/usr/sbin:/sbin; {MOUNTS}{script}");
    let mut command = root_command("bash");
    let output = command.args(["-c", &script, "bench"]).args(args).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{script}\n{}: {stderr}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Free space where `dir` is.
pub(super) fn free_bytes(dir: &Path) -> Result<f64> {
    let output = Command::new("df").args(["-B1", "--output=avail"]).arg(dir).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().last().unwrap_or_default().trim().parse().context("free space of the folder")
}
