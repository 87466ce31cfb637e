//! The crates and what each needs, from their manifests: held against the order that ARCHITECTURE.md gives, and drawn
//! there. Their modules are looked at, too: none import each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::modules;

/// Between these lines of ARCHITECTURE.md is the picture.
const BEGIN: &str = "<!-- crates: begin (drawn by `cargo run -p leandisk-xtask -- crates`) -->\n";
const END: &str = "<!-- crates: end -->\n";
/// The development crates that the product may need: it asks whether code is to be broken, and is always told no.
const NEEDED_BY_ALL: &str = "mutants";

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Change nothing: fail if the order does not hold, or the picture is an old one
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let page = root().join("ARCHITECTURE.md");
    let text = fs::read_to_string(&page).context("read ARCHITECTURE.md")?;
    let crates = crates()?;
    check_order(&crates, &order(&text)?)?;
    for (name, this) in &crates {
        modules::check(
            name,
            &root().join(if this.is_product { "crates" } else { "dev" }).join(name).join("src"),
        )?;
    }
    let drawn = with_picture(&text, &picture(&crates))?;
    if arguments.check {
        ensure!(
            drawn == text,
            "the picture in ARCHITECTURE.md is an old one: cargo run -p leandisk-xtask -- crates"
        );
        return Ok(());
    }
    fs::write(&page, drawn).context("write ARCHITECTURE.md")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A crate of the workspace.
#[derive(Debug)]
struct Crate {
    is_product: bool,
    needs: BTreeSet<String>,
}

/// By the name of the folder: that is what code calls them.
type Crates = BTreeMap<String, Crate>;

fn crates() -> Result<Crates> {
    let asked = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .context("run cargo metadata")?;
    ensure!(asked.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&asked.stderr));
    let told: Value = serde_json::from_slice(&asked.stdout).context("read cargo metadata")?;
    told["packages"].as_array().context("packages")?.iter().map(described).collect()
}

fn described(package: &Value) -> Result<(String, Crate)> {
    let folder = folder_of(&package["manifest_path"])?.context("a folder")?;
    let name = folder.file_name().context("a folder")?.to_string_lossy().into_owned();
    let is_product = folder.parent().is_some_and(|parent| parent.ends_with("crates"));
    let mut needs = BTreeSet::new();
    for dependency in package["dependencies"].as_array().context("dependencies")? {
        // What tests need may lie above: it is built after what it tests.
        if !dependency["kind"].is_null() || dependency["path"].is_null() {
            continue;
        }
        let path = dependency["path"].as_str().context("a path")?;
        needs.insert(Path::new(path).file_name().context("a folder")?.to_string_lossy().into_owned());
    }
    Ok((name, Crate { is_product, needs }))
}

fn folder_of(manifest: &Value) -> Result<Option<&Path>> {
    Ok(Path::new(manifest.as_str().context("a manifest")?).parent())
}

/// The crates in the order of the code map: the first column of its table.
fn order(text: &str) -> Result<Vec<String>> {
    let map = text.split("\n## ").find(|part| part.starts_with("Code map\n")).context("no code map")?;
    let cells = map.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    Ok(cells.map(|(name, _)| name.to_owned()).collect())
}

/// Every crate stands in the map once, and needs only those above it; the product needs none of the development crates.
fn check_order(crates: &Crates, order: &[String]) -> Result<()> {
    let listed: BTreeSet<_> = order.iter().collect();
    ensure!(listed.len() == order.len(), "a crate stands in the code map twice");
    if let Some(missing) = crates.keys().find(|name| !listed.contains(name)) {
        bail!("the code map lacks {missing}");
    }
    let mut above = BTreeSet::new();
    for name in order {
        let Some(this) = crates.get(name) else { bail!("the code map has {name}, which is no crate") };
        for needed in &this.needs {
            ensure!(above.contains(needed), "{name} needs {needed}, which is not above it in the code map");
            let is_allowed = crates[needed].is_product || !this.is_product || needed == NEEDED_BY_ALL;
            ensure!(is_allowed, "{name} is a part of the product and needs {needed}, which is not");
        }
        above.insert(name.clone());
    }
    Ok(())
}

/// All that `name` needs, directly or not.
fn all_needs<'a>(crates: &'a Crates, name: &str, found: &mut BTreeSet<&'a str>) {
    for needed in &crates[name].needs {
        if found.insert(needed) {
            all_needs(crates, needed, found);
        }
    }
}

