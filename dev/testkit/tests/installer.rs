//! What the tests call must be what `scripts/install-test-tools` installs: a machine that has been used for long hides what that
//! forgets.
//!
//! A program counts as called where its name stands in command position: in the scripts of the project, in texts that tests give
//! to a shell, and behind the functions that start programs. It must be in the installer's list, unless its package is one that
//! every Debian has (essential, or of priority `required`).

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a machine with a Rust toolchain and `make` has besides what every Debian has: the README asks for it.
/// Some `awk` is there as well, whichever package it is from: base-files, which is essential, depends on one.
const GIVEN: [&str; 9] = ["git", "make", "cc", "gcc", "cargo", "rustc", "rustup", "sudo", "awk"];

/// What is used where it is there. Tests say by name what they skip without it: an SSH server would begin to serve as soon as it is installed, and
/// so would PostgreSQL.
const OPTIONAL: [&str; 4] = ["/usr/sbin/sshd", "sshd", "pip", "psql"];

/// Words that stand where programs do and are none there.
const WORDS: [&str; 16] = [
    "GET", "as", "curl", "file", "free", "less", "man", "mdadm", "modprobe", "node", "open", "shutdown",
    "size", "syslinux", "w", "write",
];

/// Functions whose first argument is a program.
const STARTERS: [&str; 6] = ["run", "as_root", "root", "new", "tool", "run_as_root"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files below `folder` with this ending; of scripts, which have none, all without.
fn files_below(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let extension = path.extension().unwrap_or_default();
        if path.is_dir() {
            files_below(&path, ending, found);
        } else if extension == ending {
            found.push(path);
        }
    }
}

/// The installer's list: program to package.
fn installed() -> BTreeMap<String, String> {
    let text = fs::read_to_string(root().join("scripts/install-test-tools")).unwrap();
    let entry = |word: &str| {
        let word = word.trim_matches(|c| "()".contains(c)).rsplit('(').next()?.to_owned();
        let (program, package) = word.split_once(':')?;
        let is_name = |text: &str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "._+-/".contains(c))
        };
        (is_name(program) && is_name(package)).then(|| (program.to_owned(), package.to_owned()))
    };
    text.split_whitespace().filter_map(entry).collect()
}

/// The first words of the commands in a shell's text, as far as they are plain words.
fn shell_commands(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    for part in lines.flat_map(|line| line.split(['\n', ';', '|', '&', '(', ')', '`', '{', '}', '"', '\''])) {
        let is_prefix = |word: &&str| {
            let keywords = [
                "if", "then", "else", "elif", "do", "while", "until", "!", "time", "exec", "env", "sudo",
                "-n", "nice",
            ];
            keywords.contains(word) || word.split_once('=').is_some_and(|(name, _)| !name.contains('/'))
        };
        if let Some(word) = part.split_whitespace().find(|word| !is_prefix(word)) {
            found.insert(word.to_owned());
        }
    }
    found
}

/// The string literals of a Rust text that follow one of [`STARTERS`], and the first words of commands in those that hold several
/// commands.
fn rust_commands(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("(\"") {
        let before = &text[..at];
        let name = before.rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        let literal = text[at + 2..].split('"').next().unwrap_or_default();
        if STARTERS.contains(&name) {
            found.insert(literal.to_owned());
        }
    }
    for literal in text.split('"').skip(1).step_by(2) {
        // A command with arguments, several commands, or a sentence, whose first word is hardly ever a program.
        if literal.contains(' ') || literal.contains('\n') {
            found.extend(shell_commands(&literal.replace("\\n", "\n")));
        }
    }
    found
}

/// Where the system has the program; `None` for what is none, and for what people install for themselves.
fn system_program(name: &str) -> Option<PathBuf> {
    if name.starts_with('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._+-".contains(c));
    let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].iter().filter(|_| is_name);
    folders.map(|folder| Path::new(folder).join(name)).find(|path| path.is_file())
}

/// What the system's packages brought: the package of each program, and the packages that every Debian has.
struct Packages {
    of_program: BTreeMap<String, String>,
    everywhere: BTreeSet<String>,
}

