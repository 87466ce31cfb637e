//! What is generated: completions that shells load, a manual page for each command, and the commit behind the version.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{arg, fail, names_in, succeed};
use testkit::{run, scratch};

/// The words of which a command consists, and its page.
const PAGES: [(&str, &str); 29] = [
    ("", "leandisk.1"),
    ("info", "leandisk-info.1"),
    ("analyze", "leandisk-analyze.1"),
    ("map", "leandisk-map.1"),
    ("ls", "leandisk-ls.1"),
    ("cat", "leandisk-cat.1"),
    ("extract", "leandisk-extract.1"),
    ("guard", "leandisk-guard.1"),
    ("guard status", "leandisk-guard-status.1"),
    ("guard report", "leandisk-guard-report.1"),
    ("coordinate", "leandisk-coordinate.1"),
    ("copy", "leandisk-copy.1"),
    ("backup", "leandisk-backup.1"),
    ("snapshots", "leandisk-snapshots.1"),
    ("restore", "leandisk-restore.1"),
    ("check", "leandisk-check.1"),
    ("create", "leandisk-create.1"),
    ("compact", "leandisk-compact.1"),
    ("defrag", "leandisk-defrag.1"),
    ("recover", "leandisk-recover.1"),
    ("serve", "leandisk-serve.1"),
    ("stats", "leandisk-stats.1"),
    ("report", "leandisk-report.1"),
    ("bench", "leandisk-bench.1"),
    ("bench age", "leandisk-bench-age.1"),
    ("bench first-write", "leandisk-bench-first-write.1"),
    ("bench fragmentation", "leandisk-bench-fragmentation.1"),
    ("bench workloads", "leandisk-bench-workloads.1"),
    ("completions", "leandisk-completions.1"),
];

/// What bash offers once `script` is loaded, for the last of `words`.
fn completed(script: &Path, words: &str) -> Vec<String> {
    let ask = format!(
        "source '{}'; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
         _leandisk leandisk \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display()
    );
    run("bash", &["-c", &ask]).lines().map(str::to_owned).collect()
}

#[test]
fn bash_loads_the_completions_and_completes() {
    let dir = scratch();
    let script = dir.path().join("leandisk");
    fs::write(&script, succeed(&["completions", "bash"])).unwrap();
    run("bash", &["-n", arg(&script)]);
    let loaded = run("bash", &["-c", &format!("source '{}' && complete -p leandisk", script.display())]);
    assert!(loaded.contains("_leandisk"), "{loaded}");
    assert_eq!(completed(&script, "leandisk com"), ["compact", "completions"]);
    assert_eq!(completed(&script, "leandisk copy --dry"), ["--dry-run"]);
    assert_eq!(completed(&script, "leandisk defrag --goal p"), ["pack"]);
}

#[test]
fn other_shells_have_completions_of_their_own() {
    assert!(succeed(&["completions", "zsh"]).starts_with("#compdef leandisk\n"));
    assert!(succeed(&["completions", "fish"]).contains("complete -c leandisk "));
    fail(2, &["completions", "sh"]);
}

#[test]
fn each_command_has_a_page_that_says_what_its_help_says() {
    let dir = scratch();
    // A second time replaces them.
    succeed(&["man", arg(dir.path())]);
    succeed(&["man", arg(dir.path())]);
    let mut names = names_in(dir.path());
    names.sort();
    let mut wanted = PAGES.map(|(_, page)| page.to_owned());
    wanted.sort();
    assert_eq!(names, wanted);
    for (words, page) in PAGES {
        let path = dir.path().join(page);
        let shown = shown(&path);
        let help = succeed(&[&words.split_whitespace().collect::<Vec<_>>()[..], &["--help"]].concat());
        let (_, usage) = help.split_once("Usage: ").unwrap();
        let usage = usage.lines().next().unwrap();
        assert!(shown.contains(usage), "{page} lacks the usage {usage}: {shown}");
        let options = help.split(|c: char| c.is_whitespace() || "[]<>,'=".contains(c));
        for option in options.filter(|word| word.starts_with("--") && word.len() > 2) {
            assert!(shown.contains(option.trim_end_matches('.')), "{page} lacks {option}: {shown}");
        }
        let examples = help.split_once("Examples:\n").map_or("", |(_, examples)| examples);
        for line in examples.lines() {
            assert!(shown.contains(line.trim()), "{page} lacks the example {line}: {shown}");
        }
    }
}

#[test]
fn pages_go_where_the_folder_is() {
    let dir = scratch();
    let message = fail(5, &["man", arg(&dir.path().join("none"))]);
    assert!(message.contains("none/leandisk.1"), "{message}");
}

/// Sources that came without git know of no commit, unless `git archive` made them.
#[test]
fn the_version_names_the_commit() {
    let version = succeed(&["--version"]);
    assert_eq!(version, succeed(&["-V"]));
    let commit = ["-C", env!("CARGO_MANIFEST_DIR"), "log", "-1", "--no-show-signature", "--format=%H %cs"];
    let asked = Command::new("git").args(commit).output().unwrap();
    let told = String::from_utf8(asked.stdout).unwrap();
    match told.trim().split_once(' ').filter(|_| asked.status.success()) {
        Some((name, date)) => assert_eq!(version.trim(), format!("leandisk 0.1.0 ({} {date})", &name[..12])),
        None => assert!(version.starts_with("leandisk 0.1.0"), "{version}"),
    }
}

/// A page as people see it. Panics if the formatter has anything to complain about.
fn shown(page: &Path) -> String {
    let args = ["-ww", "-man", "-Tascii", "-P-c", "-P-b", "-P-u", "-rLL=100n", arg(page)];
    let output = Command::new("groff").args(args).output().unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{}: {complaints}", page.display());
    String::from_utf8(output.stdout).unwrap()
}
