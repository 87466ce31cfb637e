//! A REST server behind TLS with a certificate of one's own authority: rclone's.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use backends::Options;
use block::ErrorKind;
use repository::{Folder, Kind};
use testkit::{run, scratch};

use crate::conformance::{assert_same, conform};
use crate::{open, options, rclone};

/// An authority (`ca.pem`), and a key with the certificate that it gave `localhost`.
fn make_certificates(dir: &Path) {
    let path = |name: &str| dir.join(name).display().to_string();
    let openssl = |args: &[&str]| run("openssl", args);
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let ca =
        ["-x509", "-subj", "/CN=our own", "-days", "2", "-keyout", &path("ca.key"), "-out", &path("ca.pem")];
    openssl(&[&["req"], &key[..], &ca].concat());
    let request = ["-subj", "/CN=localhost", "-keyout", &path("key.pem"), "-out", &path("request.pem")];
    openssl(&[&["req"], &key[..], &request].concat());
    std::fs::write(path("names"), "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n").unwrap();
    openssl(&[
        "x509",
        "-req",
        "-in",
        &path("request.pem"),
        "-CA",
        &path("ca.pem"),
        "-CAkey",
        &path("ca.key"),
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        &path("names"),
        "-out",
        &path("certificate.pem"),
    ]);
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// rclone, and the port on which it serves the folder.
fn serve(dir: &Path, folder: &Path) -> (Server, u16) {
    let path = |name: &str| dir.join(name).display().to_string();
    let mut child = Command::new("rclone")
        .args([
            "serve",
            "restic",
            "--addr",
            "localhost:0",
            "--cert",
            &path("certificate.pem"),
            "--key",
            &path("key.pem"),
        ])
        .args(["--user", "me", "--pass", "p@ss", &format!(":local:{}", folder.display())])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let port = lines.by_ref().find_map(|line| {
        let line = line.unwrap();
        let (_, rest) = line.split_once("https://")?;
        rest.split(|letter: char| !letter.is_ascii_digit())
            .find_map(|digits| digits.parse().ok().filter(|port| *port > 1000))
    });
    // It goes on to say things.
    std::thread::spawn(move || lines.for_each(drop));
    (Server(child), port.expect("rclone serves"))
}

#[test]
fn ones_own_authority_is_believed_and_a_stranger_is_not() {
    if !rclone::is_here() {
        return;
    }
    let dir = scratch();
    make_certificates(dir.path());
    let folder = dir.path().join("repository");
    let (_server, port) = serve(dir.path(), &folder);
    let name = format!("rest:https://me:p%40ss@localhost:{port}/");
    let believing = |file: &str| Options { authorities: Some(dir.path().join(file)), ..options(&[]) };
    let storage = open(&name, &believing("ca.pem"), &[]).unwrap();
    conform(&*storage);
    assert_same(&*storage, &Folder::new(&folder));
    let by_variable = dir.path().join("ca.pem").display().to_string();
    let storage = open(&name, &options(&[]), &[("RESTIC_CACERT", &by_variable)]).unwrap();
    assert_eq!(storage.names(Kind::Config).unwrap().len(), 1);

    // The system's authorities know nothing of ours.
    let error = open(&name, &options(&[]), &[]).unwrap().names(Kind::Config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.hint_text().is_some_and(|hint| hint.contains("--cacert")), "{error}");
    // Nor is a certificate of another name believed.
    let other = name.replace("localhost", "127.0.0.1");
    let error = open(&other, &believing("ca.pem"), &[]).unwrap().names(Kind::Config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    for (file, kind) in [("names", ErrorKind::Invalid), ("nothing", ErrorKind::Io)] {
        assert_eq!(open(&name, &believing(file), &[]).map(drop).unwrap_err().kind(), kind, "{file}");
    }
}
