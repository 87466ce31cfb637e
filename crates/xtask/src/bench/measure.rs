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
}

impl Contender {
    /// Runs it to its end.
    pub(super) fn run(&self) -> Result<Sample> {
        self.clean()?;
        let target = self.target.display().to_string();
        if let Some(around) = &self.around {
            shell_as_root(&around.before, &[&target])?;
        }
        drop_caches()?;
        let written_before = device_written_bytes(&self.target)?;
        let usage = self.target.with_extension("usage");
        let mut words = vec!["/usr/bin/time".to_owned(), "-f".into(), "%M %I".into(), "-o".into()];
        words.push(usage.display().to_string());
        words.extend(self.command.iter().cloned());
        let mut command = if self.as_root { root_command(&words[0]) } else { Command::new(&words[0]) };
        command.args(&words[1..]).stdin(Stdio::null());
        let started = Instant::now();
        let output = command.output().with_context(|| words.join(" "))?;
        let seconds = started.elapsed().as_secs_f64();
        ensure!(
            output.status.success(),
            "{}: {}\n{}",
            words.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        let (peak_kib, blocks) = parse_usage(&fs::read_to_string(&usage)?)?;
        shell_as_root("sync", &[])?;
        let device_written_bytes = device_written_bytes(&self.target)? - written_before;
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        let found = match &self.around {
            None => Value::Null,
            Some(around) => serde_json::from_str(&shell_as_root(&around.after, &[&target])?)
                .with_context(|| around.after.clone())?,
        };
        let sample = Sample {
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

fn root_command(program: &str) -> Command {
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if is_root {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.args(["-n", program]);
    command
}

/// Runs a shell script as root, and answers what it printed.
pub(crate) fn shell_as_root(script: &str, args: &[&str]) -> Result<String> {
    let script = format!("set -euo pipefail; PATH=$PATH:/usr/sbin:/sbin; {script}");
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
