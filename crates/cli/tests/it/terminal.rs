//! What people see on a terminal of 80 columns: help, results, progress.

use std::path::Path;
use std::process::Command;

use crate::common;
use crate::common::{arg, output, succeed};
use testkit::{Guest, Inside, run, scratch};

const COLUMNS: usize = 80;
const COMMANDS: [&[&str]; 24] = [
    &["info"],
    &["analyze"],
    &["map"],
    &["copy"],
    &["backup"],
    &["snapshots"],
    &["restore"],
    &["check"],
    &["create"],
    &["compact"],
    &["defrag"],
    &["recover"],
    &["serve"],
    &["stats"],
    &["report"],
    &["guard"],
    &["guard", "status"],
    &["guard", "report"],
    &["coordinate"],
    &["bench"],
    &["bench", "age"],
    &["bench", "first-write"],
    &["bench", "fragmentation"],
    &["completions"],
];

/// What a terminal shows of `text`, frame by frame: control sequences are taken out, and what is drawn over what was there is
/// a line of its own.
fn lines(text: &str) -> Vec<String> {
    let mut shown = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            // A control sequence ends with a letter.
            '\u{1b}' if chars.peek() == Some(&'[') => {
                while chars.next().is_some_and(|c| !c.is_ascii_alphabetic()) {}
            }
            '\r' => shown.push('\n'),
            c => shown.push(c),
        }
    }
    shown.lines().map(|line| line.trim_end().to_owned()).collect()
}

fn assert_fits(what: &str, text: &str) {
    for line in lines(text) {
        assert!(line.chars().count() <= COLUMNS, "{what}: {} columns: {line}", line.chars().count());
    }
}

/// Runs the program in `dir` on a terminal of so many columns; answers all that it wrote to it.
fn on_terminal(dir: &Path, columns: usize, command: &str) -> String {
    let script =
        format!("stty cols {columns} rows 24; cd '{}' && {} {command}", dir.display(), common::program());
    let output = Command::new("script")
        .args(["-qec", &script, "/dev/null"])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .env_remove("COLUMNS")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command}: {text}");
    text
}

#[test]
fn help_fits_and_shows_how_to_use_each_command() {
    let all = succeed(&["--help"]);
    assert_fits("--help", &all);
    for command in COMMANDS {
        for option in ["--help", "-h"] {
            let help = succeed(&[command, &[option]].concat());
            assert_fits(&format!("{command:?}"), &help);
            assert!(!help.contains('`'), "marks of the source's comments: {help}");
            if command == ["bench"] {
                continue;
            }
            let (_, examples) = help.split_once("Examples:").unwrap_or_else(|| panic!("{command:?}: {help}"));
            let start = format!("  leandisk {}", command.join(" "));
            let count = examples.lines().filter(|line| line.starts_with(&start)).count();
            assert!(count >= 3, "{command:?} has {count} examples");
            let has_few = [["create"], ["completions"], ["coordinate"]].contains(&[command[0]]);
            let has_groups = help.contains("Output:") || has_few;
            assert!(has_groups, "{command:?} groups its options");
        }
    }
}

/// Every example of the help is taken by the parser: what fails is that the files are not there.
#[test]
fn examples_of_the_help_are_commands() {
    for command in COMMANDS.iter().filter(|command| **command != ["bench"]) {
        let help = succeed(&[command, &["--help"][..]].concat());
        let (_, examples) = help.split_once("Examples:").unwrap();
        let dir = scratch();
        for line in examples.replace("\\\n", " ").lines().filter(|line| line.starts_with("  leandisk ")) {
            // What stands apart from the command says what it is for; disks that are made are made elsewhere.
            let words = line.trim().split("   ").next().unwrap().split(" > ").next().unwrap();
            let words: Vec<_> = words.split_whitespace().skip(1).collect();
            let goes_on =
                words[0] == "guard" && !words.get(1).is_some_and(|word| ["status", "report"].contains(word));
            if matches!(words[0], "bench" | "create" | "coordinate") || goes_on {
                let output = output(&[&words[..], &["--no-such-option"]].concat());
                let message = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(message.contains("--no-such-option"), "{line}: {message}");
                continue;
            }
            let output = common::leandisk().args(&words).current_dir(dir.path()).output().unwrap();
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_ne!(output.status.code(), Some(2), "{line}: {message}");
        }
    }
}

