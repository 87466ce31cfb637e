//! Any storage that rclone reaches: a local folder here.

use std::process::Command;
use std::time::{Duration, Instant};

use block::ErrorKind;
use repository::Folder;
use testkit::scratch;

use crate::conformance::{assert_same, conform};
use crate::{open, options};

pub(crate) fn is_here() -> bool {
    let is_here = Command::new("rclone").arg("version").output().is_ok();
    if !is_here {
        println!("skipped: there is no rclone here");
    }
    is_here
}

#[test]
fn rclone_conforms_and_ends_with_the_storage() {
    if !is_here() {
        return;
    }
    let dir = scratch();
    let folder = dir.path().join("repository");
    let name = format!("rclone::local:{}", folder.display());
    let storage = open(&name, &options(&[]), &[]).unwrap();
    conform(&*storage);
    assert_same(&*storage, &Folder::new(&folder));
    let is_running = || {
        let running =
            Command::new("pgrep").args(["-f", &format!("rclone serve.*{}", folder.display())]).output();
        !running.unwrap().stdout.is_empty()
    };
    assert!(is_running());
    drop(storage);
    let until = Instant::now() + Duration::from_secs(10);
    while is_running() {
        assert!(Instant::now() < until, "rclone goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_missing_rclone_and_a_missing_remote_are_told() {
    let missing =
        open("rclone:a:b", &options(&[("rclone.program", "/no/such/rclone")]), &[]).map(drop).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Refused, "{missing}");
    assert!(missing.to_string().contains("rclone is not there"), "{missing}");
    if is_here() {
        let error = open("rclone:nosuchremote:b", &options(&[]), &[]).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains("config"), "{error}");
    }
}