/// What `name` needs but not by way of another: else the picture would be all arrows.
fn direct_needs<'a>(crates: &'a Crates, name: &str) -> Vec<&'a str> {
    let mut behind = BTreeSet::new();
    crates[name].needs.iter().for_each(|needed| all_needs(crates, needed, &mut behind));
    crates[name].needs.iter().map(String::as_str).filter(|needed| !behind.contains(needed)).collect()
}

fn picture(crates: &Crates) -> String {
    let mut drawn = String::from("```mermaid\nflowchart BT\n");
    let product = |is_product| crates.iter().filter(move |(_, this)| this.is_product == is_product);
    for (title, is_product) in [("crates", true), ("dev", false)] {
        writeln!(drawn, "  subgraph {title}").expect("a string takes all");
        product(is_product).for_each(|(name, _)| writeln!(drawn, "    {name}").expect("a string takes all"));
        drawn.push_str("  end\n");
    }
    for name in crates.keys() {
        for needed in direct_needs(crates, name) {
            writeln!(drawn, "  {name} --> {needed}").expect("a string takes all");
        }
    }
    drawn.push_str("```\n");
    drawn
}

fn with_picture(text: &str, picture: &str) -> Result<String> {
    let (before, rest) = text.split_once(BEGIN).context("ARCHITECTURE.md has no place for the picture")?;
    let (_, after) = rest.split_once(END).context("the picture in ARCHITECTURE.md has no end")?;
    Ok(format!("{before}{BEGIN}{picture}{END}{after}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn toy(described: &[(&str, bool, &[&str])]) -> Crates {
        let one = |(name, is_product, needs): &(&str, bool, &[&str])| {
            let needs = needs.iter().map(|&needed| needed.to_owned()).collect();
            ((*name).to_owned(), Crate { is_product: *is_product, needs })
        };
        described.iter().map(one).collect()
    }

    fn refused(crates: &Crates, order: &[&str]) -> String {
        let order: Vec<_> = order.iter().map(|&name| name.to_owned()).collect();
        check_order(crates, &order).unwrap_err().to_string()
    }

    /// Whether a file has an example in its documentation that is compiled: a fence that says nothing of another language.
    fn has_example(path: &Path) -> bool {
        let text = fs::read_to_string(path).unwrap();
        let fences = text.lines().map(str::trim_start).filter(|line| line.starts_with("//"));
        let fences = fences.filter_map(|line| line.trim_start_matches(['/', '!', ' ']).strip_prefix("```"));
        fences.step_by(2).any(|language| {
            language.split(',').all(|word| ["", "rust", "no_run", "should_panic"].contains(&word.trim()))
        })
    }

    fn files_below(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
    }

    /// It takes long to find out that there is none.
    #[test]
    fn examples_are_looked_for_where_there_are_some_and_only_there() {
        for kind in ["crates", "dev"] {
            for folder in fs::read_dir(root().join(kind)).unwrap().map(|entry| entry.unwrap().path()) {
                if !folder.join("src/lib.rs").exists() {
                    continue;
                }
                let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
                let has_some = files_below(&folder.join("src")).iter().any(|path| has_example(path));
                assert_eq!(!manifest.contains("doctest = false"), has_some, "{}", folder.display());
            }
        }
    }

    #[test]
    fn the_order_of_the_layers_holds_and_the_picture_is_of_today() {
        run(&Arguments { check: true }).unwrap();
    }

    #[test]
    fn what_breaks_the_order_is_named() {
        let crates = toy(&[("low", true, &[]), ("high", true, &["low"]), ("tests", false, &["high"])]);
        check_order(&crates, &["low", "high", "tests"].map(String::from)).unwrap();
        assert_eq!(
            refused(&crates, &["high", "low", "tests"]),
            "high needs low, which is not above it in the code map"
        );
        assert_eq!(refused(&crates, &["low", "high"]), "the code map lacks tests");
        assert_eq!(
            refused(&crates, &["low", "low", "high", "tests"]),
            "a crate stands in the code map twice"
        );
        assert_eq!(
            refused(&crates, &["low", "mid", "high", "tests"]),
            "the code map has mid, which is no crate"
        );
        let upside = toy(&[("tests", false, &[]), ("high", true, &["tests"])]);
        let told = refused(&upside, &["tests", "high"]);
        assert_eq!(told, "high is a part of the product and needs tests, which is not");
    }

    #[test]
    fn the_picture_has_no_arrow_that_others_imply() {
        let crates = toy(&[("a", true, &[]), ("b", true, &["a"]), ("c", true, &["a", "b"])]);
        assert_eq!(direct_needs(&crates, "c"), ["b"]);
        assert!(picture(&crates).contains("  c --> b\n") && !picture(&crates).contains("  c --> a\n"));
    }
}
