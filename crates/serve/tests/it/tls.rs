//! TLS with certificates that openssl made, and clients that use GnuTLS.
#![cfg(feature = "tls")]

use std::path::Path;
use std::sync::Arc;

use crate::common::RawDisk;
use crate::common::client::*;
use serve::Export;
use serve::nbd::{Listener, Options, Server, Tls};
use testkit::run;

const LEN_BYTES: u64 = 8 << 20;

/// An authority, and certificates of a server and a client, under the names that QEMU and libnbd look for.
fn make_certificates(dir: &Path) {
    let path = |name: &str| dir.join(name).display().to_string();
    let key = |name: &str| {
        run(
            "openssl",
            &[
                "genpkey",
                "-quiet",
                "-algorithm",
                "EC",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-out",
                &path(name),
            ],
        )
    };
    key("ca-key.pem");
    run(
        "openssl",
        &[
            "req",
            "-x509",
            "-new",
            "-key",
            &path("ca-key.pem"),
            "-subj",
            "/CN=authority",
            "-days",
            "2",
            "-out",
            &path("ca-cert.pem"),
        ],
    );
    for (who, usage) in [("server", "serverAuth"), ("client", "clientAuth")] {
        key(&format!("{who}-key.pem"));
        run(
            "openssl",
            &[
                "req",
                "-new",
                "-key",
                &path(&format!("{who}-key.pem")),
                "-subj",
                "/CN=localhost",
                "-out",
                &path("request"),
            ],
        );
        let extensions = path("extensions");
        std::fs::write(
            &extensions,
            format!("subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage={usage}\n"),
        )
        .unwrap();
        run(
            "openssl",
            &[
                "x509",
                "-req",
                "-in",
                &path("request"),
                "-CA",
                &path("ca-cert.pem"),
                "-CAkey",
                &path("ca-key.pem"),
                "-CAcreateserial",
                "-days",
                "2",
                "-extfile",
                &extensions,
                "-out",
                &path(&format!("{who}-cert.pem")),
            ],
        );
    }
}

#[test]
fn clients_of_qemu_and_libnbd_over_tls() {
    let dir = testkit::scratch();
    make_certificates(dir.path());
    let export = Arc::new(Export::new("disk", RawDisk::create(&dir.path().join("disk.raw"), LEN_BYTES)));
    let tls = Tls::from_folder(dir.path(), false).unwrap();
    let strict = Tls::from_folder(dir.path(), true).unwrap();
    let socket = dir.path().join("nbd.sock");
    let open = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap().with_tls(tls.clone());
    let port = open.tcp_address().unwrap().port();
    let verified = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap().with_tls(strict);
    let verified_port = verified.tcp_address().unwrap().port();
    // Not in the clear, so on all addresses.
    let everywhere = Listener::tcp("0.0.0.0:0".parse().unwrap()).unwrap().with_tls(tls.clone());
    let unix = Listener::unix(&socket).unwrap().with_tls(tls);
    let server =
        Server::start(vec![open, verified, everywhere, unix], vec![export], Options::default()).unwrap();

    let certificates = dir.path().display().to_string();
    let source = dir.path().join("source.raw").display().to_string();
    let mut random = sim::Random::new(3);
    let bytes: Vec<u8> = (0..LEN_BYTES).map(|_| random.next_u64() as u8).collect();
    std::fs::write(&source, &bytes).unwrap();
    let credentials = format!("tls-creds-x509,id=tls0,endpoint=client,dir={certificates}");
    for port in [port, verified_port] {
        let image = format!("driver=nbd,host=localhost,port={port},export=disk,tls-creds=tls0");
        let options = ["--object", &credentials, "--image-opts"];
        let info = run("qemu-img", &[&["info"][..], &options, &[&image]].concat());
        assert!(info.contains("8 MiB"), "{info}");
        run(
            "qemu-img",
            &[
                &["convert", "--target-image-opts", "-n", "-f", "raw", "--object", &credentials][..],
                &[&source, &image],
            ]
            .concat(),
        );
    }
    assert!(std::fs::read(dir.path().join("disk.raw")).unwrap() == bytes);
    let uri = |port: u16| format!("nbds://localhost:{port}/disk?tls-certificates={certificates}");
    for port in [port, verified_port] {
        let back = dir.path().join("back.raw").display().to_string();
        run("nbdcopy", &["--connections=2", "--requests=16", &uri(port), &back]);
        assert!(std::fs::read(&back).unwrap() == bytes);
    }

    // In the clear nothing is told, and without a certificate the strict one refuses.
    let mut client = Client::greeted(&socket, 3);
    for option in [LIST, INFO, GO, STRUCTURED_REPLY, SET_META_CONTEXT, 99] {
        assert_eq!(client.option(option, &[])[0].0, ERR_TLS_REQD);
    }
    client.send_option(EXPORT_NAME, b"disk");
    assert!(client.is_closed());
    // What is sent in the clear behind STARTTLS is not taken for what comes through TLS.
    let mut client = Client::greeted(&socket, 3);
    client.send(
        &[
            b"IHAVEOPT".as_slice(),
            &STARTTLS.to_be_bytes(),
            &[0; 4],
            b"IHAVEOPT",
            &LIST.to_be_bytes(),
            &[0; 4],
        ]
        .concat(),
    );
    client.take(20);
    let mut rest = Vec::new();
    let _ = std::io::Read::read_to_end(&mut client.stream, &mut rest);
    assert!(!rest.windows(4).any(|window| window == b"disk"), "{rest:?}");
    for name in ["client-cert.pem", "client-key.pem"] {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    let refused = std::process::Command::new("nbdinfo").arg(uri(verified_port)).output().unwrap();
    assert!(!refused.status.success());
    run("nbdinfo", &[&uri(port)]);
    server.stop().unwrap();
}

#[test]
fn certificates_that_are_none_are_refused() {
    let dir = testkit::scratch();
    make_certificates(dir.path());
    let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    let (chain, key) = (read("server-cert.pem"), read("server-key.pem"));
    assert!(Tls::from_pem(&chain, &key, None).is_ok());
    assert!(Tls::from_pem(b"", &key, None).is_err());
    assert!(Tls::from_pem(&chain, b"", None).is_err());
    assert!(Tls::from_pem(&chain, &read("client-key.pem"), None).is_err(), "another's key");
    assert!(Tls::from_pem(&chain, &key, Some(b"")).is_err());
    assert!(Tls::from_folder(&dir.path().join("none"), false).is_err());
}