#[test]
fn results_and_progress_fit_a_terminal() {
    for inside in [Inside::Ntfs, Inside::Ext4] {
        let guest = Guest::get(inside);
        let dir = scratch();
        let path = |name: &str| dir.path().join(name);
        run("cp", &["--sparse=always", arg(&guest.disk), arg(&path("n.raw"))]);
        run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", arg(&path("n.raw")), arg(&path("n.qcow2"))]);
        std::fs::write(path("stats.json"), r#"{"schema": "leandisk.stats/1", "exports": []}"#).unwrap();
        for command in [
            "info n.raw",
            "info n.qcow2",
            "analyze n.raw --device sata-ssd",
            "analyze n.qcow2 --full --zeros --html report.html --files files.jsonl",
            "map n.raw -o map.svg",
            "copy n.raw t.vhdx --dry-run",
            "copy n.raw t.vhdx --verify --layout packed",
            "copy n.raw t.qcow2 --verify --provision lazy",
            "compact n.qcow2 --dry-run",
            "compact n.qcow2 --defrag --verify",
            "defrag n.raw --goal pack --dry-run",
            "defrag n.raw --goal pack --verify",
            "recover n.raw",
            "create new.qcow2 1.5M --provision eager",
            "bench first-write --size 1M --passes 2 --iterations 2",
            "stats stats.json",
        ] {
            let shown = on_terminal(dir.path(), COLUMNS, command);
            // The folder of a benchmark has a name as long as it likes.
            let shown = shown.replace(arg(dir.path()), "");
            assert_fits(command, &shown);
        }
    }
}

#[test]
fn long_work_has_a_name_and_an_end() {
    let guest = Guest::get(Inside::Ext4);
    let dir = scratch();
    run("cp", &["--sparse=always", arg(&guest.disk), arg(&dir.path().join("n.raw"))]);
    let copied = on_terminal(dir.path(), COLUMNS, "copy n.raw t.qcow2 --verify");
    for name in ["checking what the guest uses", "copying ", "comparing "] {
        assert!(copied.contains(name), "'{name}' in {copied:?}");
    }
    let moved = on_terminal(dir.path(), COLUMNS, "defrag n.raw --goal pack --verify");
    for name in ["planning what moves", "reading files to compare them", "moving files "] {
        assert!(moved.contains(name), "'{name}' in {moved:?}");
    }
    let said = lines(&moved);
    let verified = said.iter().find(|line| line.contains("verified: ")).unwrap_or_else(|| panic!("{said:?}"));
    assert!(verified.ends_with("files and directories are what they were"), "{verified}");
    let count: u64 = verified.split_whitespace().nth(1).unwrap().replace(',', "").parse().unwrap();
    assert!(count > 100, "{verified}");
    // On a wide terminal there is room for the rate, on a narrow one not even for the total.
    let wide = on_terminal(dir.path(), 120, "copy n.raw wide.qcow2");
    assert!(wide.contains("/s  "), "{wide:?}");
    let narrow = on_terminal(dir.path(), 50, "copy n.raw narrow.qcow2 --progress auto");
    let bars: Vec<_> = lines(&narrow).into_iter().filter(|line| line.contains("copying ")).collect();
    assert!(!bars.is_empty() && bars.iter().all(|line| line.chars().count() <= 50), "{bars:?}");
    assert!(bars.iter().all(|line| !line.contains(" of ")), "{bars:?}");
}

#[test]
fn an_analysis_is_a_dozen_lines_with_what_to_do() {
    let dir = scratch();
    for inside in [Inside::Ntfs, Inside::Ext4] {
        let guest = Guest::get(inside);
        let disk = dir.path().join("my disk.raw");
        run("cp", &["--sparse=never", arg(&guest.disk), arg(&disk)]);
        let text = succeed(&["analyze", arg(&disk)]);
        assert!(text.lines().count() <= 12, "{text}");
        for word in ["reclaimable", "worth doing", "analyze --full '"] {
            assert!(text.contains(word), "'{word}' in {text}");
        }
        let full = succeed(&["analyze", arg(&disk), "--full"]);
        assert!(full.lines().count() > 20 && full.contains("fragments in each layer"), "{full}");
    }
    // As much as this of what an image holds is worth a command.
    let waste = dir.path().join("waste.raw");
    run("bash", &["-c", &format!("yes deleted | head -c 200M > '{}'", waste.display())]);
    run("mkfs.ext4", &["-qF", "-E", "nodiscard", arg(&waste)]);
    let text = succeed(&["analyze", arg(&waste)]);
    let command = format!("leandisk compact {}", waste.display());
    assert!(text.contains("worth doing: compact") && text.contains(&command), "{text}");
    for word in ["gain", "cost", "command", "because"] {
        assert!(text.contains(&format!("\n  {word} ")), "'{word}' in {text}");
    }
    assert!(text.lines().count() <= 12, "{text}");
    run("bash", &["-c", &format!("{} {}", common::program(), &command["leandisk ".len()..])]);
    assert!(succeed(&["analyze", arg(&waste)]).contains("nothing is worth doing"));
}
