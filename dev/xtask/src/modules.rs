//! Modules side by side that import each other, which no order of reading can hold: found by the paths in their text.
//!
//! What counts is a path from one module, or from one below it, into the other or below it, where neither holds the other. Tests
//! within a module's file do not count. The text is not parsed as Rust: comments and strings are left out, and of the rest the paths
//! that begin with `crate`, `self` or `super` are taken, and those of `use` that begin with a module below.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// Pairs that may import each other, each with its crate.
const EXCEPTIONS: [(&str, &str, &str); 11] = [
    // `live::open` takes a disk of any format into use; how a format does that is its own, on what all of them share.
    ("image", "live", "qcow2"),
    ("image", "live", "vdi"),
    ("image", "live", "vhd"),
    ("image", "live", "vhdx"),
    ("image", "live", "vmdk"),
    // A snapshot is collected by the file system's own code, into what all of them share.
    ("verify", "volume::btrfs", "volume::snapshot"),
    ("verify", "volume::exfat", "volume::snapshot"),
    ("verify", "volume::ext", "volume::snapshot"),
    ("verify", "volume::fat", "volume::snapshot"),
    ("verify", "volume::ntfs", "volume::snapshot"),
    ("verify", "volume::snapshot", "volume::xfs"),
];

/// A module by its path below the crate.
type Module = Vec<String>;
/// The text of each module.
type Texts = BTreeMap<Module, String>;

/// Fails if modules of the crate `name`, whose root is in `folder`, import each other and are no exception, or an exception is none.
pub(crate) fn check(name: &str, folder: &Path) -> Result<()> {
    let mut texts = Texts::new();
    read(folder, &Module::new(), &mut texts)?;
    let of_it = EXCEPTIONS.iter().filter(|(of, ..)| *of == name);
    let mut allowed: BTreeSet<_> =
        of_it.map(|(_, one, other)| (one.to_string(), other.to_string())).collect();
    for (one, other) in mutual(&texts) {
        let pair = (one.join("::"), other.join("::"));
        ensure!(allowed.remove(&pair), "modules of {name} import each other: {} and {}", pair.0, pair.1);
    }
    match allowed.first() {
        Some((one, other)) => bail!("{one} and {other} of {name} do not import each other any more"),
        None => Ok(()),
    }
}

/// Reads the modules in `folder`, which is that of `module`.
fn read(folder: &Path, module: &Module, texts: &mut Texts) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        let stem = path.file_stem().context("a name")?.to_string_lossy().into_owned();
        let below = || module.iter().cloned().chain([stem.clone()]).collect::<Module>();
        if path.is_dir() {
            read(&path, &below(), texts)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let of = if ["lib", "main", "mod"].contains(&&*stem) { module.clone() } else { below() };
            texts.insert(of, code(&fs::read_to_string(&path)?));
        }
    }
    Ok(())
}

/// The text without comments, strings and the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let all = lines.collect::<Vec<_>>().join("\n").replace("'\"'", "").replace("\\\"", "");
    all.split('"').step_by(2).collect::<Vec<_>>().join("\"\"")
}

/// The pairs that import each other, the first of each before the second.
fn mutual(texts: &Texts) -> Vec<(Module, Module)> {
    let imports: BTreeSet<_> = texts.iter().flat_map(|(module, text)| imports(texts, module, text)).collect();
    let is_mutual =
        |(one, other): &&(Module, Module)| one < other && imports.contains(&(other.clone(), one.clone()));
    imports.iter().filter(is_mutual).cloned().collect()
}

/// What `module` imports, as the two modules at which the ways to it and to what it imports part.
fn imports(texts: &Texts, module: &Module, text: &str) -> Vec<(Module, Module)> {
    let paths = paths(text);
    let targets = paths.iter().filter_map(|path| target(texts, module, path));
    targets.filter_map(|target| parted(module, &target)).collect()
}

/// Where the ways to two modules part; `None` where one holds the other.
fn parted(one: &Module, other: &Module) -> Option<(Module, Module)> {
    let same = one.iter().zip(other).take_while(|(one, other)| one == other).count();
    Some((one.get(..=same)?.to_vec(), other.get(..=same)?.to_vec()))
}

