//! docs/recipes.md: each block of commands is run, or says why it is not.
//!
//! A block of `sh` follows a line `<!-- run -->`, `<!-- run, makes: FILES -->` or `<!-- not run: WHY -->`. What is made and is a disk holds
//! what the guest's disk holds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{Guest, Inside, run, scratch};

use crate::common::{arg, program, succeed};

struct Recipe {
    /// Of the document.
    line: usize,
    makes: Vec<String>,
    commands: String,
}

/// The blocks that are run, and how many are not.
fn recipes(text: &str) -> (Vec<Recipe>, usize) {
    let (mut recipes, mut not_run) = (Vec::new(), 0);
    let mut before = "";
    let mut lines = (1..).zip(text.lines());
    while let Some((line, text)) = lines.next() {
        if text.starts_with("```") {
            assert_eq!(text, "```sh", "line {line}");
            let commands: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            let told = before.strip_prefix("<!-- ").and_then(|told| told.strip_suffix(" -->"));
            let told = told.unwrap_or_else(|| panic!("line {line}: neither run nor not run"));
            if let Some(why) = told.strip_prefix("not run: ") {
                assert!(!why.is_empty(), "line {line}");
                not_run += 1;
            } else {
                let makes = told.strip_prefix("run").unwrap_or_else(|| panic!("line {line}: {told}"));
                let makes = makes.strip_prefix(", makes:").unwrap_or_default();
                let makes = makes.split_whitespace().map(str::to_owned).collect();
                recipes.push(Recipe { line, makes, commands: commands.join("\n") });
            }
        }
        before = text;
    }
    (recipes, not_run)
}

/// What every recipe finds.
struct Kitchen {
    dir: tempfile::TempDir,
    guest: &'static Guest,
}

impl Kitchen {
    fn new() -> Self {
        let dir = scratch();
        let guest = Guest::get(Inside::Ext4);
        let at = |name: &str| dir.path().join("ingredients").join(name);
        for folder in ["ingredients", "ingredients/images", "ingredients/unpacked"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        for format in ["raw", "qcow2", "vhdx", "vmdk"] {
            let to = at(&format!("disk.{format}"));
            run("qemu-img", &["convert", "-O", format, arg(&guest.disk), arg(&to)]);
        }
        fs::copy(at("disk.qcow2"), at("images/disk.qcow2")).unwrap();
        succeed(&["copy", arg(&at("disk.qcow2")), "--into", arg(&at("vm.ova"))]);
        run("tar", &["-xf", arg(&at("vm.ova")), "-C", arg(&at("unpacked"))]);
        Self { dir, guest }
    }

    /// A folder with all of it.
    fn table(&self, name: &str) -> PathBuf {
        let table = self.dir.path().join(name);
        run("cp", &["-a", "--reflink=auto", arg(&self.dir.path().join("ingredients")), arg(&table)]);
        let domain = format!(
            "<domain type='kvm'><devices><disk type='file' device='disk'><driver name='qemu' type='qcow2'/>\
             <source file='{}'/><target dev='vda'/></disk></devices></domain>",
            arg(&table.join("images/disk.qcow2"))
        );
        fs::write(table.join("guest.xml"), domain).unwrap();
        table
    }

    /// Whether a disk holds what the guest's does, as its file system's own tools say.
    fn check(&self, path: &Path) {
        let raw = self.dir.path().join("checked.raw");
        let driver = match path.extension().is_some_and(|extension| extension == "vhd") {
            // QEMU trusts the geometry unless told that the size in the footer is meant.
            true => "driver=vpc,force_size_calc=current_size,file.filename=",
            false => "file.filename=",
        };
        let options = format!("{driver}{}", arg(path));
        run("qemu-img", &["convert", "--image-opts", "-O", "raw", &options, arg(&raw)]);
        self.guest.check(&raw);
        fs::remove_file(&raw).unwrap();
    }
}

#[test]
fn every_recipe_does_what_it_says() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/recipes.md");
    let (recipes, not_run) = recipes(&fs::read_to_string(document).unwrap());
    assert!(recipes.len() >= 12 && not_run < recipes.len(), "{} and {not_run}", recipes.len());
    let kitchen = Kitchen::new();
    let program = PathBuf::from(program());
    let path = format!("{}:{}", arg(program.parent().unwrap()), std::env::var("PATH").unwrap());
    for Recipe { line, makes, commands } in recipes {
        let table = kitchen.table(&format!("line-{line}"));
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &commands])
            .current_dir(&table)
            .env("PATH", &path)
            .output()
            .unwrap();
        assert!(output.status.success(), "line {line} of docs/recipes.md: {output:?}");
        for made in makes {
            let made = table.join(made);
            assert!(made.exists(), "line {line}: {}", made.display());
            let extension = made.extension().unwrap_or_default().to_string_lossy();
            if ["qcow2", "vhdx", "vmdk", "vhd", "raw"].contains(&&*extension) {
                kitchen.check(&made);
            }
        }
        fs::remove_dir_all(&table).unwrap();
    }
}

#[test]
fn a_block_that_says_nothing_is_found() {
    let told = |text: &str| std::panic::catch_unwind(|| recipes(text).0.len()).ok();
    assert_eq!(told("<!-- run, makes: a -->\n```sh\ntrue\n```"), Some(1));
    assert_eq!(told("<!-- not run: why -->\n```sh\ntrue\n```"), Some(0));
    assert_eq!(told("text\n```sh\ntrue\n```"), None);
    assert_eq!(told("<!-- run -->\n```\ntrue\n```"), None);
}
