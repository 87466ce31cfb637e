//! NTFS volumes with every feature that ntfs-3g can make, and digests of what a mount shows of them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{run, scratch};

/// How volumes are filled and looked at: streams by a colon, compression, all attributes, EFS streams as they are stored.
const OPTIONS: &str = "streams_interface=windows,compression,efs_raw,special_files=wsl,show_sys_files";

/// A mounted volume; unmounted, and all of it written, when dropped.
pub struct Mounted {
    /// Where.
    pub dir: PathBuf,
    program: Child,
}

impl Mounted {
    /// Mounts `volume` at `dir`, which is made, through ntfs-3g. `options` are further ones, such as `ro`.
    pub fn new(volume: &Path, dir: &Path, options: &str) -> Self {
        fs::create_dir_all(dir).unwrap();
        let before = fs::metadata(dir).unwrap().dev();
        let mut program = Command::new("ntfs-3g")
            .args(["-o", &format!("no_detach,{OPTIONS},{options}")])
            .args([volume, dir])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("ntfs-3g: {error}; `make test` installs what the tests need"));
        let started = Instant::now();
        while fs::metadata(dir).unwrap().dev() == before {
            assert!(program.try_wait().unwrap().is_none(), "ntfs-3g gave up on {}", volume.display());
            assert!(started.elapsed() < Duration::from_secs(30), "ntfs-3g does not mount");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { dir: dir.into(), program }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily, so that it is gone even if the test failed with a file open.
        let _ = Command::new("umount").arg("-l").arg(&self.dir).status();
        let _ = self.program.wait();
    }
}

/// Makes a volume with clusters of `cluster_bytes` (512 to 64 KiB) in the file `path`, which becomes some tens of MiB long,
/// a multiple of 1 MiB. It holds files and directories in many pieces, some with attribute lists, sparse,
/// compressed (up to clusters of 4 KiB) and encrypted ones, named streams, hard links, reparse points, extended
/// attributes, security descriptors, and a file in the last clusters. The same seed makes the same tree.
pub fn make(path: &Path, cluster_bytes: u64, seed: u64) {
    // Pieces are counted in clusters: larger ones need more room for as many.
    let mib = match cluster_bytes {
        ..4096 => 24,
        4096..32_768 => 40,
        _ => 160,
    };
    File::create(path).unwrap().set_len(mib << 20).unwrap();
    let cluster = cluster_bytes.to_string();
    let size = ["-F", "-Q", "-q", "-p", "0", "-H", "0", "-S", "0", "-c", &cluster];
    run("mkntfs", &[&size[..], &["-L", "Features", path.to_str().unwrap()]].concat());
    let dir = scratch();
    let mounted = Mounted::new(path, &dir.path().join("mnt"), "");
    python(
        include_str!("ntfs_volume/fill.py"),
        &[mounted.dir.to_str().unwrap(), &cluster, &seed.to_string()],
    );
    drop(mounted);
    // All is full now: which file has the last cluster, and stays?
    let last = (mib << 20) / cluster_bytes - 2;
    let owner = run("ntfscluster", &["-f", "-q", "-c", &format!("{last}-{last}"), path.to_str().unwrap()]);
    let mounted = Mounted::new(path, &dir.path().join("mnt"), "");
    assert!(owner.contains("* one inode found"), "a file in the last cluster: {owner}");
    for index in 0.. {
        let filler = mounted.dir.join(format!("filler{index}"));
        let Ok(about) = fs::metadata(&filler) else { break };
        let is_kept = index < 60 && index % 6 == 0;
        if !is_kept && !owner.contains(&format!("Inode {} ", about.ino())) {
            fs::remove_file(filler).unwrap();
        }
    }
}

/// What a mount of [`Mounted`] shows: for each path, and each `path:stream`, a line with its kind, length, times, links,
/// allocated size, SHA-256 and all that NTFS has besides (attributes, security descriptor, reparse data, ...).
pub fn tree_digest(mount_dir: &Path) -> BTreeMap<String, String> {
    let listed = python(include_str!("ntfs_volume/digest.py"), &[mount_dir.to_str().unwrap()]);
    let mut digest = BTreeMap::new();
    for line in listed.lines() {
        let (path, rest) = line.split_once('\t').unwrap();
        assert!(digest.insert(path.to_string(), rest.to_string()).is_none(), "{path} twice");
    }
    assert!(digest.len() > 1, "a tree with something in it");
    digest
}

fn python(program: &str, args: &[&str]) -> String {
    run("python3", &[&["-c", program], args].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_shows_every_change() {
        let dir = scratch();
        let volume = dir.path().join("volume");
        make(&volume, 4096, 1);
        let digest =
            |options: &str| tree_digest(&Mounted::new(&volume, &dir.path().join("mnt"), options).dir);
        let before = digest("ro");
        assert_eq!(before, digest("ro"));
        for feature in ["/pieces", "/packed/file", "/named:one", "/secret", "/links/3", "/special/junction"] {
            assert!(before.contains_key(feature), "{feature}: {:?}", before.keys().collect::<Vec<_>>());
        }
        let mounted = Mounted::new(&volume, &dir.path().join("mnt"), "");
        fs::write(mounted.dir.join("named:one"), b"other").unwrap();
        drop(mounted);
        let after = digest("ro");
        let changed = before.iter().filter(|(path, line)| after[*path] != **line);
        assert_eq!(changed.map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["/named", "/named:one"]);
    }
}