/// The module that a path in `module` leads into.
fn target(texts: &Texts, module: &Module, path: &[String]) -> Option<Module> {
    let mut at = match path.first()?.as_str() {
        "crate" => Module::new(),
        "self" | "super" => module.clone(),
        first if texts.contains_key(&[&module[..], &[first.to_owned()]].concat()) => module.clone(),
        _ => return None,
    };
    for part in path {
        match part.as_str() {
            "crate" | "self" => {}
            "super" => drop(at.pop()),
            _ => at.push(part.clone()),
        }
    }
    while !at.is_empty() && !texts.contains_key(&at) {
        at.pop();
    }
    Some(at)
}

/// The paths in a text: of `use`, all of its branches; elsewhere what begins with `crate`, `self` or `super`.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_alphanumeric() || c == '_') {
        rest = &rest[at..];
        let word = word(rest);
        if word == "use" {
            let tree = rest[3..].split(';').next().unwrap_or_default();
            branches(&Vec::new(), tree, &mut all);
            rest = &rest[3 + tree.len()..];
        } else if ["crate", "self", "super"].contains(&word) {
            let (path, len) = path(rest);
            all.push(path);
            rest = &rest[len..];
        } else {
            rest = &rest[word.len()..];
        }
    }
    all
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// The path at the start of a text, and its length there.
fn path(text: &str) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    let mut len = 0;
    loop {
        let next = word(&text[len..]);
        path.push(next.to_owned());
        len += next.len();
        match text[len..].strip_prefix("::") {
            Some(after) if !word(after).is_empty() => len += 2,
            _ => return (path, len),
        }
    }
}

/// The paths of a tree of `use`, each behind `prefix`.
fn branches(prefix: &[String], tree: &str, all: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let (head, inner) = tree.split_once('{').unwrap_or((tree, ""));
    let head = head.split(" as ").next().unwrap_or_default();
    let parts = head.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned);
    let path: Vec<_> = prefix.iter().cloned().chain(parts).collect();
    match inner.rfind('}') {
        Some(end) => split(&inner[..end]).for_each(|branch| branches(&path, branch, all)),
        None => all.push(path),
    }
}

/// The branches between commas that lie in no further braces.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    let parts = text.split(move |c: char| {
        depth = match c {
            '{' => depth + 1,
            '}' => depth.saturating_sub(1),
            _ => depth,
        };
        c == ',' && depth == 0
    });
    parts.filter(|part| !part.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(modules: &[(&str, &str)]) -> Vec<(String, String)> {
        let module =
            |path: &str| path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let texts = modules.iter().map(|(path, text)| (module(path), code(text))).collect();
        mutual(&texts).into_iter().map(|(one, other)| (one.join("::"), other.join("::"))).collect()
    }

    #[test]
    fn modules_that_import_each_other_are_found_however_they_say_it() {
        let found =
            |one: &str, other: &str| pairs(&[("", "mod a;"), ("a", one), ("a::deep", ""), ("b", other)]);
        let expected = [("a".to_owned(), "b".to_owned())];
        for one in
            ["use crate::b::B;", "use super::{c, b::{B, C}};", "fn f() { crate::b::g() }", "use super::b;"]
        {
            for other in
                ["use crate::a;", "use crate::{\n    a::{deep::A, self},\n};", "type A = super::a::A;"]
            {
                assert_eq!(found(one, other), expected, "{one} and {other}");
            }
        }
        assert_eq!(found("use crate::b::B;", "use crate::c::A;"), []);
        assert_eq!(found("use crate::b::B;", "// crate::a\nconst A: &str = \"crate::a\";"), []);
        assert_eq!(found("use crate::b::B;", "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}"), []);
    }

    #[test]
    fn what_lies_in_a_module_may_import_from_it() {
        assert_eq!(pairs(&[("a", "use deep::A; fn f() {}"), ("a::deep", "use super::f;")]), []);
        let below = [
            ("a::one", "use super::two::A;"),
            ("a::two", "use self::deep::B;"),
            ("a::two::deep", "use crate::a::one::C;"),
        ];
        assert_eq!(pairs(&below), [("a::one".to_owned(), "a::two".to_owned())]);
    }
}