impl Packages {
    fn read() -> Self {
        let list = ["-W", "-f", "${Package} ${Essential} ${Priority}\n"];
        let output = Command::new("dpkg-query").args(list).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let is_everywhere = |line: &&str| line.contains(" yes ") || line.ends_with(" required");
        let name = |line: &str| line.split(' ').next().unwrap().to_owned();
        let everywhere = text.lines().filter(is_everywhere).map(name).collect();
        let mut of_program = BTreeMap::new();
        let mut lists = Vec::new();
        files_below(Path::new("/var/lib/dpkg/info"), "list", &mut lists);
        for list in lists {
            let package = list.file_stem().unwrap().to_str().unwrap().split(':').next().unwrap().to_owned();
            let text = fs::read(&list).unwrap();
            for line in String::from_utf8_lossy(&text).lines() {
                let (folder, program) = line.rsplit_once('/').unwrap_or_default();
                if ["/bin", "/sbin", "/usr/bin", "/usr/sbin"].contains(&folder) {
                    of_program.insert(program.to_owned(), package.clone());
                }
            }
        }
        Self { of_program, everywhere }
    }

    /// A name may be a link that a package made when it was installed.
    fn of(&self, program: &Path) -> Option<&String> {
        let name = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
        let resolved = fs::canonicalize(program).ok();
        let mut names = [name(program), resolved.as_deref().and_then(name)].into_iter().flatten();
        names.find_map(|name| self.of_program.get(&name))
    }
}

#[test]
fn whatever_the_tests_call_is_installed() {
    assert!(Command::new("dpkg").arg("--version").output().is_ok(), "the list is one of Debian's packages");
    let installed = installed();
    assert!(installed.len() > 40, "the list is read: {installed:?}");
    let system = Packages::read();
    let packages: BTreeSet<_> = installed.values().cloned().collect();
    let mut called: BTreeMap<String, PathBuf> = BTreeMap::new();
    let (mut sources, mut scripts) = (Vec::new(), Vec::new());
    for folder in ["crates", "dev"] {
        files_below(&root().join(folder), "rs", &mut sources);
        files_below(&root().join(folder), "", &mut scripts);
    }
    for folder in ["scripts", "packaging"] {
        files_below(&root().join(folder), "", &mut scripts);
    }
    for path in sources {
        let text = fs::read_to_string(&path).unwrap();
        called.extend(rust_commands(&text).into_iter().map(|name| (name, path.clone())));
    }
    for path in scripts {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        called.extend(shell_commands(&text).into_iter().map(|name| (name, path.clone())));
    }
    assert!(
        ["qemu-img", "mkntfs", "e2fsck"].iter().all(|name| called.contains_key(*name)),
        "calls are found"
    );
    let mut missing = Vec::new();
    for (name, place) in &called {
        let name = name.strip_prefix("/usr/bin/").unwrap_or(name);
        if installed.contains_key(name) || [&GIVEN[..], &OPTIONAL, &WORDS].concat().contains(&name) {
            continue;
        }
        let Some(program) = system_program(name) else { continue };
        match system.of(&program) {
            Some(package) if system.everywhere.contains(package) || packages.contains(package) => {}
            Some(package) => missing.push(format!("{name}:{package} (called in {})", place.display())),
            // What no package brought is none of the installer's.
            None => {}
        }
    }
    assert!(missing.is_empty(), "scripts/install-test-tools does not know: {missing:#?}");
}

#[test]
fn commands_are_found_where_they_are_called() {
    let shell = "# mkfs.none\nset -e; a=$(losetup --show -f x) && FOO=1 mkfs.ext4 -q \"$a\" | tail\nif ! blkid x; then rm y; fi";
    let found = shell_commands(shell);
    for name in ["losetup", "mkfs.ext4", "tail", "blkid", "rm"] {
        assert!(found.contains(name), "{name} in {found:?}");
    }
    assert!(!found.contains("mkfs.none"));
    let rust = r#"testkit::run("qemu-img", &["create"]); Command::new("mkswap"); let s = "pvcreate x; vgcreate y"; f("info");"#;
    let found = rust_commands(rust);
    assert!(
        ["qemu-img", "mkswap", "pvcreate", "vgcreate"].iter().all(|name| found.contains(*name)),
        "{found:?}"
    );
    assert!(!found.contains("info"));
}
